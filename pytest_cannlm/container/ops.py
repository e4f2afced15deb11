"""A ModelDef as far as ``inspect`` shows it: its attributes, its ops counted by type, and a few kinds of them decoded.

The walk is lazy: first over the model, which seeks past its graphs, then over graph[0]. Protobuf is given one op at a
time, of the kinds that are shown, and only up to a size; what that costs is taken from the budget of the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_cannlm.container import wire
from pytest_cannlm.container.attrnames import NameTableError, NameTables
from pytest_cannlm.container.dtypes import proto_dtype
from pytest_cannlm.container.graph import INPUT_TYPES, MAX_DIMENSIONS, op_text, text
from pytest_cannlm.container.modelattrs import (
    GRAPH_OP,
    GRAPHOP_WEIGHT_SIZE,
    MAX_KEY,
    MAX_VALUE,
    MODEL_ATTR,
    MODEL_GRAPH,
    OP_TYPE,
    AttributeValue,
    AttributeValues,
    read_map_entry,
)
from pytest_cannlm.container.schema import decode_op
from pytest_cannlm.container.source import Source
from pytest_cannlm.container.wire import BYTES, Field, Walk, WireError

OUTPUT_TYPE, COMPILED_TYPE, FILE_TYPE = "NetOutput", "GraphOp", "FileConstant"
SHAPE_OVERRIDES = ("_dynamic_aipp_input_dims", "_mbatch_origin_input_dims")
CL_NAME, TASK_OFFSET, TASK_SIZE = "cl_name", "graphop_task_offset", "graphop_task_size"
WEIGHT_OFFSET, WEIGHT_SIZE = "graphop_weight_offset", GRAPHOP_WEIGHT_SIZE
FILE_LOCATION, FILE_OFFSET, FILE_LENGTH = ("location", "file_path", "file_id"), "offset", "length"

_SHOWN_TYPES = {*INPUT_TYPES, COMPILED_TYPE, FILE_TYPE}
_SHOWN_ATTRIBUTES = {
    *("index", *SHAPE_OVERRIDES),
    *(CL_NAME, TASK_OFFSET, TASK_SIZE, WEIGHT_OFFSET, WEIGHT_SIZE),
    *(*FILE_LOCATION, FILE_OFFSET, FILE_LENGTH),
}

MAX_OP = 256 * 1024
"""Of a larger op only the fields of up to ``_MAX_FIELD`` bytes are decoded, as many as fit: longer ones hold data."""
_MAX_FIELD = 16 * 1024
_MAX_TABLE = 512 * 1024
"""Bytes of an attribute that is asked for by name, such as a table of names."""
_MAX_TENSORS = 4096
_MAX_TYPES = 1000
_OP_COST, _TENSOR_COST, _ATTRIBUTE_COST, _BYTES_PER_FIELD = 8, 2, 1, 256
"""What decoding and telling takes, in fields that are passed (measured)."""
_OTHERS = "(other types)"
_GRAPH_NAME, _MODEL_NAME = 1, 1


@dataclass(frozen=True)
class TensorFacts:
    """Type, shape (-1 = dynamic) and format of a tensor, by the vendor's names."""

    dtype: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class Op:
    """One op of a kind that is shown, with the attributes that are shown."""

    name: str
    type: str
    attrs: Mapping[str, AttributeValue]
    input_desc: tuple[TensorFacts, ...] = ()
    output_desc: tuple[TensorFacts, ...] = ()
    inputs: tuple[str, ...] = ()
    src_names: tuple[str, ...] = ()
    src_indexes: tuple[int, ...] = ()

    def number(self, name: str) -> int | None:
        """An integer attribute, None if it is not there or is something else."""
        value = self.attrs.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class ModelDef:
    """What a ModelDef says outside its graphs, and where they are."""

    name: str
    graph: Field
    """graph[0]."""
    subgraphs: int
    """How many graphs there are beside it."""
    known: Mapping[str, AttributeValue]
    """Attributes that were asked for by name."""
    others: Mapping[str, AttributeValue]


@dataclass(frozen=True)
class Graph:
    """graph[0] of a model."""

    name: str
    op_types: Mapping[str, int]
    """Type and how many ops have it, most frequent first."""
    ops: tuple[Op, ...]
    """The ops of the kinds that are shown, in graph order."""
    output: Op | None
    """Its NetOutput; of several the last one."""
    notes: tuple[str, ...]

    def of_type(self, *types: str) -> tuple[Op, ...]:
        """The shown ops of some types."""
        return tuple(op for op in self.ops if op.type in types)


def read_model(source: Source, start: int, end: int, *, known: Collection[str]) -> ModelDef:
    """The ModelDef at ``start..end``; :class:`WireError` if it is none or has no graph.

    Attributes ``known`` by name may be larger than others, and the others cannot crowd them out.
    """
    walk = Walk(source)
    name = ""
    graphs: list[Field] = []
    asked, others = AttributeValues(_MAX_TABLE), AttributeValues(MAX_VALUE)
    for part in walk.fields(start, end):
        if part.wire_type != BYTES:
            continue
        if part.number == MODEL_GRAPH:
            graphs.append(part)
        elif part.number == _MODEL_NAME:
            name = text(walk, part)
        elif part.number == MODEL_ATTR:
            key, value_at = read_map_entry(walk, part)
            if value_at is not None:
                (asked if key in known else others).add(walk, key, value_at)
    if not graphs:
        raise WireError("it has no graph")
    return ModelDef(name, graphs[0], len(graphs) - 1, asked.values, others.values)


