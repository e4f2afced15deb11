"""The messages of a graph that ``inspect`` decodes with the protobuf library: a minimal schema, built when imported.

Field numbers are those of the vendor's graph engine (packages ge.proto and ge.mobile.proto). Text is declared as bytes,
because files hold names that are no UTF-8, and maps as lists of entries, for the same reason. Nothing here nests in
itself, so no file can make the decoder go deep; kinds of attributes that are not shown stay undecoded.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from pytest_cannlm.container.wire import WireError

_PACKAGE = "cannlm"
_ONE_OF = {"AttrDef"}
"""Messages of which only one field is set, the last one in the file."""
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "OpDef": (
        ("name", 1, "bytes"),
        ("type", 2, "bytes"),
        ("input", 5, "bytes*"),
        ("attr", 10, "AttrEntry*"),
        ("src_name", 24, "bytes*"),
        ("src_index", 25, "int64*"),
        ("input_desc", 33, "TensorDescriptor*"),
        ("output_desc", 34, "TensorDescriptor*"),
    ),
    "TensorDescriptor": (("dtype", 2, "int64"), ("shape", 3, "ShapeDef"), ("layout", 4, "bytes")),
    "ShapeDef": (("dim", 1, "int64*"),),
    "AttrEntry": (("key", 1, "bytes"), ("value", 2, "AttrDef")),
    "AttrDef": (
        ("list", 1, "ListValue"),
        ("s", 2, "bytes"),
        ("i", 3, "int64"),
        ("f", 4, "float"),
        ("b", 5, "bool"),
        ("dt", 15, "int64"),
    ),
    "ListValue": (("i", 3, "int64*"),),
}


def decode_op(data: bytes) -> Any:
    """An OpDef; :class:`WireError` if it is none. The caller bounds ``data``: decoded, it grows up to thirty times."""
    op = _OP_CLASS()
    try:
        op.ParseFromString(data)
    except message.DecodeError as error:
        raise WireError(f"an op that protobuf cannot decode ({error})") from error
    return op


def _build() -> Any:
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"bytes": field_type.TYPE_BYTES, "int64": field_type.TYPE_INT64}
    scalars |= {"float": field_type.TYPE_FLOAT, "bool": field_type.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        if name in _ONE_OF:
            described.oneof_decl.add(name="value")
        for field_name, number, kind in fields:
            base = kind.removesuffix("*")
            field = described.field.add(
                name=field_name,
                number=number,
                label=field_type.LABEL_REPEATED if kind.endswith("*") else field_type.LABEL_OPTIONAL,
                type=scalars.get(base, field_type.TYPE_MESSAGE),
            )
            if base not in scalars:
                field.type_name = f".{_PACKAGE}.{base}"
            if name in _ONE_OF:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()  # our own: another package may register messages of the same names
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.OpDef"))


_OP_CLASS = _build()
