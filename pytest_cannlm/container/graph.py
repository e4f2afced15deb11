"""What the gate asks of a graph: the shapes of some inputs, found without decoding the rest. Valid for Python 3.10.

Inputs are the ops of type Data, AippData and AnnData; what a caller feeds is ``input_desc[0]``, or ``output_desc[0]``
where an op has no such. OpDef: name 1, type 2, input_desc 33, output_desc 34. TensorDescriptor: shape 3. ShapeDef:
dim 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from pytest_cannlm.container.modelattrs import GRAPH_OP, MAX_KEY, MODEL_GRAPH, OP_NAME, OP_TYPE
from pytest_cannlm.container.source import ReadLimitError, Source
from pytest_cannlm.container.wire import BYTES, Field, Walk, WireError

INPUT_TYPES = ("Data", "AippData", "AnnData")
MAX_DIMENSIONS = 64

_INPUT_DESC, _OUTPUT_DESC, _SHAPE, _DIM = 33, 34, 3, 1


def read_input_shapes(
    source: Source, start: int, end: int, names: Collection[str]
) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Shapes of inputs of graph[0] of the ModelDef at ``start..end`` by name (-1 = dynamic), in one pass.

    Also whether every input that is not among them is one that the graph does not have: False where the read limit
    came first. Stops where all are found. :class:`WireError` if the message cannot be read.
    """
    walk = Walk(source)
    wanted, found = set(names), dict[str, tuple[int, ...]]()
    with suppress(ReadLimitError):
        for op in graph_ops(walk, main_graph(walk, start, end)):
            name = op_text(walk, op, OP_NAME)
            if name in wanted and op_text(walk, op, OP_TYPE) in INPUT_TYPES:
                found.setdefault(name, _fed_shape(walk, op))
            if len(found) == len(wanted):
                break
        return found, True
    return found, False


def main_graph(walk: Walk, start: int, end: int) -> Field:
    """graph[0] of the ModelDef at ``start..end``."""
    graph = next((part for part in walk.fields(start, end) if part.number == MODEL_GRAPH), None)
    if graph is None or graph.wire_type != BYTES:
        raise WireError("it has no graph")
    return graph


def graph_ops(walk: Walk, graph: Field) -> Iterator[Field]:
    """The ops of a graph where they lie."""
    return (part for part in walk.fields(graph.start, graph.end) if part.number == GRAPH_OP and part.wire_type == BYTES)


def op_text(walk: Walk, op: Field, number: int) -> str:
    """A name in an op, empty if it has none."""
    return next(
        (text(walk, p) for p in walk.fields(op.start, op.end) if p.number == number and p.wire_type == BYTES), ""
    )


def text(walk: Walk, part: Field) -> str:
    """A name; bytes that are no UTF-8 are shown as escapes. One that is absurdly long is a :class:`WireError`."""
    if part.size > MAX_KEY:
        raise WireError(f"a name of {part.size} bytes at offset {part.start}")
    return walk.raw(part).decode("utf-8", errors="backslashreplace")


def _fed_shape(walk: Walk, op: Field) -> tuple[int, ...]:
    first: dict[int, Field] = {}
    for part in walk.fields(op.start, op.end):
        if part.wire_type == BYTES:
            first.setdefault(part.number, part)
    descriptor = first.get(_INPUT_DESC) or first.get(_OUTPUT_DESC)
    return () if descriptor is None else _shape(walk, descriptor)


def _shape(walk: Walk, descriptor: Field) -> tuple[int, ...]:
    shape: list[int] = []
    for part in walk.fields(descriptor.start, descriptor.end):
        if part.number != _SHAPE or part.wire_type != BYTES:
            continue
        for dimension in walk.fields(part.start, part.end):
            if dimension.number != _DIM:
                continue
            for item in walk.varints(dimension):
                shape.append(item.signed)
                if len(shape) > MAX_DIMENSIONS:
                    raise WireError(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
    return tuple(shape)