def read_graph(source: Source, main: Field, *, tables: NameTables) -> Graph:
    """The graph at ``main``; :class:`WireError` if it cannot be read."""
    walk = Walk(source)
    name = ""
    types: Counter[str] = Counter()
    ops: list[Op] = []
    output: Op | None = None
    decoder = _Decoder(walk, tables)
    for part in walk.fields(main.start, main.end):
        if part.number == _GRAPH_NAME and part.wire_type == BYTES:
            name = text(walk, part)
        if part.number != GRAPH_OP or part.wire_type != BYTES:
            continue
        kind = op_text(walk, part, OP_TYPE)
        types[kind if kind in types or len(types) < _MAX_TYPES else _OTHERS] += 1
        if kind == OUTPUT_TYPE:
            output = decoder.read(part)
        elif kind in _SHOWN_TYPES:
            ops.append(decoder.read(part))
    return Graph(
        name=name,
        op_types=dict(types.most_common()),
        ops=tuple(ops),
        output=output,
        notes=tuple(decoder.notes()),
    )


@dataclass
class _LeftOut:
    """How often something was left out, and the first case."""

    count: int = 0
    first: str = ""

    def add(self, case: str) -> None:
        self.first = self.first or case
        self.count += 1


class _Decoder:
    """Decodes ops one by one and keeps count of what it had to leave out."""

    def __init__(self, walk: Walk, tables: NameTables) -> None:
        self._walk = walk
        self._tables = tables
        self._unresolved, self._cut = _LeftOut(), _LeftOut()

    def read(self, where: Field) -> Op:
        raw, whole = self._bounded(where)
        self._walk.budget.spend(_OP_COST + len(raw) // _BYTES_PER_FIELD)
        decoded = decode_op(raw)
        tensors = len(decoded.input_desc) + len(decoded.output_desc)
        self._walk.budget.spend(_TENSOR_COST * tensors + _ATTRIBUTE_COST * len(decoded.attr))
        name, kind = _shown(decoded.name), _shown(decoded.type)
        if not whole:
            self._cut.add(repr(name))
        attrs = self._attributes(decoded, name)
        if kind in INPUT_TYPES:  # has one tensor on either side
            return Op(name, kind, attrs, _tensors(decoded.input_desc[:1]), _tensors(decoded.output_desc[:1]))
        if kind != OUTPUT_TYPE:
            return Op(name, kind, attrs)
        return Op(
            name,
            kind,
            attrs,
            input_desc=_tensors(decoded.input_desc),
            output_desc=_tensors(decoded.output_desc),
            inputs=_texts(decoded.input),
            src_names=_texts(decoded.src_name),
            src_indexes=tuple(decoded.src_index[:_MAX_TENSORS]),
        )

    def notes(self) -> list[str]:
        """What was left out, a line per kind."""
        notes = []
        if self._unresolved.count:
            lost = self._unresolved
            notes.append(f"attributes of ops that cannot be resolved: {lost.count}, the first: {lost.first}")
        if self._cut.count:
            notes.append(f"ops shown without their largest fields: {self._cut.count}, the first: {self._cut.first}")
        return notes

    def _bounded(self, op: Field) -> tuple[bytes, bool]:
        """The bytes of an op and whether they are all of them."""
        if op.size <= MAX_OP:
            return self._walk.raw(op), True
        kept = bytearray()
        for part in self._walk.fields(op.start, op.end):
            if part.size <= _MAX_FIELD and len(kept) < MAX_OP:
                copy = wire.copied_field(part, self._walk.raw(part))
                kept += copy if len(kept) + len(copy) <= MAX_OP else b""
        return bytes(kept), False

    def _attributes(self, decoded: Any, op_name: str) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {}
        for entry in decoded.attr:
            try:
                name = self._tables.name(entry.key)
                if name not in _SHOWN_ATTRIBUTES:
                    continue
                found.pop(name, None)  # the last of two equal keys wins, even if it is one that is left out
                value = _value(entry.value)
                if value is not None:
                    found[name] = self._tables.value(entry.key, value)
            except NameTableError as error:
                self._unresolved.add(f"{error} (op {op_name!r})")
        return found


def _value(attribute: Any) -> AttributeValue | None:
    """A short value: one number, a name, or about as many numbers as a shape has. None for any other."""
    kind = attribute.WhichOneof("value")
    if kind in ("i", "dt", "b", "f"):
        number: AttributeValue = getattr(attribute, kind)
        return number
    if kind == "s" and len(attribute.s) <= MAX_KEY:
        return _shown(attribute.s)
    if kind == "list" and len(attribute.list.i) <= MAX_DIMENSIONS:
        return list(attribute.list.i)
    return None


def _tensors(descriptors: Sequence[Any]) -> tuple[TensorFacts, ...]:
    if len(descriptors) > _MAX_TENSORS:
        raise WireError(f"an op of more than {_MAX_TENSORS} tensors")
    return tuple(_tensor(descriptor) for descriptor in descriptors)


def _tensor(descriptor: Any) -> TensorFacts:
    shape = descriptor.shape.dim
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
    return TensorFacts(proto_dtype(descriptor.dtype), tuple(shape), _shown(descriptor.layout))


def _texts(items: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(_shown(item) for item in items[:_MAX_TENSORS])


def _shown(raw: bytes) -> str:
    if len(raw) > MAX_KEY:
        raise WireError(f"a name of {len(raw)} bytes")
    return raw.decode("utf-8", errors="backslashreplace")
