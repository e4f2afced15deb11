"""What judging one marker gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pytest_cannlm.measure.figures import Figure, Verdict

ReportAs = Literal["skip", "xfail"] | None
"""How an inconclusive result is shown to pytest where the user chose so; None: as a failure."""


@dataclass(frozen=True)
class Judged:
    """Verdicts of one marker, and every figure that came up on the way."""

    verdicts: tuple[Verdict, ...]
    figures: tuple[Figure, ...] = ()


def guard(name: str, reason: str, look_at: str) -> Verdict:
    """The failing verdict of something that is always checked, whatever the markers say."""
    return Verdict(
        outcome="fail",
        figure=None,
        name=name,
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=reason,
        look_at=look_at,
        limit_source="guard, always checked",
    )


@dataclass(frozen=True)
class Judgement:
    """Verdicts and figures of all markers of one test."""

    verdicts: tuple[Verdict, ...] = ()
    figures: tuple[Figure, ...] = ()
    report_as: ReportAs = None

    def and_also(self, verdicts: tuple[Verdict, ...]) -> Judgement:
        """This judgement with further verdicts."""
        return replace(self, verdicts=(*self.verdicts, *verdicts))

    @property
    def further_figures(self) -> tuple[Figure, ...]:
        """Figures that no verdict holds."""
        held = [verdict.figure for verdict in self.verdicts]
        return tuple(figure for figure in self.figures if figure not in held)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts that fail."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "fail")

    @property
    def inconclusive(self) -> tuple[Verdict, ...]:
        """Verdicts that the samples could not decide."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "inconclusive")
