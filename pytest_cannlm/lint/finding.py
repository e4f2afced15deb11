"""What the lint says: rules with a code, the findings they make, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_cannlm.compat.checks import one_line

if TYPE_CHECKING:
    from pytest_cannlm.lint.facts import PackageFacts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""error: the engine refuses, crashes or answers garbage. warning: suspicious or slow. note: worth knowing."""


class CannotLook(Exception):
    """A rule lacks what it would have to look at; its text says what, and becomes a "not checked"."""


@dataclass(frozen=True)
class Problem:
    """One thing that a rule found: where, what it is, what it should be, and what to do about it."""

    file: str
    field: str | None
    found: str
    expected: str
    fix: str

    def __post_init__(self) -> None:
        for name in ("file", "found", "expected", "fix"):
            object.__setattr__(self, name, one_line(getattr(self, name)))
        if self.field is not None:
            object.__setattr__(self, "field", one_line(self.field))


@dataclass(frozen=True)
class Finding:
    """A problem with the code, severity, title and reason of the rule that found it."""

    code: str
    severity: Severity
    title: str
    why: str
    file: str
    field: str | None
    found: str
    expected: str
    fix: str

    @property
    def where(self) -> str:
        """File and field."""
        return f"{self.file}: {self.field}" if self.field else self.file


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not look, and why."""

    code: str
    title: str
    reason: str


Question = Callable[["PackageFacts"], Iterator[Problem]]
"""From facts to what is wrong with them."""

READS_MODEL = "PKG080"
"""The rule that needs no more than the model to be there."""
MOST_FINDINGS = 20
"""Findings of one rule that are told apart; a clamped model has hundreds of clamped tensors."""


@dataclass(frozen=True)
class Rule:
    """One question about a package. Codes are never used again for something else."""

    code: str
    severity: Severity
    title: str
    why: str
    look: Question

    def apply(self, facts: PackageFacts) -> Iterator[Finding]:
        """Findings of this rule; raises :class:`CannotLook` where it has nothing to look at."""
        count = 0
        for count, problem in enumerate(self.look(facts), 1):
            if count <= MOST_FINDINGS:
                last = problem
                yield self._finding(problem)
        if count > MOST_FINDINGS:
            yield self._finding(replace(last, field=None, found=f"{count - MOST_FINDINGS} more like these"))

    def _finding(self, problem: Problem) -> Finding:
        return Finding(self.code, self.severity, self.title, self.why, **asdict(problem))


class RuleBook:
    """The rules of one subject, in the order in which they were written down."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(self, code: str, severity: Severity, title: str) -> Callable[[Question], Question]:
        """Decorator: make a function from facts to problems a rule.

        ``title`` says what is wrong where it fires; the function's docstring says why that matters.
        """

        def add(look: Question) -> Question:
            self.rules.append(Rule(code, severity, title, " ".join((look.__doc__ or "").split()), look))
            return look

        return add


@dataclass(frozen=True)
class LintReport:
    """Everything that the lint can say about a package.

    Attributes:
        package: the folder that was looked at.
        findings: errors first, then warnings, then notes; within one severity by code.
        checked: codes of the rules that had something to look at.
        not_checked: the rules that had not, each with its reason.
    """

    package: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def model_judged(self) -> bool:
        """Whether there was a model to look at; without one the other rules say little of the package."""
        return READS_MODEL in self.checked

    def good(self, *, strict: bool = False) -> bool:
        """The model was looked at, and there is no error, and with ``strict`` no warning either."""
        return self.model_judged and not self.of("error") and not (strict and self.of("warning"))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready facts."""
        return {
            "package": self.package,
            "counts": {severity: len(self.of(severity)) for severity in SEVERITIES},
            "findings": [asdict(finding) for finding in self.findings],
            "checked": list(self.checked),
            "not_checked": [asdict(entry) for entry in self.not_checked],
        }
