"""Inputs, outputs and ops of a graph: names, order, types and counts by the vendor's rules."""

from pathlib import Path
from typing import Any

import pytest
from graphs import ASCEND, attributes, desc, graph, net_output, op, write

from pytest_cannlm.container import wire
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HeaderFields, Layout
from pytest_cannlm.container.modeldef import TensorIO, encode_model_def, replace_attributes

KIRIN = HeaderFields(layout="K")


def described(path: Path, *parts: bytes, header: HeaderFields = KIRIN) -> dict[str, Any]:
    facts = describe(write(path / "m.om", [b"".join(parts)], header))
    assert facts["error"] is None
    return facts


def tensor(dtype: str, *shape: int, form: str = "ND") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "format": form}


def test_what_was_written_reads_back(tmp_path: Path) -> None:
    model = encode_model_def(
        name="m",
        inputs=[TensorIO("input_embed", "int8", (1, -1, 64)), TensorIO("position_ids", "int32", (1, -1))],
        outputs=[TensorIO("lm_logits", "float", (1, -1, 500))],
        attrs={},
        weight_size=0,
    )
    facts = described(tmp_path, model)
    assert [(item["name"], item["index"], item["dtype"], item["shape"]) for item in facts["inputs"]] == [
        ("input_embed", 0, "int8", (1, -1, 64)),
        ("position_ids", 1, "int32", (1, -1)),
    ]
    assert [(item["source"], item["dtype"], item["shape"]) for item in facts["outputs"]] == [
        ("lm_logits:0", "float", (1, -1, 500))
    ]


def test_inputs_are_ordered_by_index_and_show_both_sides_of_the_conversion(tmp_path: Path) -> None:
    facts = described(
        tmp_path,
        graph(
            op("Data", "second", desc(33, 1, 1, 8, layout="NCHW"), desc(34, 2, 1, 8), attrs={"index": 1}),
            op("Conv", "no input"),
            op("AippData", "first", desc(34, 4, 3), attrs={"index": 0}),
        ),
    )
    uint8 = tensor("uint8", 3)
    assert facts["inputs"] == [
        {"name": "first", "index": 0, **uint8, "inner": uint8},
        {"name": "second", "index": 1, **tensor("float", 1, 8, form="NCHW"), "inner": tensor("float16", 1, 8)},
    ]
    assert facts["outputs"] == []


@pytest.mark.parametrize("override", ["_dynamic_aipp_input_dims", "_mbatch_origin_input_dims"])
def test_attribute_overrides_the_shape_that_is_fed(tmp_path: Path, override: str) -> None:
    facts = described(tmp_path, graph(op("Data", "x", desc(33, 1, -1, 8), attrs={override: [4, 8]})))
    assert facts["inputs"][0]["shape"] == (4, 8)


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
    header = HeaderFields(layout=layout, platform_version=b"1.11.z.0" if layout != "K" else b"")
    facts = described(tmp_path, model, header=header)
    assert facts["outputs"] == [
        {"name": name, "source": "soft/max:2", **tensor("float16", 5), "outer": tensor("float", 5)}
    ]


