"""What a comparison found, before any limit is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.parity.guards import Guard


@dataclass(frozen=True)
class WorstElement:
    """One of the elements that differ most."""

    position: int
    token: int
    reference: float
    device: float


@dataclass(frozen=True)
class ParityResult:
    """Figures by metric name, with everything that tells whether they may be believed."""

    metrics: Mapping[str, Figure]
    positions: int
    """Positions compared."""
    guards: tuple[Guard, ...]
    """Guards that fired; with any of them the metrics are not judged."""
    against: str
    """The reference: "float" (what did quantization cost), "quantized" (is computed what was built), or a path."""
    reference_hash: str = ""
    minimum_atol: float | None = None
    """Smallest absolute tolerance, with no relative one, under which every element passes."""
    minimum_rtol: float | None = None
    """Smallest relative tolerance, with no absolute one, under which every element passes."""
    worst: tuple[WorstElement, ...] = ()
    """At most 20 elements with the largest absolute difference, largest first."""
    notes: tuple[str, ...] = ()
    """Ties, dtypes, removed infinities: what was done that the figures do not show."""
