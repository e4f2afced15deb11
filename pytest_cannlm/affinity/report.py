"""What affinity says of a model: findings, and a verdict for each kind of node."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_cannlm.affinity.rules import OUTCOMES, Outcome

FIRST = 3
"""So many places are named; the rest is counted."""


@dataclass(frozen=True)
class Finding:
    """One thing that a rule of the model as a whole found.

    Attributes:
        rule: its name in ``rules.json``.
        outcome: what becomes of the model because of it.
        title: what it is.
        found: what the model has.
        expected: what it should have, where that is a value.
        where: the first places that have it.
        count: how many places have it.
        why, instead: the reason, and what to do.
        source, confidence: where the rule comes from, and how sure it is.
    """

    rule: str
    outcome: Outcome
    title: str
    found: str
    expected: str
    where: tuple[str, ...]
    count: int
    why: str
    instead: str
    source: str
    confidence: str


@dataclass(frozen=True)
class OperatorVerdict:
    """Nodes of one operator that one rule judges alike. ``where``: the first of them by name."""

    operator: str
    """With its domain, as in ``com.microsoft::MatMulNBits``; the standard domain is left out."""
    outcome: Outcome
    count: int
    where: tuple[str, ...]
    why: str
    instead: str
    source: str
    confidence: str

    @property
    def title(self) -> str:
        """The operator: what a finding has as its title."""
        return self.operator


@dataclass(frozen=True)
class AffinityReport:
    """Everything that is known of one model, one converter and one chip.

    Attributes:
        file: the model, as it was given.
        chip, toolchain: whose rules were applied.
        nodes: nodes of the graph, of inner graphs and of local functions.
        operators: the worst first, then by name.
        findings: the worst first.
    """

    file: str
    chip: str
    toolchain: str
    nodes: int
    operators: tuple[OperatorVerdict, ...]
    findings: tuple[Finding, ...]

    @property
    def answer(self) -> Literal["refused", "unknown", "fine"]:
        """``refused`` if anything is; else ``unknown`` if anything is; else ``fine``, which may be slow."""
        outcomes = {each.outcome for each in self._all()}
        if "refused" in outcomes:
            return "refused"
        return "unknown" if "unknown" in outcomes else "fine"

    def of(self, outcome: Outcome) -> tuple[Finding | OperatorVerdict, ...]:
        """Findings and operators with this outcome."""
        return tuple(each for each in self._all() if each.outcome == outcome)

    def _all(self) -> tuple[Finding | OperatorVerdict, ...]:
        return self.findings + self.operators

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready facts."""
        return {
            "answer": self.answer,
            "chip": self.chip,
            "toolchain": self.toolchain,
            "nodes": self.nodes,
            "counts": {outcome: len(self.of(outcome)) for outcome in OUTCOMES},
            "operators": [asdict(verdict) for verdict in self.operators],
            "findings": [asdict(finding) for finding in self.findings],
        }
