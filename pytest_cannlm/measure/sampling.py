"""Rounds of timed generations become figures; what cannot become one says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_cannlm.agent.protocol import Generation, Kind, Times
from pytest_cannlm.errors import CannlmError, EngineError
from pytest_cannlm.measure import latency
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.plan import SamplingPlan
from pytest_cannlm.measure.stats import percentile, round_figure


@dataclass(frozen=True)
class TimedGeneration:
    """The part of a generation that latency is computed from."""

    prompt_tokens: int
    times: Times
    kind: Kind
    """Whether a clock said so or a model."""
    cached_prefix_tokens: int = 0

    @classmethod
    def of(cls, generation: Generation) -> TimedGeneration:
        """The timed part of what an engine answered."""
        return cls(generation.prompt_tokens, generation.times, generation.kind, generation.cached_prefix_tokens)


@dataclass(frozen=True)
class Round:
    """Generations that ran close together. ``void`` says what disturbed the round (throttling, charger, restart)."""

    generations: tuple[TimedGeneration, ...]
    void: str | None = None


@dataclass(frozen=True)
class LatencySample:
    """Figures by name, and for each figure that could not be computed the reason."""

    figures: Mapping[str, Figure]
    missing: Mapping[str, str]
    good_rounds: int
    void_rounds: tuple[str, ...]
    """The reason of every round that was left out of the statistics."""


def void_reason(generation: TimedGeneration, new_tokens: int | None) -> str | None:
    """Why a generation must not be counted, or None.

    A prefix found in the KV cache makes prefill look faster than it is; an output shorter or longer than ``new_tokens``
    is not the generation that was planned (None: the engine cannot suppress end-of-text, any length counts).
    """
    if generation.cached_prefix_tokens:
        return f"{generation.cached_prefix_tokens} prompt tokens came from the prefix cache"
    if new_tokens is not None and len(generation.times.tokens) != new_tokens:
        return f"{len(generation.times.tokens)} tokens generated instead of {new_tokens}"
    return None


def latency_sample(
    rounds: Sequence[Round],
    *,
    plan: SamplingPlan,
    context: int | None = None,
    fixed_length: bool = True,
) -> LatencySample:
    """Figures of all rounds that are not void.

    ``tpot`` (ms/token), ``ttft_model`` and ``ttft_request`` (ms) and ``prefill_tps`` (or ``prefill_tps_via_ttft``) at
    the plan's percentile with bounds at the confidence of one look; ``decode_tps`` and ``itl_p95`` describe the sample
    and have no bounds. ``context`` is the package's context length, shown beside TTFT. ``fixed_length=False`` declares
    that the engine cannot suppress end-of-text. Figures are of the kind of their generations; times of which some are
    measured and some modelled give no figure at all.
    """
    reasons = [_round_void(each, plan.new_tokens if fixed_length else None) for each in rounds]
    good = [each.generations for each, reason in zip(rounds, reasons, strict=True) if reason is None]
    void = tuple(reason for reason in reasons if reason is not None)
    figures: dict[str, Figure] = {}
    missing: dict[str, str] = {}
    everything = [generation for group in good for generation in group]
    kinds = {generation.kind for generation in everything}
    kind: Kind = "measured" if kinds == {"measured"} else "modelled"
    shared: dict[str, Any] = {
        "generations_per_round": [len(group) for group in good],
        "prompt_tokens": sorted({generation.prompt_tokens for generation in everything}),
        "new_tokens": sorted({len(generation.times.tokens) for generation in everything}),
        "context": context,
        "void_rounds": list(void),
        "look": plan.look_after(len(good)),
        "looks": plan.looks,
    }
    nothing = "no generation was timed" if not rounds else f"every round is void ({'; '.join(sorted(set(void)))})"

    def attempt(name: str, compute: Callable[[], Figure | None]) -> None:
        try:
            if len(kinds) > 1:
                raise EngineError("some of the times are measured and some modelled")
            figure = compute()
        except CannlmError as error:
            missing[name] = str(error)
            return
        if figure is None:
            missing[name] = nothing
        else:
            figures[figure.name] = figure

    def headline(
        name: str, unit: str, value: Callable[[TimedGeneration], float], *, p: float = plan.p, **detail: Any
    ) -> Figure | None:
        values = [[value(generation) for generation in group] for group in good]
        facts = {**shared, **detail}
        return round_figure(name, values, p=p, confidence=plan.look_confidence, unit=unit, kind=kind, detail=facts)

    def prefill() -> Figure | None:
        names = {latency.prefill_tps(g.times, g.prompt_tokens)[0] for g in everything}
        if len(names) > 1:
            raise EngineError("the engine told the end of prefill for some generations only")
        # A rate is better when higher, so the slow tail that p90 asks for is its 10th percentile.
        return headline(
            names.pop() if names else "prefill_tps",
            "tokens/s",
            lambda g: latency.prefill_tps(g.times, g.prompt_tokens)[1],
            p=100 - plan.p,
        )

    def decode() -> Figure | None:
        times = [generation.times for generation in everything]
        rate = latency.decode_tps(times) if times else None
        return (
            None if rate is None else _described("decode_tps", rate, "tokens/s", kind, len(times), "total over total")
        )

    def tail() -> Figure | None:
        steps = [step for generation in everything for step in latency.itl(generation.times)]
        if not steps:
            return None
        return _described("itl_p95", percentile(steps, 95), "ms", kind, len(steps), "p95 of pooled token times")

    def per_token() -> Figure | None:
        fits = [latency.depth_fit(g.times, g.prompt_tokens) for g in everything]
        return headline(
            "tpot",
            "ms/token",
            lambda g: latency.tpot(g.times),
            itl_reliable=not any(latency.is_batched(g.times) for g in everything),
            depth_ms=median(a for a, _ in fits) if fits else None,
            depth_ms_per_1000_tokens=median(b for _, b in fits) if fits else None,
        )

    attempt("tpot", per_token)
    attempt("ttft_model", lambda: headline("ttft_model", "ms", lambda g: latency.ttft_model(g.times)))
    attempt("ttft_request", lambda: headline("ttft_request", "ms", lambda g: latency.ttft_request(g.times)))
    attempt("prefill_tps", prefill)
    attempt("decode_tps", decode)
    attempt("itl_p95", tail)
    return LatencySample(figures, missing, len(good), void)


def _round_void(each: Round, new_tokens: int | None) -> str | None:
    if each.void is not None:
        return each.void
    if not each.generations:
        return "no generation in the round"
    return next((reason for g in each.generations if (reason := void_reason(g, new_tokens))), None)


def _described(name: str, value: float, unit: str, kind: Kind, samples: int, statistic: str) -> Figure:
    """A figure that describes the sample; it has no bounds, so a limit on it can only be inconclusive."""
    return Figure(name, value, unit, kind, None, None, None, samples, statistic)
