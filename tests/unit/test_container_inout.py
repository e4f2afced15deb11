"""MODEL_INOUT_INFO: what Ascend converters list as inputs and outputs comes before what the graph says."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import ASCEND, desc, graph, net_output, op, write

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inoutinfo import MAX_SIZE, InOutInfo, InOutTensor, encode_inout_info
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.writer import Partition
from pytest_cannlm.errors import ContainerError

MODEL = graph(op("Data", "x", desc(33, 1, 9), desc(34, 2, 9), attrs={"index": 0}), net_output("y"))
X = InOutTensor("x", "int8", (1, -1, 4), "NCHW", size=4, shape_v2=(1, -1, 4), ranges=((1, 1), (1, 64), (4, 4)))
Y = InOutTensor("y:0", "bf16", (2,), "ND", size=8, shape_v2=(2,))
INFO = InOutInfo((X,), (Y,), (1, 2, 4), ((224, 224), (448, 448)), ((1, 2, 3),), ("[1,2]",), ("x", "ü"))


def describe_with(path: Path, info: bytes, model: bytes = MODEL, header: HeaderFields = ASCEND) -> dict[str, Any]:
    return describe(write(path / "m.om", [Partition(8, info), model], header))


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    path = write(tmp_path / "m.om", [Partition(8, encode_inout_info(INFO)), MODEL])
    assert open_container(path).inout_info() == INFO


def test_bytes_of_a_tensor_stand_in_the_order_of_the_format() -> None:
    raw = encode_inout_info(InOutInfo(outputs=(replace(Y, ranges=((3, 5),)),)))
    assert raw[:12] == struct.pack("<iII", 0, 4, 0)
    assert raw[12:24] == struct.pack("<iII", 1, len(raw) - 20, 1)
    assert raw[24:56] == struct.pack("<QiiIIII", 8, 2, 27, 3, 8, 8, 16)
    assert raw[56:] == b"y:0" + struct.pack("<qqqq", 2, 2, 3, 5)


def test_the_list_comes_before_the_graph(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, encode_inout_info(INFO))
    assert facts["error"] is None
    assert facts["inputs"] == [
        {
            "name": "x",
            "dtype": "int8",
            "shape": (1, -1, 4),
            "format": "NCHW",
            "bytes": 4,
            "ranges": ((1, 1), (1, 64), (4, 4)),
            "index": 0,
            "inner": {"dtype": "float16", "shape": (9,), "format": "ND"},
        }
    ]
    assert facts["outputs"] == [
        {"name": "y:0", "dtype": "bf16", "shape": (2,), "format": "ND", "bytes": 8, "source": "y:0", "outer": None}
    ]
    assert facts["choices"]["image_size"] == ((224, 224), (448, 448))
    assert facts["notes"] == []


def test_a_list_that_is_not_as_long_as_the_graphs_is_noted(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, encode_inout_info(InOutInfo(inputs=(X, X))))
    assert facts["notes"] == [
        "MODEL_INOUT_INFO lists 2 inputs, the graph has 1",
        "MODEL_INOUT_INFO lists 0 outputs, the graph has 1",
    ]
    assert "choices" not in facts


def test_shape_behind_preprocessing_is_told_where_it_differs(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, encode_inout_info(InOutInfo(inputs=(replace(X, shape_v2=(1, 3, 4)),))))
    assert facts["inputs"][0]["shape_behind_preprocessing"] == (1, 3, 4)


def test_list_serves_where_the_graph_is_broken(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, encode_inout_info(INFO), graph(b"\xff"))
    assert facts["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert [item["name"] for item in facts["inputs"]] == ["x"]
    assert facts["outputs"][0]["source"] is None


def test_numbers_without_a_name_are_shown(tmp_path: Path) -> None:
    raw = bytearray(encode_inout_info(InOutInfo(inputs=(X,))))
    struct.pack_into("<ii", raw, 12 + 8, 77, 5)
    facts = describe_with(tmp_path, bytes(raw))
    assert (facts["inputs"][0]["format"], facts["inputs"][0]["dtype"]) == ("format 77", "type 5")


def test_records_of_unknown_type_are_passed(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, struct.pack("<iI3s", 99, 3, b"abc") + encode_inout_info(INFO))
    assert facts["error"] is None
    assert facts["inputs"][0]["name"] == "x"


GOOD = encode_inout_info(InOutInfo(inputs=(X,)))


def damaged(offset: int, number: int) -> bytes:
    raw = bytearray(GOOD)
    struct.pack_into("<I", raw, offset, number)
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\0" * 5, "5 are left"),
        (GOOD[:-1], "are left"),
        (damaged(4, 0xFFFFFFFF), "record of type 0 at position 0: 4294967295 bytes"),
        (damaged(8, 0x7FFFFFFF), "2147483647 items promised"),
        (damaged(8, 0), "stray bytes"),
        (damaged(28, 0xFFFFFFFF), "4294967295 bytes at position"),
        (damaged(32, 7), "7 bytes of 8-byte numbers"),
        (damaged(40, 40), "half a range"),
        (struct.pack("<iIII", 4, 8, 1, 9), "72 bytes at position"),
        (struct.pack("<iII", 5, 4, 1), "1 items promised"),
        (bytes(MAX_SIZE + 1), f"more than {MAX_SIZE}"),
    ],
)
def test_broken_list_is_named_and_leaves_the_other_facts(tmp_path: Path, raw: bytes, reason: str) -> None:
    facts = describe_with(tmp_path, raw)
    assert (facts["error"], facts["field"]) == ("OM_BAD_TLV", "MODEL_INOUT_INFO")
    assert reason in facts["message"]
    assert facts["inputs"][0]["dtype"] == "float"  # by the graph
    with pytest.raises(ContainerError, match="MODEL_INOUT_INFO is broken"):
        open_container(tmp_path / "m.om").inout_info()


def test_a_broken_graph_is_named_before_a_broken_list(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, b"\0", graph(b"\xff"))
    assert facts["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert "inputs" not in facts


def test_partition_of_that_number_is_another_one_in_a_kirin_file(tmp_path: Path) -> None:
    facts = describe_with(tmp_path, b"weights", header=HeaderFields(layout="K"))
    assert facts["error"] is None
    assert facts["partitions"][0][1] == "WEIGHT_INFO"
