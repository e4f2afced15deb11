"""Apply every rule to a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from pytest_cannlm.affinity import constants, formats, interface, patterns
from pytest_cannlm.affinity.operators import verdicts
from pytest_cannlm.affinity.report import FIRST, AffinityReport, Finding
from pytest_cannlm.affinity.rules import OUTCOMES, rules
from pytest_cannlm.affinity.shapes import Given, real_inputs, resolve
from pytest_cannlm.affinity.source import read_model
from pytest_cannlm.affinity.subject import Check, Problem, Subject
from pytest_cannlm.affinity.walk import scopes
from pytest_cannlm.compat import chips
from pytest_cannlm.errors import UsageError

CHECKS: tuple[Check, ...] = (
    formats.ir_version,
    formats.opsets,
    formats.parts,
    formats.flow,
    interface.types,
    interface.shapes,
    interface.ranks,
    interface.names,
    interface.kv_cache,
    constants.integers,
    constants.external,
    patterns.rope,
    patterns.attention,
    patterns.large_weights,
)

_NOTHING: Mapping[str, tuple[int, ...]] = {}


def examine(
    path: Path, *, chip: str, toolchain: str, shapes: Given = _NOTHING, gears: Given = _NOTHING
) -> AffinityReport:
    """Judge the ONNX model in ``path``. Its external data is looked for, and never read.

    Args:
        path: the ``.onnx`` file.
        chip: any spelling of a known chip.
        toolchain: ``omg`` or ``atc``.
        shapes: whole shapes by the names of inputs.
        gears: sizes by the names of symbolic dimensions.

    Raises:
        BadInputError: it is not an ONNX model, or a damaged one.
        UsageError: an unknown chip or converter, or sizes that cannot be.
        EnvironmentFailure: the file cannot be read.
    """
    chip = _known(chip, toolchain)
    rule = rules().general["file-size"]
    if path.is_file() and path.stat().st_size >= rule.limit[toolchain]:
        problem = Problem("file-size", path.name, f"{path.stat().st_size} bytes", f"below {rule.limit[toolchain]}")
        return AffinityReport(str(path), chip, toolchain, 0, (), _findings([problem], toolchain, chip))
    return _examine(read_model(path), path=path, chip=chip, toolchain=toolchain, shapes=shapes, gears=gears)


def examine_model(
    model: onnx.ModelProto, *, chip: str, toolchain: str, shapes: Given = _NOTHING, gears: Given = _NOTHING
) -> AffinityReport:
    """As :func:`examine`, for a model in memory: where its external data lies is judged by the text alone."""
    return _examine(model, path=None, chip=_known(chip, toolchain), toolchain=toolchain, shapes=shapes, gears=gears)


def _examine(
    model: onnx.ModelProto, *, path: Path | None, chip: str, toolchain: str, shapes: Given, gears: Given
) -> AffinityReport:
    subject = Subject(
        model=model,
        scopes=scopes(model),
        sizes=resolve(real_inputs(model.graph), shapes=shapes, gears=gears),
        toolchain=toolchain,
        chip=chip,
        path=path,
    )
    return AffinityReport(
        file=str(path or model.graph.name),
        chip=chip,
        toolchain=toolchain,
        nodes=sum(len(scope.nodes) for scope in subject.scopes),
        operators=verdicts(subject),
        findings=_findings((problem for check in CHECKS for problem in check(subject)), toolchain, chip),
    )


def _known(chip: str, toolchain: str) -> str:
    if toolchain not in rules().toolchains:
        expected = "one of " + ", ".join(rules().toolchains)
        raise UsageError("unknown converter", field="toolchain", found=toolchain, expected=expected)
    normal = chips.normalize(chip)
    if normal not in chips.known_chips():
        expected = "one of " + ", ".join(chips.known_chips())
        raise UsageError("unknown chip", field="chip", found=chips.shown(chip), expected=expected)
    return normal


def _findings(problems: Iterable[Problem], toolchain: str, chip: str) -> tuple[Finding, ...]:
    """One finding for all places with the same problem."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for problem in problems:
        if rules().general[problem.rule].holds(toolchain, chip):
            places.setdefault((problem.rule, problem.found, problem.expected), []).append(problem.where)
    found = []
    for (name, value, expected), where in places.items():
        rule = rules().general[name]
        found.append(
            Finding(
                rule=name,
                outcome=rule.outcome,
                title=rule.title,
                found=value,
                expected=expected,
                where=tuple(where[:FIRST]),
                count=len(where),
                why=rule.why,
                instead=rule.instead,
                source=rule.source,
                confidence=rule.confidence,
            )
        )
    return tuple(sorted(found, key=lambda finding: OUTCOMES.index(finding.outcome)))
