"""Inputs and outputs of a model as its main graph states them. Valid for Python 3.10.

Inputs are the ops of type Data, AippData and AnnData, ordered by their attribute ``index``; what a caller feeds is
``input_desc[0]``, what the graph makes of it is ``output_desc[0]``. Outputs are the ``input_desc`` of NetOutput, whose
``output_desc`` may hold the type outside. OpDef: name 1, type 2, input 5, attr 10, src_name 24, src_index 25,
input_desc 33, output_desc 34. TensorDescriptor: dtype 2, shape 3, layout 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_cannlm.container.layout import Dialect
from pytest_cannlm.container.modelattrs import (
    GRAPH_OP,
    MAX_FIELDS,
    MAX_KEY,
    MODEL_GRAPH,
    OP_ATTR,
    OP_TYPE,
    AttributeValue,
    read_map_entry,
    read_value,
)
from pytest_cannlm.container.source import Source
from pytest_cannlm.container.wire import BYTES, VARINT, Field, WireError, fields, varints

DTYPE_NAMES = (
    *("undefined", "float", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64"),
    *("bool", "double", "string", "dual_sub_int8", "dual_sub_uint8", "complex64", "complex128", "qint8", "qint16"),
    *("qint32", "quint8", "quint16", "resource", "string_ref", "dual", "variant", "bf16", "int4", "uint1", "int2"),
    *("uint2", "complex32", "hifloat8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0", "float6_e3m2", "float6_e2m3"),
    *("float4_e2m1", "float4_e1m2", "hifloat4"),
)
"""Names of the proto enum DataType by number; the Kirin schema has the first thirteen."""

OUT_NODES = "attr_model_out_nodes_name"
MAX_DIMENSIONS = 64

_INPUT_TYPES = ("Data", "AippData", "AnnData")
_OUTPUT_TYPE = "NetOutput"
_NAME, _INPUT, _SRC_NAME, _SRC_INDEX, _INPUT_DESC, _OUTPUT_DESC = 1, 5, 24, 25, 33, 34
_DTYPE, _SHAPE, _LAYOUT, _DIM = 2, 3, 4, 1
_SHAPE_OVERRIDES = ("_dynamic_aipp_input_dims", "_mbatch_origin_input_dims")
_WANTED = ("index", *_SHAPE_OVERRIDES)
_MAX_VALUE = 4096


@dataclass(frozen=True)
class TensorFacts:
    """Type, shape (-1 = dynamic) and format of a tensor, by the vendor's names."""

    dtype: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class GraphInput:
    """What a caller feeds, and the tensor behind the conversion that the graph does itself (None if not stated)."""

    name: str
    index: int
    outer: TensorFacts
    inner: TensorFacts | None


@dataclass(frozen=True)
class GraphOutput:
    """What the graph computes, where it comes from, and its type outside (None if not stated)."""

    name: str
    source: str
    inner: TensorFacts
    outer: TensorFacts | None


@dataclass
class _Op:
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    attrs: dict[str, AttributeValue] = field(default_factory=dict)
    src_names: list[str] = field(default_factory=list)
    src_indexes: list[int] = field(default_factory=list)
    input_desc: list[TensorFacts] = field(default_factory=list)
    output_desc: list[TensorFacts] = field(default_factory=list)


def read_inputs_outputs(
    source: Source, start: int, end: int, *, dialect: Dialect, out_nodes: Sequence[str]
) -> tuple[tuple[GraphInput, ...], tuple[GraphOutput, ...]]:
    """Inputs and outputs of graph[0] of the ModelDef at ``start..end``; :class:`WireError` if it cannot be read.

    ``out_nodes`` is the model's attribute ``attr_model_out_nodes_name``, by which Ascend names its outputs.
    """
    inputs: list[_Op] = []
    outputs: tuple[GraphOutput, ...] = ()
    for op in _ops(source, start, end):
        kind = _op_text(source, op, OP_TYPE)
        if kind in _INPUT_TYPES:
            inputs.append(_read_op(source, op))
        elif kind == _OUTPUT_TYPE:
            outputs = _outputs(_read_op(source, op), dialect, out_nodes)
    return _inputs(inputs), outputs


def read_input_shape(source: Source, start: int, end: int, name: str) -> tuple[int, ...] | None:
    """Shape of one input of graph[0] of the ModelDef at ``start..end``, None if there is none of that name."""
    for op in _ops(source, start, end):
        if _op_text(source, op, _NAME) == name and _op_text(source, op, OP_TYPE) in _INPUT_TYPES:
            return _inputs([_read_op(source, op)])[0].outer.shape
    return None


