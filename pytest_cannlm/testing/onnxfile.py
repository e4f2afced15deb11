"""What a converter's double looks at in an ONNX model, read without onnx so that a double starts at once.

Field numbers: onnx.proto3 of the ONNX project. The weights themselves are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pytest_cannlm.container.source import BytesSource
from pytest_cannlm.container.wire import BYTES, Field, Walk

FLOAT, INT8, INT32, INT64, FLOAT16 = 1, 3, 6, 7, 10


@dataclass(frozen=True)
class Value:
    """An input or output: element type by number, dimensions with -1 for what is not fixed."""

    name: str
    dtype: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Weight:
    """An initializer; ``location`` is the file that holds it, None if the model does."""

    name: str
    dtype: int
    count: int
    location: str | None


@dataclass(frozen=True)
class OnnxFile:
    """The parts of a model that a converter can refuse."""

    opset: int
    """Of the standard domain; 0 where none is imported."""
    nodes: tuple[tuple[str, str], ...]
    """Name and type."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Weight, ...]


def read_onnx(path: Path) -> OnnxFile:
    """Read a model; ``WireError`` or ``OSError`` if it is none."""
    data = path.read_bytes()
    walk = Walk(BytesSource(data))
    whole = Field(0, BYTES, 0, len(data))
    opsets = [(_text(walk, one, 1), _number(walk, one, 2)) for one in _parts(walk, whole, 8)]
    graph = next(_parts(walk, whole, 7), Field(7, BYTES, 0, 0))
    return OnnxFile(
        opset=next((version for domain, version in opsets if domain in ("", "ai.onnx")), 0),
        nodes=tuple((_text(walk, node, 3), _text(walk, node, 4)) for node in _parts(walk, graph, 1)),
        inputs=tuple(_value(walk, value) for value in _parts(walk, graph, 11)),
        outputs=tuple(_value(walk, value) for value in _parts(walk, graph, 12)),
        weights=tuple(_weight(walk, tensor) for tensor in _parts(walk, graph, 5)),
    )


def _value(walk: Walk, value: Field) -> Value:
    tensor = next((inner for kind in _parts(walk, value, 2) for inner in _parts(walk, kind, 1)), Field(1, BYTES, 0, 0))
    dims = [
        next((field.signed for field in walk.fields(dim.start, dim.end) if field.number == 1), -1)
        for shape in _parts(walk, tensor, 2)
        for dim in _parts(walk, shape, 1)
    ]
    return Value(_text(walk, value, 1), _number(walk, tensor, 1), tuple(dims))


def _weight(walk: Walk, tensor: Field) -> Weight:
    dims = [
        number.signed
        for field in walk.fields(tensor.start, tensor.end)
        if field.number == 1
        for number in walk.varints(field)
    ]
    entries = {_text(walk, entry, 1): _text(walk, entry, 2) for entry in _parts(walk, tensor, 13)}
    return Weight(_text(walk, tensor, 8), _number(walk, tensor, 2), prod(dims), entries.get("location"))


def _parts(walk: Walk, message: Field, number: int) -> Iterator[Field]:
    """The fields of ``message`` with that number that are messages or texts themselves."""
    for field in walk.fields(message.start, message.end):
        if field.number == number and field.wire_type == BYTES:
            yield field


def _text(walk: Walk, message: Field, number: int) -> str:
    return next((walk.raw(field).decode("utf-8", "replace") for field in _parts(walk, message, number)), "")


def _number(walk: Walk, message: Field, number: int) -> int:
    return next((f.value for f in walk.fields(message.start, message.end) if f.number == number), 0)
