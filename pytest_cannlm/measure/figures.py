"""What was found and what became of it: frozen results that every report is a view of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_cannlm.agent.protocol import Kind

Outcome = Literal["pass", "fail", "inconclusive"]
Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Figure:
    """One number with what is needed to judge it: unit, kind, interval, and what it was computed from.

    ``lower`` and ``upper`` are one-sided bounds, each at ``confidence``; None where the sample cannot give one. A value
    that is exact, or judged as a regression check on a fixed set, has both bounds equal to itself and no confidence.
    """

    name: str
    value: float
    unit: str
    kind: Kind
    lower: float | None
    upper: float | None
    confidence: float | None
    samples: int
    """Independent units behind the value: rounds, generations or positions; ``statistic`` says which."""
    statistic: str
    """How the value was computed, for a reader: "median of round medians"."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """JSON-ready facts: raw samples, spread, prompt length, worst positions."""


@dataclass(frozen=True)
class Limit:
    """A budget and where it came from (marker, command line, file, profile)."""

    value: float
    source: str


@dataclass(frozen=True)
class Verdict:
    """A figure held against its limit."""

    outcome: Outcome
    figure: Figure | None
    """None where nothing was observed, which is never a pass."""
    name: str
    """The limit's own name, as the user wrote it: ``decode_ms``."""
    limit: float | None
    unit: str
    better: Better
    margin: float | None
    """Room between value and limit, in ``unit``; negative on the wrong side. None where there is no finite one."""
    reason: str
    look_at: str
    """Where the cause is likely to be found."""
    limit_source: str

    @property
    def margin_percent(self) -> float | None:
        """The margin as percent of the limit; None where there is no margin or the limit is zero."""
        if self.margin is None or not self.limit:
            return None
        return 100 * self.margin / abs(self.limit)