def _ops(source: Source, start: int, end: int) -> Iterator[Field]:
    graph = next((part for part in fields(source, start, end) if part.number == MODEL_GRAPH), None)
    if graph is None or graph.wire_type != BYTES:
        raise WireError("it has no graph")
    for count, part in enumerate(fields(source, graph.start, graph.end)):
        if count >= MAX_FIELDS:
            raise WireError(f"a graph of more than {MAX_FIELDS} parts")
        if part.number == GRAPH_OP and part.wire_type == BYTES:
            yield part


def _inputs(ops: Sequence[_Op]) -> tuple[GraphInput, ...]:
    described = []
    for position, op in enumerate(ops):
        index = op.attrs.get("index")
        facts = (op.input_desc or op.output_desc or [TensorFacts("undefined", (), "")])[0]
        shape = _overridden_shape(op.attrs) or facts.shape
        described.append(
            GraphInput(
                name=op.name,
                index=index if isinstance(index, int) else position,
                outer=TensorFacts(facts.dtype, shape, facts.format),
                inner=op.output_desc[0] if op.output_desc else None,
            )
        )
    return tuple(sorted(described, key=lambda item: item.index))


def _overridden_shape(attrs: Mapping[str, AttributeValue]) -> tuple[int, ...] | None:
    for key in _SHAPE_OVERRIDES:
        value = attrs.get(key)
        if isinstance(value, list) and value:
            return tuple(item for item in value if isinstance(item, int))
    return None


def _outputs(op: _Op, dialect: Dialect, out_nodes: Sequence[str]) -> tuple[GraphOutput, ...]:
    described = []
    for position, inner in enumerate(op.input_desc):
        name, index = _source_of(op, position)
        if dialect == "kirin":
            shown = f"{name}:{index}"
        elif len(out_nodes) == len(op.input_desc):
            node = out_nodes[position]
            shown = node if ":" in node else f"{node}:{index}"
        else:
            shown = f"output_{position}_{name}_{index}"
        outer = op.output_desc[position] if position < len(op.output_desc) else None
        described.append(GraphOutput(shown, f"{name}:{index}", inner, outer))
    return tuple(described)


def _source_of(op: _Op, position: int) -> tuple[str, int]:
    """src_name and src_index; vendor test data can lack them, then the op's own input says it as "op:index"."""
    if position < len(op.src_names):
        return op.src_names[position], op.src_indexes[position] if position < len(op.src_indexes) else 0
    name, _, index = (op.inputs[position] if position < len(op.inputs) else "").rpartition(":")
    return name, int(index) if index.isascii() and index.isdecimal() and len(index) < 10 else 0


def _op_text(source: Source, op: Field, number: int) -> str:
    for part in fields(source, op.start, op.end):
        if part.number == number and part.wire_type == BYTES:
            return _text(source, part)
    return ""


def _read_op(source: Source, op: Field) -> _Op:
    read = _Op()
    for part in fields(source, op.start, op.end):
        if part.number == _SRC_INDEX:
            read.src_indexes += [item.signed for item in varints(source, part)]
        elif part.wire_type != BYTES:
            continue
        elif part.number == _NAME:
            read.name = _text(source, part)
        elif part.number == _INPUT:
            read.inputs.append(_text(source, part))
        elif part.number == _SRC_NAME:
            read.src_names.append(_text(source, part))
        elif part.number == OP_ATTR:
            key, value_at = read_map_entry(source, part)
            value = read_value(source, value_at, _MAX_VALUE) if value_at is not None and key in _WANTED else None
            if value is not None:
                read.attrs[key] = value
        elif part.number == _INPUT_DESC:
            read.input_desc.append(_descriptor(source, part))
        elif part.number == _OUTPUT_DESC:
            read.output_desc.append(_descriptor(source, part))
    return read


def _descriptor(source: Source, descriptor: Field) -> TensorFacts:
    dtype, shape, layout = 0, [], ""
    for part in fields(source, descriptor.start, descriptor.end):
        if part.number == _DTYPE and part.wire_type == VARINT:
            dtype = part.value
        elif part.number == _SHAPE and part.wire_type == BYTES:
            for dimension in fields(source, part.start, part.end):
                if dimension.number == _DIM:
                    shape += [item.signed for item in varints(source, dimension)]
                if len(shape) > MAX_DIMENSIONS:
                    raise WireError(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
        elif part.number == _LAYOUT and part.wire_type == BYTES:
            layout = _text(source, part)
    name = DTYPE_NAMES[dtype] if dtype < len(DTYPE_NAMES) else f"type {dtype}"
    return TensorFacts(name, tuple(shape), layout)


def _text(source: Source, part: Field) -> str:
    if part.size > MAX_KEY:
        raise WireError(f"a name of {part.size} bytes at offset {part.start}")
    return source.at(part.start, part.size).decode("utf-8", errors="backslashreplace")
