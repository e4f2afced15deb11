"""The vendor's two numberings of data types, and its tensor formats. Valid for Python 3.10.

Tensor descriptors of a graph use the proto enum; MODEL_INOUT_INFO and attributes named ``data_type`` use the C++ enum.
"""

from __future__ import annotations

_SHARED = (
    *("dual_sub_int8", "dual_sub_uint8", "complex64", "complex128", "qint8", "qint16", "qint32", "quint8", "quint16"),
    *("resource", "string_ref", "dual", "variant", "bf16"),
)
"""Numbers 14 to 27 mean the same in both enums."""
_SMALL_FLOATS = (
    *("complex32", "hifloat8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0", "float6_e3m2", "float6_e2m3"),
    *("float4_e2m1", "float4_e1m2", "hifloat4"),
)

PROTO_DTYPES = (
    *("undefined", "float", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64"),
    *("bool", "double", "string", *_SHARED, "int4", "uint1", "int2", "uint2", *_SMALL_FLOATS),
)
"""Names of the proto enum DataType by number; the Kirin schema has the first thirteen."""

CPP_DTYPES = (
    *("float", "float16", "int8", "int32", "uint8", "type 5", "int16", "uint16", "uint32", "int64", "uint64"),
    *("double", "bool", "string", *_SHARED, "undefined", "int4", "uint1", "int2", "uint2", *_SMALL_FLOATS),
)
"""Names of the C++ enum DataType by number; 5 is unused."""

FORMATS = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    3: "NC1HWC0",
    4: "FRACTAL_Z",
    16: "HWCN",
    27: "NDHWC",
    29: "FRACTAL_NZ",
    30: "NCDHW",
}
"""Names of the C++ enum Format by number, as far as they are known."""


def proto_dtype(number: int) -> str:
    """Name of a proto DataType; ``type N`` where it has none."""
    return PROTO_DTYPES[number] if 0 <= number < len(PROTO_DTYPES) else f"type {number}"


def cpp_dtype(number: int) -> str:
    """Name of a C++ DataType; ``type N`` where it has none."""
    return CPP_DTYPES[number] if 0 <= number < len(CPP_DTYPES) else f"type {number}"


def format_name(number: int) -> str:
    """Name of a C++ Format; ``format N`` where it has none."""
    return FORMATS.get(number, f"format {number}")
