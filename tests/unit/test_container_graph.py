"""Inputs and outputs: names, order and types by the vendor's rules."""

from pathlib import Path

import pytest

from pytest_cannlm.container import wire
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.graph import GraphInput, GraphOutput, TensorFacts
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HeaderFields, Layout
from pytest_cannlm.container.modeldef import TensorIO, encode_attribute, encode_model_def, replace_attributes
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.errors import ContainerError


def write(path: Path, model: bytes, layout: Layout = "K") -> Path:
    header = HeaderFields(layout=layout, platform_version=b"1.11.z.0" if layout != "K" else b"")
    write_container(path, header=header, partitions=[Partition(0, model)])
    return path


def op(kind: str, name: str = "op", *rest: bytes, **attrs: int | list[int]) -> bytes:
    entries = [wire.bytes_field(1, key) + wire.bytes_field(2, encode_attribute(value)) for key, value in attrs.items()]
    body = wire.bytes_field(1, name) + wire.bytes_field(2, kind) + b"".join(rest)
    return wire.bytes_field(6, body + b"".join(wire.bytes_field(10, entry) for entry in entries))


def desc(number: int, dtype: int, *shape: int, layout: str = "ND") -> bytes:
    dims = wire.bytes_field(3, b"".join(wire.number_field(1, dim) for dim in shape))  # unpacked, as some writers do
    return wire.bytes_field(number, wire.number_field(2, dtype) + dims + wire.bytes_field(4, layout))


def graph(*parts: bytes) -> bytes:
    return wire.bytes_field(7, b"".join(parts))


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    model = encode_model_def(
        name="m",
        inputs=[TensorIO("input_embed", "int8", (1, -1, 64)), TensorIO("position_ids", "int32", (1, -1))],
        outputs=[TensorIO("lm_logits", "float", (1, -1, 500))],
        attrs={},
        weight_size=0,
    )
    inputs, outputs = open_container(write(tmp_path / "m.omc", model)).inputs_outputs()
    assert [(item.name, item.index, item.outer.dtype, item.outer.shape) for item in inputs] == [
        ("input_embed", 0, "int8", (1, -1, 64)),
        ("position_ids", 1, "int32", (1, -1)),
    ]
    assert [(item.source, item.inner.dtype, item.inner.shape) for item in outputs] == [
        ("lm_logits:0", "float", (1, -1, 500))
    ]


def test_inputs_are_ordered_by_index_and_show_both_sides_of_the_conversion(tmp_path: Path) -> None:
    model = graph(
        op("Data", "second", desc(33, 1, 1, 8, layout="NCHW"), desc(34, 2, 1, 8), index=1),
        op("Conv", "no input"),
        op("AippData", "first", desc(34, 4, 3), index=0),
    )
    inputs, outputs = open_container(write(tmp_path / "m.om", model)).inputs_outputs()
    uint8 = TensorFacts("uint8", (3,), "ND")
    assert inputs == (
        GraphInput("first", 0, outer=uint8, inner=uint8),
        GraphInput("second", 1, TensorFacts("float", (1, 8), "NCHW"), TensorFacts("float16", (1, 8), "ND")),
    )
    assert outputs == ()


def test_attribute_overrides_the_shape_that_is_fed(tmp_path: Path) -> None:
    model = graph(op("Data", "x", desc(33, 1, -1, 8), _mbatch_origin_input_dims=[4, 8]))
    inputs, _ = open_container(write(tmp_path / "m.om", model)).inputs_outputs()
    assert inputs[0].outer.shape == (4, 8)


NET_OUTPUT = op(
    "NetOutput", "out", wire.bytes_field(24, "soft/max"), wire.packed_field(25, [2]), desc(33, 2, 5), desc(34, 1, 5)
)


@pytest.mark.parametrize(
    ("layout", "nodes", "name"),
    [
        ("K", ["ignored"], "soft/max:2"),
        ("A1", ["node"], "node:2"),
        ("A1", ["node:7"], "node:7"),
        ("A1", ["too", "many"], "output_0_soft/max_2"),
        ("A2", [], "output_0_soft/max_2"),
    ],
)
def test_output_names(tmp_path: Path, layout: Layout, nodes: list[str], name: str) -> None:
    model = replace_attributes(graph(NET_OUTPUT), {"attr_model_out_nodes_name": nodes})
    _, outputs = open_container(write(tmp_path / "m.om", model, layout)).inputs_outputs()
    inner, outer = TensorFacts("float16", (5,), "ND"), TensorFacts("float", (5,), "ND")
    assert outputs == (GraphOutput(name, "soft/max:2", inner, outer),)


@pytest.mark.parametrize(("entry", "source"), [("conv:3", "conv:3"), ("a:b:1", "a:b:1"), ("", ":0"), ("x:y", "x:0")])
def test_source_of_an_output_without_src_name(tmp_path: Path, entry: str, source: str) -> None:
    model = graph(op("NetOutput", "out", wire.bytes_field(5, entry), desc(33, 99, 1)))
    _, outputs = open_container(write(tmp_path / "m.om", model)).inputs_outputs()
    assert outputs[0].source == source
    assert outputs[0].inner.dtype == "type 99"
    assert outputs[0].outer is None


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (op("Data", "x", desc(33, 1, *range(100))), "more than 64 dimensions"),
        (op("Data", "x" * 2000), "a name of 2000 bytes"),
        (wire.bytes_field(6, b"\xff"), "does not end"),
    ],
)
def test_graph_that_cannot_be_read_leaves_the_facts_of_the_container(tmp_path: Path, part: bytes, reason: str) -> None:
    path = write(tmp_path / "m.om", graph(part))
    with pytest.raises(ContainerError, match=reason) as caught:
        open_container(path).inputs_outputs()
    assert caught.value.code == "OM_MODEL_DEF_UNREADABLE"
    described = describe(path)
    assert described["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert described["layout"] == "K"


def test_compressed_attribute_names_leave_inputs_out_rather_than_wrong(tmp_path: Path) -> None:
    model = replace_attributes(graph(NET_OUTPUT), {"om_compress_version": 1, "attr_name_enum": ["index"]})
    described = describe(write(tmp_path / "m.om", model, "A2"))
    assert described["error"] is None
    assert "inputs" not in described
    assert "outputs" not in described
