"""``cannlm check``: the gate's answer for people, and everything that it rests on for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pytest_cannlm.cli.answers import BAD, GOOD, UNKNOWN, Answer
from pytest_cannlm.compat import checks
from pytest_cannlm.compat.checks import Check
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.compat.places import folder_and_manifest
from pytest_cannlm.errors import BadInputError

_EXIT = {"load": GOOD, "refuse": BAD, "unknown": UNKNOWN}
_TARGET = ("chip", "cann", "simulated", "policy", "on_unknown", "opp_version", "host_os", "host_cpu")
_NOT_LOOKED_AT = ("other settings", "the tokenizer", "the weights")


def check_package(path: Path, target: Target) -> Answer:
    """Ask the gate; exit code 1 for "refuse" and 4 for "unknown".

    :raises BadInputError: there is nothing at ``path``.
    """
    if not path.exists():
        raise BadInputError("there is no such file or folder", file=path, expected="a package folder or a model file")
    folder, manifest = folder_and_manifest(path)
    decision = decide(folder, target, manifest=manifest)
    beyond = _NOT_LOOKED_AT if decision.answer == "load" and folder.is_dir() else ()
    data = {
        "answer": decision.answer,
        "code": decision.code,
        "package": str(folder),
        "target": {name: value for name, value in asdict(target).items() if name in _TARGET},
        "reasons": decision.reasons(),
        "checks": [asdict(check) for check in decision.checks],
        "not_looked_at": list(beyond),
        "bytes_read": decision.bytes_read,
    }
    lines = [decision.answer + (f": {decision.code}" if decision.code else "")]
    for check in sorted(decision.checks, key=_weight):
        if check.outcome != "ok" or check.name == checks.CANN:
            lines += _block(check)
    if beyond:
        lines.append(f"  not looked at: {', '.join(beyond)} (cannlm lint {path})")
    return Answer(data, lines, _EXIT[decision.answer])


def _weight(check: Check) -> int:
    """Where a check stands among the others: what refuses first, what holds last."""
    return ("mismatch", "unknown", "off", "ok").index(check.outcome)


def _block(check: Check) -> Iterator[str]:
    code = f" ({check.code})" if check.code else ""
    yield f"  {check.name} {check.outcome}{code}: {check.rule}"
    yield f"    found: {check.found} ({check.found_in})"
    yield f"    expected: {check.expected} ({check.expected_from})"
    if check.remedy:
        yield f"    remedy: {check.remedy}"
