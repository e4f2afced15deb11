"""The text that outputs are compared on, and its windows. Always the same ones, so that two runs can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from pytest_cannlm.errors import UsageError


@dataclass(frozen=True)
class Window:
    """A piece of text, teacher-forced on its own: ``tokens`` are fed, logits from ``first`` on are compared."""

    tokens: tuple[int, ...]
    first: int
    targets: tuple[int, ...]
    """The id that follows in the text, per compared position: the last one lies beyond the window."""


def standard_text() -> str:
    """English prose, code, lists and some Chinese, written for this purpose; at least 900 tokens in any vocabulary."""
    return resources.files(__package__).joinpath("texts", "standard.txt").read_text(encoding="utf-8")


def cut_windows(
    ids: Sequence[int], *, positions: int = 512, length: int = 128, prefix: Sequence[int] = ()
) -> list[Window]:
    """Windows of ``length`` consecutive ids that together compare exactly ``positions`` positions.

    ``prefix`` (a BOS token, where the model wants one) is fed before each window and not compared. Fewer than
    ``positions + 1`` ids are a :class:`UsageError`.
    """
    for name, value in (("tokens", positions), ("length", length)):
        if value < 1:
            raise UsageError("a comparison needs positions", field=name, found=value, expected=">= 1")
    if len(ids) <= positions:
        raise UsageError(
            "the text is too short for the positions asked for",
            field="tokens",
            found=f"{len(ids)} tokens in the text",
            expected=f"at least {positions + 1}",
            remedy="Give a longer text, or compare fewer positions",
        )
    starts = range(0, positions, length)
    return [
        Window(
            tokens=(*prefix, *ids[start : min(start + length, positions)]),
            first=len(prefix),
            targets=tuple(ids[start + 1 : min(start + length, positions) + 1]),
        )
        for start in starts
    ]
