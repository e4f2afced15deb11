"""The record of a run: what every report is a view of.

``to_data`` gives JSON-ready data, ``from_data`` reads and checks it. JSON knows no NaN and no infinity: such a number
is written as ``{"nonfinite": "NaN" | "Infinity" | "-Infinity"}``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.measure.figures import Figure, Verdict

SCHEMA = 3

Category = Literal[
    "judged", "unlimited", "fallback", "inconclusive", "environment", "not-run", "body", "engine", "unjudged"
]
"""Why a test ended as it did: its limits were judged; its app's fallback to the cloud was judged; a limit could not be
decided; machine, device or network failed; it never ran on an NPU; or its own body failed before anything was judged.
"""

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceFacts:
    """A device that the run used."""

    name: str
    kind: str
    """"sim", "hdc", "adb" or "local"."""
    chip: str
    cann: str | None
    device_version: str | None
    simulated: bool
    ram_bytes: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TestRecord:
    """One test: where it ran, what was found, and what became of it."""

    __test__ = False  # pytest collects classes by this prefix

    nodeid: str
    outcome: Literal["passed", "failed", "skipped", "error", "xfailed", "xpassed"]
    category: Category
    model: str | None = None
    scheme: str | None = None
    device: str | None = None
    chip: str | None = None
    cann: str | None = None
    simulated: bool = False
    served_by: tuple[str, ...] = ()
    """Who answered: ``npu: …`` or ``cloud: MODEL at HOST``; empty where nobody did."""
    not_applied: tuple[str, ...] = ()
    """Markers of the test that were not judged, because the cloud answered."""
    verdicts: tuple[Verdict, ...] = ()
    figures: tuple[Figure, ...] = ()
    """Figures that no limit asked for."""
    not_run_reason: str | None = None
    error: Mapping[str, Any] | None = None
    """The error of this project that ended the test, as ``CannlmError.as_dict`` has it; ``error`` in it is the code."""
    duration_s: float | None = None


@dataclass(frozen=True)
class OptionValue:
    """A setting as it was resolved."""

    value: str
    source: str


@dataclass(frozen=True)
class RunRecord:
    """Everything that one run found."""

    created_by: str
    """Name and version of what wrote the record."""
    started: str
    """ISO 8601 with offset."""
    devices: tuple[DeviceFacts, ...] = ()
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    tests: tuple[TestRecord, ...] = ()
    schema: int = SCHEMA


def to_data(record: RunRecord | TestRecord | DeviceFacts | Figure | Verdict) -> dict[str, Any]:
    """A record as JSON-ready data: dicts, lists, texts, finite numbers, booleans, None."""
    return {f.name: _encode(getattr(record, f.name)) for f in dataclasses.fields(record)}


def from_data(cls: type[T], data: object) -> T:
    """Rebuild ``cls`` from ``to_data``'s form. Anything missing, unknown or of another type is a :class:`BadInputError`
    that names the field; so is a schema that this version does not know."""
    if cls is RunRecord and isinstance(data, Mapping) and data.get("schema") != SCHEMA:
        raise BadInputError("unknown report schema", field="schema", found=data.get("schema"), expected=SCHEMA)
    result: T = _decode(cls, data, cls.__name__)
    return result


def with_tests(run: RunRecord, tests: Iterable[TestRecord]) -> RunRecord:
    """``run`` with further tests, all in the order of their node ids: workers may finish in any order."""
    return dataclasses.replace(run, tests=tuple(sorted((*run.tests, *tests), key=lambda test: test.nodeid)))


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_data(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "item"):  # a number of an array library
        return _encode(value.item())
    return str(value)


_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(data: Any) -> Any:
    """Data without a declared type, non-finite numbers restored."""
    if isinstance(data, Mapping):
        if set(data) == {"nonfinite"} and data["nonfinite"] in _NONFINITE:
            return _NONFINITE[data["nonfinite"]]
        return {key: _plain(item) for key, item in data.items()}
    return [_plain(item) for item in data] if isinstance(data, list) else data


def _decode(kind: Any, data: Any, where: str) -> Any:
    """``data`` as the declared type ``kind``; ``where`` is its path for messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _plain(data)
    if origin is types.UnionType or origin is typing.Union:
        if data is None and type(None) in arguments:
            return None
        (only,) = (each for each in arguments if each is not type(None))
        return _decode(only, data, where)
    if origin is Literal:
        return _expect(data in arguments, data, where, data, " or ".join(map(repr, arguments)))
    if origin is tuple:
        items = _expect(isinstance(data, list), data, where, data, "a list")
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        items = _expect(isinstance(data, Mapping), data, where, data, "an object")
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in items.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    plain = _plain(data)
    if kind is float:
        is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
        return float(_expect(is_number, data, where, plain, "a number"))
    is_right = isinstance(plain, kind) and (kind is bool or not isinstance(plain, bool))
    return _expect(is_right, data, where, plain, kind.__name__)


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, Mapping), data, where, data, "an object")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in data:
        _expect(key in fields, key, f"{where}.{key}", key, f"one of {', '.join(fields)}")
    for name in fields:
        _expect(name in data, "nothing", f"{where}.{name}", None, "a value")
    return kind(**{name: _decode(hints[name], data[name], f"{where}.{name}") for name in fields})


def _expect(condition: bool, found: Any, where: str, value: Any, expected: str) -> Any:
    if not condition:
        raise BadInputError("not a report of this schema", field=where, found=repr(found)[:80], expected=expected)
    return value
