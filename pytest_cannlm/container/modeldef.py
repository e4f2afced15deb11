"""Write a ModelDef: the protobuf description of a compiled model, as a converter for Kirin writes it.

One GraphOp stands for the compiled part, between a Data op per input and one NetOutput. Field numbers: ModelDef,
GraphDef, OpDef, TensorDescriptor and AttrDef of the vendor's graph engine (package ge.mobile.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_cannlm.container import wire
from pytest_cannlm.container.dtypes import PROTO_DTYPES
from pytest_cannlm.container.modelattrs import GRAPHOP_WEIGHT_SIZE, MODEL_ATTR
from pytest_cannlm.container.source import BytesSource

DTYPES = {name: number for number, name in enumerate(PROTO_DTYPES) if 1 <= number <= 12}
"""Numbers of the data types that the Kirin schema has."""

ITEM_BYTES = {
    "float": 4,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    "double": 8,
}

Attribute = str | bytes | bool | int | float | Sequence[int] | Sequence[str]

SUBGRAPH = "SubGraph_0"
MODEL_VERSION = 2


@dataclass(frozen=True)
class TensorIO:
    """An input or output: ``dtype`` is a name of :data:`DTYPES`, ``shape`` has -1 for a dimension that varies."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_model_def(
    *,
    name: str,
    inputs: Sequence[TensorIO],
    outputs: Sequence[TensorIO],
    attrs: Mapping[str, Attribute],
    weight_size: int,
    task_size: int = 0,
) -> bytes:
    """The bytes of a MODEL_DEF partition; equal arguments give equal bytes.

    ``weight_size`` is what the GraphOp says of its weights (of the external file, if they are kept outside) and
    ``task_size`` the size of the TASK_INFO partition. Raises ``KeyError`` for a dtype that has no number.
    """
    graph_op = _op(
        SUBGRAPH,
        "GraphOp",
        sources=[f"{tensor.name}:0" for tensor in inputs],
        attrs={
            "cl_name": "NPUCL",
            "graphop_task_offset": 0,
            "graphop_task_size": task_size,
            "graphop_weight_offset": 0,
            GRAPHOP_WEIGHT_SIZE: weight_size,
        },
        input_desc=inputs,
        output_desc=outputs,
    )
    data_ops = [
        _op(tensor.name, "Data", attrs={"index": index}, input_desc=[tensor], output_desc=[tensor])
        for index, tensor in enumerate(inputs)
    ]
    net_output = _op(
        "Node_Output",
        "NetOutput",
        sources=[f"{SUBGRAPH}:{index}" for index in range(len(outputs))],
        attrs={},
        source_names=[tensor.name for tensor in outputs],
        input_desc=outputs,
        output_desc=outputs,
    )
    # The GraphOp comes first so that its weight size is found without reading past hundreds of Data ops.
    graph = b"".join(
        [
            wire.bytes_field(1, name),
            *(wire.bytes_field(4, f"{tensor.name}:0") for tensor in inputs),
            wire.bytes_field(5, "Node_Output:0"),
            *(wire.bytes_field(6, op) for op in (graph_op, *data_ops, net_output)),
        ]
    )
    head = wire.bytes_field(1, name) + wire.number_field(2, MODEL_VERSION) + wire.bytes_field(7, graph)
    return head + b"".join(wire.bytes_field(MODEL_ATTR, entry) for entry in _attr_entries(attrs))


def replace_attributes(model_def: bytes, attrs: Mapping[str, Attribute]) -> bytes:
    """``model_def`` with top-level attributes set to new values, every other byte as it was.

    Attributes that it does not have are appended. Raises ``wire.WireError`` if it is no protobuf message.
    """
    walk = wire.Walk(BytesSource(model_def))
    kept: list[bytes] = []
    position = 0
    for part in walk.fields(0, len(model_def)):
        if not (part.number == MODEL_ATTR and part.wire_type == wire.BYTES and _key_of(walk, part) in attrs):
            kept.append(model_def[position : part.end])
        position = part.end
    return b"".join(kept) + b"".join(wire.bytes_field(MODEL_ATTR, entry) for entry in _attr_entries(attrs))


def encode_attribute(value: Attribute) -> bytes:
    """An AttrDef: str as s, bytes as bt, bool as b, int as i, float as f, a list as list with its val_type."""
    if isinstance(value, str):
        return wire.bytes_field(2, value)
    if isinstance(value, bytes):
        return wire.bytes_field(7, value)
    if isinstance(value, bool):
        return wire.number_field(5, int(value))
    if isinstance(value, int):
        return wire.number_field(3, value)
    if isinstance(value, float):
        return wire.float_field(4, value)
    texts = [item for item in value if isinstance(item, str)]
    numbers = [item for item in value if isinstance(item, int)]
    if texts:
        listed = b"".join(wire.bytes_field(2, text) for text in texts) + wire.number_field(20, 1)
    elif numbers:
        listed = wire.packed_field(3, numbers) + wire.number_field(20, 2)
    else:
        listed = b""
    return wire.bytes_field(1, listed)


def _key_of(walk: wire.Walk, entry: wire.Field) -> str:
    for part in walk.fields(entry.start, entry.end):
        if part.number == 1 and part.wire_type == wire.BYTES:
            return walk.raw(part).decode("utf-8", errors="replace")
    return ""


def _attr_entries(attrs: Mapping[str, Attribute]) -> Iterator[bytes]:
    for key in sorted(attrs):
        yield wire.bytes_field(1, key) + wire.bytes_field(2, encode_attribute(attrs[key]))


def _op(
    name: str,
    kind: str,
    *,
    attrs: Mapping[str, Attribute],
    sources: Sequence[str] = (),
    source_names: Sequence[str] = (),
    input_desc: Sequence[TensorIO] = (),
    output_desc: Sequence[TensorIO] = (),
) -> bytes:
    return b"".join(
        [
            wire.bytes_field(1, name),
            wire.bytes_field(2, kind),
            *(wire.bytes_field(5, source) for source in sources),
            *(wire.bytes_field(10, entry) for entry in _attr_entries(attrs)),
            *(wire.bytes_field(24, source) for source in source_names),
            *([wire.packed_field(25, [0] * len(source_names))] if source_names else []),
            *(wire.bytes_field(33, _descriptor(tensor)) for tensor in input_desc),
            *(wire.bytes_field(34, _descriptor(tensor)) for tensor in output_desc),
        ]
    )


def _descriptor(tensor: TensorIO) -> bytes:
    count = 1
    for dimension in tensor.shape:
        count *= max(dimension, 0)
    return b"".join(
        [
            wire.number_field(2, DTYPES[tensor.dtype]),
            wire.bytes_field(3, wire.packed_field(1, tensor.shape)),
            wire.bytes_field(4, "ND"),
            wire.number_field(10, count * ITEM_BYTES[tensor.dtype]),
            wire.bytes_field(14, "NPU"),
        ]
    )
