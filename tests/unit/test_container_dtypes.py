"""Numbers of data types and formats."""

import pytest

from pytest_cannlm.container.dtypes import cpp_dtype, format_name, proto_dtype


@pytest.mark.parametrize(
    ("number", "proto", "cpp"),
    [
        (0, "undefined", "float"),
        (1, "float", "float16"),
        (3, "int8", "int32"),
        (5, "int16", "type 5"),
        (12, "double", "bool"),
        (14, "dual_sub_int8", "dual_sub_int8"),
        (27, "bf16", "bf16"),
        (28, "int4", "undefined"),
        (29, "uint1", "int4"),
        (36, "float8_e8m0", "float8_e4m3fn"),
        (41, "hifloat4", "float4_e1m2"),
        (99, "type 99", "type 99"),
        (-1, "type -1", "type -1"),
    ],
)
def test_the_two_numberings(number: int, proto: str, cpp: str) -> None:
    assert proto_dtype(number) == proto
    assert cpp_dtype(number) == cpp


def test_formats() -> None:
    assert [format_name(number) for number in (0, 2, 29, 77)] == ["NCHW", "ND", "FRACTAL_NZ", "format 77"]
