"""Figures and verdicts as JUnit properties: (name, value) pairs of texts that survive XML, xdist and every reader."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.report.record import RunRecord, TestRecord
from pytest_cannlm.report.text import visible

Property = tuple[str, str]


def properties_of(test: TestRecord) -> list[Property]:
    """Properties of one test: where it ran, its error, then per verdict value, unit, kind, limit and outcome.

    Values are unrounded, units stand apart, and characters that XML cannot hold are visible escapes.
    """
    return [(name, visible(value)) for name, value in _test(test)]


def suite_properties(run: RunRecord) -> list[Property]:
    """Properties of the whole run: schema, creator, and the facts of each device."""
    pairs = [("cannlm.schema", str(run.schema)), ("cannlm.created_by", run.created_by), ("cannlm.started", run.started)]
    for number, device in enumerate(run.devices):
        pairs += [
            (f"cannlm.device{number}.{name}", str(value))
            for name, value in (
                ("name", device.name),
                ("chip", device.chip),
                ("cann", device.cann),
                ("device_version", device.device_version),
                ("simulated", _flag(device.simulated)),
            )
            if value is not None
        ]
    return [(name, visible(value)) for name, value in pairs]


def _test(test: TestRecord) -> Iterator[Property]:
    for name in ("model", "scheme", "device", "chip", "cann", "category", "not_run_reason"):
        value = getattr(test, name)
        if value is not None:
            yield f"cannlm.{name}", str(value)
    for name, values in (("served_by", test.served_by), ("not_applied", test.not_applied)):
        if values:
            yield f"cannlm.{name}", ", ".join(values)
    yield "cannlm.simulated", _flag(test.simulated)
    for fact, value in (test.error or {}).items():
        if isinstance(value, str):
            yield "cannlm.error" if fact == "error" else f"cannlm.error.{fact}", value
    for verdict in test.verdicts:
        name = "_".join(verdict.name.split())  # readers split names at blanks
        yield f"cannlm.{name}.verdict", verdict.outcome
        if verdict.limit is not None:
            yield f"cannlm.{name}.limit", repr(verdict.limit)
        if verdict.figure is not None:
            yield from _figure(name, verdict.figure)
        if verdict.outcome != "pass":
            yield f"cannlm.{name}.reason", verdict.reason
    for figure in test.figures:
        yield from _figure(figure.name, figure)


def _figure(name: str, figure: Figure) -> Iterator[Property]:
    yield f"cannlm.{name}.value", repr(figure.value)
    yield f"cannlm.{name}.unit", figure.unit
    yield f"cannlm.{name}.kind", figure.kind


def _flag(value: bool) -> str:
    return "true" if value else "false"
