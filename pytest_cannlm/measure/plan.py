"""How much is sampled, checked before anything runs, and what to do after each look at the data. Pure decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Outcome
from pytest_cannlm.measure.stats import check_confidence, check_percentile, fit_line, required_samples

InconclusivePolicy = Literal["extend", "fail", "skip", "xfail"]
WarmupState = Literal["continue", "steady", "never steady"]

EXTEND_LOOKS = 3
"""Looks at the data under the policy "extend": the planned sample and two extensions."""


@dataclass(frozen=True)
class Warmup:
    """When an engine counts as warm. Warm-up generations are kept apart and never enter a statistic."""

    generations: int = 3
    seconds: float = 2.0
    window: int = 5
    drift: float = 0.02
    cap: int = 30

    def state(self, tpots_ms: Sequence[float], elapsed_s: float) -> WarmupState:
        """Whether to go on, given the time per token of every warm-up generation so far.

        Steady: enough generations, enough seconds, and over the last ``window`` generations the fitted drift
        |slope|·window / median is at most ``drift``. At ``cap`` generations it is never steady.
        """
        recent = list(tpots_ms[-self.window :])
        if len(tpots_ms) >= max(self.generations, self.window) and elapsed_s >= self.seconds:
            _, slope = fit_line(range(len(recent)), recent)
            if abs(slope) * self.window <= self.drift * median(recent):
                return "steady"
        return "never steady" if len(tpots_ms) >= self.cap else "continue"


@dataclass(frozen=True)
class SamplingPlan:
    """What one latency verdict rests on. A plan that cannot prove its claim is a :class:`UsageError` naming the need.

    ``rounds`` are measured for the first look and again for each further one. Looking ``looks`` times at growing data
    would raise the rate of false passes, so each look uses confidence 1 - (1 - c)/looks; the first look is lengthened
    by the few rounds that this costs.
    """

    rounds: int = 5
    generations_per_round: int = 4
    new_tokens: int = 64
    p: float = 50
    confidence: float = 0.95
    looks: int = 1
    max_void_rounds: int = 2
    warmup: Warmup = field(default_factory=Warmup)

    def __post_init__(self) -> None:
        check_percentile(self.p)
        check_confidence(self.confidence)
        for name, least in (("rounds", 1), ("generations_per_round", 1), ("looks", 1), ("max_void_rounds", 0)):
            if getattr(self, name) < least:
                raise UsageError(
                    "impossible sampling plan", field=name, found=getattr(self, name), expected=f">= {least}"
                )
        if self.new_tokens < 2:
            raise UsageError(
                "time per token is undefined for fewer than 2 generated tokens",
                field="new_tokens",
                found=self.new_tokens,
                expected=">= 2",
            )
        needed_rounds = required_samples(50, self.confidence)
        if self.rounds < needed_rounds:
            raise UsageError(
                f"{self.rounds} rounds cannot prove a median at {100 * self.confidence:g} % confidence",
                field="rounds",
                found=self.rounds,
                expected=f">= {needed_rounds}",
            )
        needed, planned = required_samples(self.p, self.confidence), self.rounds * self.generations_per_round
        if self.p != 50 and planned < needed:
            raise UsageError(
                f"{planned} generations cannot prove p{self.p:g} at {100 * self.confidence:g} % confidence",
                field="p",
                found=f"{planned} generations ({self.rounds} rounds of {self.generations_per_round})",
                expected=f">= {needed} generations",
                remedy=f"Ask for {_provable(self.confidence, planned)}, or a lower confidence",
            )

    @property
    def look_confidence(self) -> float:
        """The confidence that the bounds of a single look use."""
        return 1 - (1 - self.confidence) / self.looks

    def rounds_at(self, look: int) -> int:
        """Good rounds that look number ``look`` (from 1) rests on."""
        needed = required_samples(50, self.look_confidence)
        if self.p != 50:
            generations = required_samples(self.p, self.look_confidence)
            needed = max(needed, math.ceil(generations / self.generations_per_round))
        return max(self.rounds, needed) + (look - 1) * self.rounds

    def look_after(self, good_rounds: int) -> int:
        """The look (from 1) that ``good_rounds`` rounds belong to, or lead to; at most ``looks``."""
        return next((look for look in range(1, self.looks) if good_rounds <= self.rounds_at(look)), self.looks)


def _provable(confidence: float, generations: int) -> str:
    """The highest percentile that ``generations`` can prove: n values all lie below it by chance with p^n."""
    highest = math.floor(1000 * (1 - confidence) ** (1 / generations)) / 10
    return f"p={highest:g} or less" if highest > 50 else "p=50"


def looks_for(policy: InconclusivePolicy) -> int:
    """How often a plan may look at the data under a policy for inconclusive results."""
    return EXTEND_LOOKS if policy == "extend" else 1


@dataclass(frozen=True)
class NextStep:
    """What to do now: measure ``rounds`` more, or stop with ``outcome``."""

    rounds: int
    outcome: Outcome | None = None
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether the measurement is over."""
        return self.outcome is not None


def next_step(
    plan: SamplingPlan,
    *,
    good_rounds: int,
    void_rounds: int = 0,
    outcome: Outcome | None = None,
) -> NextStep:
    """Decide after each batch of rounds.

    ``outcome`` is the verdict on the rounds so far (of several limits: :func:`combine`), None before the first look.
    Void rounds are replaced, up to the plan's maximum; then the result is inconclusive. An inconclusive look leads to
    another one while the plan has looks left.
    """
    if void_rounds > plan.max_void_rounds:
        reason = f"{void_rounds} void rounds, at most {plan.max_void_rounds} are replaced"
        return NextStep(0, "inconclusive", reason)
    look = plan.look_after(good_rounds)
    short = plan.rounds_at(look) - good_rounds
    if short > 0:
        return NextStep(short, reason=f"look {look} of {plan.looks} needs {short} more rounds")
    if outcome is None:
        raise ValueError("a look at the data needs its verdict")
    if outcome == "inconclusive" and look < plan.looks:
        more = plan.rounds_at(look + 1) - good_rounds
        return NextStep(more, reason=f"inconclusive at look {look} of {plan.looks}: {more} more rounds")
    return NextStep(0, outcome, f"decided at look {look} of {plan.looks}")


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome for several: any failure fails, else any doubt is inconclusive. Nothing judged is a failure."""
    if not outcomes or "fail" in outcomes:
        return "fail"
    return "inconclusive" if "inconclusive" in outcomes else "pass"
