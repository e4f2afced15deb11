"""``cannlm affinity``: what the converters will do with a graph, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pytest_cannlm.affinity import AffinityReport, Finding, OperatorVerdict, examine
from pytest_cannlm.affinity.rules import OUTCOMES, rules
from pytest_cannlm.affinity.shapes import parsed
from pytest_cannlm.cli.answers import BAD, GOOD, UNKNOWN, Answer
from pytest_cannlm.errors import UsageError

_CODES = {"refused": BAD, "unknown": UNKNOWN, "fine": GOOD}
"""Exit codes by answer, the worst answer first."""
_BOTH = "both"


def judge(model: Path, *, chip: str, path: str, shapes: Sequence[str], gears: Sequence[str]) -> Answer:
    """Hold a model against the rules of one converter, or with ``both`` of each.

    :raises UsageError: an unknown path, chip or size.
    :raises BadInputError: the file is no ONNX model.
    """
    known = tuple(rules().toolchains)
    if path not in (*known, _BOTH):
        raise UsageError("unknown path", field="--path", found=path, expected=f"{', '.join(known)} or {_BOTH}")
    given, sizes = parsed("--shape", shapes), parsed("--gears", gears)
    reports = [
        examine(model, chip=chip, toolchain=toolchain, shapes=given, gears=sizes)
        for toolchain in (known if path == _BOTH else (path,))
    ]
    answers = {report.answer for report in reports}
    answer = next(each for each in _CODES if each in answers)
    data = {
        "answer": answer,
        "file": str(model),
        "chip": reports[0].chip,
        "reports": {report.toolchain: report.as_dict() for report in reports},
    }
    return Answer(data, [line for report in reports for line in _lines(report)], _CODES[answer])


def _lines(report: AffinityReport) -> Iterator[str]:
    for outcome in OUTCOMES:
        for judged in report.of(outcome) if outcome != "fine" else ():
            yield from _of_finding(judged) if isinstance(judged, Finding) else _of_operator(judged)
    fine = [verdict for verdict in report.operators if verdict.outcome == "fine"]
    by_mark = sorted(fine, key=lambda verdict: verdict.confidence)
    for mark, verdicts in groupby(by_mark, key=lambda verdict: verdict.confidence):
        yield f"fine ({mark}): {', '.join(f'{verdict.operator} × {verdict.count}' for verdict in verdicts)}"
    counts = ", ".join(f"{len(report.of(outcome))} {outcome}" for outcome in ("refused", "unknown", "slow"))
    yield f"{report.file}: {report.toolchain} for {report.chip}: {report.answer}; {counts}; {report.nodes:,} nodes"


def _of_finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.outcome} {finding.rule}: {finding.title}"
    facts = {"found": finding.found, "expected": finding.expected, "at": _places(finding)}
    yield "    " + "; ".join(f"{label} {fact}" for label, fact in facts.items() if fact)
    yield from _reasons(finding)


def _of_operator(verdict: OperatorVerdict) -> Iterator[str]:
    yield f"{verdict.outcome} {verdict.operator} × {verdict.count}: {_places(verdict)}"
    yield from _reasons(verdict)


def _reasons(judged: Finding | OperatorVerdict) -> Iterator[str]:
    yield f"    why: {judged.why} ({judged.confidence}: {judged.source})"
    if judged.instead:
        yield f"    instead: {judged.instead}"


def _places(judged: Finding | OperatorVerdict) -> str:
    rest = judged.count - len(judged.where)
    return ", ".join(judged.where) + (f" and {rest} more" if rest else "")
