"""Token ids compared as tokens: the prompt first, then what was decoded greedily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.agent.protocol import Kind
from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.stats import exact_figure

NEAR_TIE = 1e-3
"""Logit margin of the reference up to which two tokens count as nearly tied."""

_FIXED_PROMPTS = "regression check on the fixed prompts"


@dataclass(frozen=True)
class PromptDifference:
    """Where the ids of one prompt part. None on the side that has ended."""

    position: int
    reference_id: int | None
    engine_id: int | None
    reference_text: str
    engine_text: str
    hint: str = ""

    def __str__(self) -> str:
        sides = (
            f"{side} {'has ended' if token is None else f'{token} {text!r}'}"
            for side, token, text in (
                ("reference", self.reference_id, self.reference_text),
                ("engine", self.engine_id, self.engine_text),
            )
        )
        return f"prompt ids differ at position {self.position}: {', '.join(sides)}" + (
            f"; {self.hint}" if self.hint else ""
        )


def compare_prompt_ids(
    reference_ids: Sequence[int], engine_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> PromptDifference | None:
    """The first difference between the ids that two tokenizers made of one prompt, or None if there is none.

    Everything after it would compare different questions, so parity stops there. ``decode`` turns ids into text.
    """
    position = _common_prefix(reference_ids, engine_ids)
    if position == len(reference_ids) == len(engine_ids):
        return None

    def side(ids: Sequence[int]) -> tuple[int | None, str]:
        return (ids[position], decode([ids[position]])) if position < len(ids) else (None, "")

    (reference_id, reference_text), (engine_id, engine_text) = side(reference_ids), side(engine_ids)
    return PromptDifference(
        position, reference_id, engine_id, reference_text, engine_text, _hint(list(reference_ids), list(engine_ids))
    )


def _hint(reference: list[int], engine: list[int]) -> str:
    if reference and engine == [reference[0], *reference]:
        return "the engine adds the first token (BOS) again"
    if engine and reference == [engine[0], *engine]:
        return "the reference has the first token (BOS) twice"
    if engine[1:] == reference:
        return "the engine adds a token in front (BOS)"
    if reference[1:] == engine:
        return "the engine leaves out the first token (BOS)"
    return ""


@dataclass(frozen=True)
class Parting:
    """Where two greedy texts part. Only "different" is a miss: for ties the reference does not prefer its own token."""

    position: int
    reference_token: int | None
    device_token: int | None
    margin: float | None
    """Logit of the reference's token less that of the device's, both from the reference; None without logits."""
    judged: Literal["tie", "near tie", "different"]


@dataclass(frozen=True)
class GreedyComparison:
    """One prompt, decoded greedily on both sides."""

    prefix_tokens: int
    """Leading equal tokens. Up to a tie everything agrees, so a tie counts as the whole reference."""
    raw_prefix_tokens: int
    """Leading equal tokens, ties not excused."""
    reference_tokens: int
    first_token_match: bool
    parting: Parting | None


def compare_greedy(
    reference: Sequence[int],
    device: Sequence[int],
    *,
    reference_logits: Callable[[int], Sequence[float]] | None = None,
    near_tie: float = NEAR_TIE,
) -> GreedyComparison:
    """Count the leading equal tokens and judge where they part.

    ``reference_logits`` gives the reference's logits [V] for generated position i. A device token that the reference
    holds for exactly equal is a tie, one within ``near_tie`` a near tie; texts are not comparable after either. An
    empty reference is a :class:`UsageError`.
    """
    if not reference:
        raise UsageError("greedy comparison without a reference token")
    position = _common_prefix(reference, device)
    parting = None
    if position < len(reference):
        parting = _parting(position, reference, device, reference_logits, near_tie)
    excused = parting is not None and parting.judged != "different"
    return GreedyComparison(
        prefix_tokens=len(reference) if excused else position,
        raw_prefix_tokens=position,
        reference_tokens=len(reference),
        first_token_match=position > 0 or excused,
        parting=parting,
    )


def prefix_figures(comparisons: Sequence[GreedyComparison], *, kind: Kind) -> dict[str, Figure]:
    """``prefix_tokens`` (of the worst prompt) and ``first_token_match`` (share of prompts); empty without a prompt."""
    if not comparisons:
        return {}
    worst = min(comparisons, key=lambda each: each.prefix_tokens)
    ties = sum(each.parting is not None and each.parting.judged != "different" for each in comparisons)
    detail = {
        "prefix_tokens": [each.prefix_tokens for each in comparisons],
        "raw_prefix_tokens": [each.raw_prefix_tokens for each in comparisons],
        "reference_tokens": [each.reference_tokens for each in comparisons],
        "margin_where_worst_parts": worst.parting.margin if worst.parting else None,
        "ties": ties,
    }
    share = sum(each.first_token_match for each in comparisons) / len(comparisons)
    return {
        name: exact_figure(
            name,
            value,
            unit=unit,
            kind=kind,
            samples=len(comparisons),
            statistic=f"{what} ({_FIXED_PROMPTS})",
            detail=detail,
        )
        for name, value, unit, what in (
            ("prefix_tokens", float(worst.prefix_tokens), "tokens", "worst prompt"),
            ("first_token_match", share, "", "share of prompts"),
        )
    }


def _parting(
    position: int,
    reference: Sequence[int],
    device: Sequence[int],
    logits: Callable[[int], Sequence[float]] | None,
    near_tie: float,
) -> Parting:
    expected, chosen = reference[position], device[position] if position < len(device) else None
    margin = None
    if logits is not None and chosen is not None:
        row = logits(position)
        margin = float(row[expected]) - float(row[chosen])
    judged: Literal["tie", "near tie", "different"] = "different"
    if margin == 0:
        judged = "tie"
    elif margin is not None and 0 < margin <= near_tie:
        judged = "near tie"
    return Parting(position, expected, chosen, margin, judged)


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)  # the shorter side ends the prefix
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