@pytest.mark.parametrize(("entry", "source"), [("conv:3", "conv:3"), ("a:b:1", "a:b:1"), ("", ":0"), ("x:y", "x:0")])
def test_source_of_an_output_without_src_name(tmp_path: Path, entry: str, source: str) -> None:
    facts = described(tmp_path, graph(op("NetOutput", "out", wire.bytes_field(5, entry), desc(33, 99, 1))))
    assert facts["outputs"] == [{"name": source, "source": source, **tensor("type 99", 1), "outer": None}]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (op("Data", "x", desc(33, 1, *range(100))), "more than 64 dimensions"),
        (op("Data", "x" * 2000), "a name of 2000 bytes"),
        (op("x" * 2000), "a name of 2000 bytes"),
        (wire.bytes_field(6, b"\xff"), "does not end"),
        (wire.bytes_field(6, wire.bytes_field(2, "Data") + b"\x0b"), "protobuf cannot decode"),
        (op("NetOutput", "out", b"\x8a\x02\x00" * 5000), "more than 4096 tensors"),
    ],
)
def test_graph_that_cannot_be_read_leaves_the_facts_of_the_container(tmp_path: Path, part: bytes, reason: str) -> None:
    facts = describe(write(tmp_path / "m.om", [graph(part) + attributes({"soc_version": "X"})], KIRIN))
    assert facts["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert reason in facts["message"]
    assert (facts["layout"], facts["soc_version"]) == ("K", "X")
    assert "inputs" not in facts


def test_graph_is_counted_by_type_most_frequent_first(tmp_path: Path) -> None:
    parts = [wire.bytes_field(1, "net"), op("Cast"), op("Conv") * 3, op("AscendQuant") * 2, b"\x32\x00"]
    facts = described(tmp_path, wire.bytes_field(1, "model"), graph(*parts), graph())
    assert facts["name"] == "model"
    assert facts["graph"] == {
        "name": "net",
        "ops": 7,
        "subgraphs": 1,
        "op_types": {"Conv": 3, "AscendQuant": 2, "Cast": 1, "": 1},
        "quantization": {"AscendQuant": 2},
    }
    assert next(iter(facts["graph"]["op_types"])) == "Conv"


def test_more_types_than_any_model_has_are_counted_together(tmp_path: Path) -> None:
    facts = described(tmp_path, graph(*(op(f"type{number}") for number in range(1010))))
    assert facts["graph"]["op_types"]["(other types)"] == 10


def test_an_op_with_huge_fields_is_decoded_without_them(tmp_path: Path) -> None:
    big = op("Data", "x", desc(33, 1, 2), attrs={"index": 3, "table": b"\0" * 300_000})
    facts = described(tmp_path, graph(big, net_output("x")), header=ASCEND)
    assert facts["inputs"] == [{"name": "x", "index": 3, **tensor("float", 2), "inner": None}]
    assert facts["notes"] == ["ops shown without their largest fields: 1, the first: 'x'"]


def test_names_that_are_no_utf_8_are_shown_as_escapes(tmp_path: Path) -> None:
    named = wire.bytes_field(6, wire.bytes_field(1, b"\xc4\xe3") + wire.bytes_field(2, "Data"))
    assert described(tmp_path, graph(named))["inputs"][0]["name"] == r"\xc4\xe3"


def test_an_attribute_of_another_kind_is_no_index(tmp_path: Path) -> None:
    ops = [op("Data", name, desc(33, 1, 1), attrs={"index": value}) for name, value in (("a", "1"), ("b", True))]
    facts = described(tmp_path, graph(*ops))
    assert [(item["name"], item["index"]) for item in facts["inputs"]] == [("a", 0), ("b", 1)]


def test_shape_of_one_input_is_found_without_the_others(tmp_path: Path) -> None:
    cached = op("Data", "cache", desc(34, 2, 7, 7), desc(33, 2, 128, -1))
    model = graph(op("Data", "x", desc(33, 1, 1)), op("Conv", "cache"), cached, op("Data", "only", desc(34, 1, 9)))
    container = open_container(write(tmp_path / "m.om", [model], KIRIN))
    assert container.input_shapes(("only", "cache")) == ({"cache": (128, -1), "only": (9,)}, True)
    assert container.input_shapes(("none", "only")) == ({"only": (9,)}, True)


def test_external_weights_of_ascend_are_named_with_their_size(tmp_path: Path) -> None:
    constants = [
        op("FileConstant", "a", attrs={"location": "weight/one", "offset": 0, "length": 100}),
        op("FileConstant", "b", attrs={"location": "weight/one", "offset": 512, "length": 100}),
        op("FileConstant", "c", attrs={"file_path": "weight/two"}),
        op("FileConstant", "d"),
    ]
    assert described(tmp_path, graph(*constants), header=ASCEND)["external_weights"] == [
        {"file": "weight/one", "bytes": 612},
        {"file": "weight/two", "bytes": None},
        {"file": "(not named by d)", "bytes": None},
    ]


def test_external_weights_of_kirin_are_named_with_their_size(tmp_path: Path) -> None:
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=4096)
    facts = described(tmp_path, model, header=HeaderFields(layout="K", modeltype=4))
    assert facts["external_weights"] == [{"file": "SubGraph_0.weight", "bytes": 4096}]
