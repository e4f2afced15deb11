"""``cannlm lint``: what the lint found, for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from pytest_cannlm.cli.answers import BAD, GOOD, Answer
from pytest_cannlm.lint import Finding, LintReport, lint
from pytest_cannlm.lint.finding import SEVERITIES


def lint_package(package: Path, *, hashes: bool | None, strict: bool) -> Answer:
    """Lint a package folder; exit code 1 for an error or no model to look at, and with ``strict`` for a warning too.

    :raises BadInputError: there is no such folder.
    """
    report = lint(package, hashes=hashes)
    good = report.good(strict=strict)
    return Answer({"good": good, **report.as_dict()}, list(lines_of(report)), GOOD if good else BAD)


def lines_of(report: LintReport) -> Iterator[str]:
    """A report for people: findings, what was not checked, and the counts."""
    for finding in report.findings:
        yield from _of(finding)
    by_reason = sorted(report.not_checked, key=lambda entry: entry.reason)
    for reason, entries in groupby(by_reason, key=lambda entry: entry.reason):
        yield f"not checked: {', '.join(sorted(entry.code for entry in entries))}: {reason}"
    counts = ", ".join(_counted(len(report.of(severity)), severity) for severity in SEVERITIES)
    yield f"{report.package}: {counts}; {len(report.checked)} rules checked, {len(report.not_checked)} not"
    if not report.model_judged:
        yield f"{report.package}: not good, as no model could be looked at"


def _of(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity} {finding.code} {finding.where}: {finding.title}"
    yield f"    found {finding.found}; expected {finding.expected}"
    yield f"    why: {finding.why}"
    yield f"    fix: {finding.fix}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
