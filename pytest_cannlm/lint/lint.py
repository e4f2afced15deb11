"""Apply every rule to a package."""

from __future__ import annotations

from pathlib import Path

from pytest_cannlm.errors import BadInputError, CannlmError
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import SEVERITIES, CannotLook, Finding, LintReport, NotChecked
from pytest_cannlm.lint.rules import RULES


def lint(package: Path, *, hashes: bool | None = None) -> LintReport:
    """Judge the package folder ``package``, or the one in it that has a manifest beside it. Nothing is changed.

    Args:
        package: a folder of our own build, or one made elsewhere, without a manifest.
        hashes: hold every file against the manifest's sha256; None does so for packages of up to 1 GiB.

    Returns:
        Findings, and the rules that had nothing to look at. A broken package is a report, never an exception.

    Raises:
        BadInputError: ``package`` is no folder.
    """
    if not package.is_dir():
        raise BadInputError(
            "not a package folder",
            file=package,
            found="a file" if package.exists() else "nothing",
            expected="the folder that holds executor.json, or the one above it",
        )
    facts = PackageFacts.of(package, hashes=hashes)
    findings: list[Finding] = []
    checked: list[str] = []
    not_checked: list[NotChecked] = []
    for rule in RULES:
        found: list[Finding] = []
        try:
            found.extend(rule.apply(facts))
            checked.append(rule.code)
        except (CannotLook, CannlmError, OSError) as cause:
            # What a rule found before it could not look further stands all the same.
            not_checked.append(NotChecked(rule.code, rule.title, _reason(cause)))
        findings += found
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.code))
    return LintReport(str(facts.folder), tuple(findings), tuple(checked), tuple(not_checked))


def _reason(cause: CannotLook | CannlmError | OSError) -> str:
    if isinstance(cause, CannlmError):
        return cause.message
    if isinstance(cause, OSError):
        return f"the operating system refused: {cause.strerror or cause}"
    return str(cause)
