"""Files of several models, and files that hold other containers."""

import struct
from pathlib import Path
from typing import Any

import pytest
from graphs import ASCEND, BUNDLE, FLOW, attributes, desc, flow_list, graph, op, submodel, write

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import MAX_MODELS, describe
from pytest_cannlm.container.layout import HEADER_BYTES, HeaderFields
from pytest_cannlm.container.submodels import MAX_DEPTH, MAX_SHOWN
from pytest_cannlm.container.writer import Partition, partitions_of, write_container

DYNAMIC = HeaderFields(layout="A2", table_bits=64, model_num=2, need_check_os_cpu_info=1)
EMPTY = graph()


def model(name: str) -> bytes:
    return b"\x0a" + bytes([len(name)]) + name.encode() + graph(op("Data", name, desc(33, 1, 2)))


def om(path: Path, data: bytes = EMPTY, header: HeaderFields = ASCEND) -> bytes:
    return write(path / "inner.om", [data], header).read_bytes()


def test_every_model_is_listed_and_the_first_stays_on_top(tmp_path: Path) -> None:
    host = attributes({"host_env_os": "linux", "host_env_cpu": "x86_64"})
    parts = [
        Partition(0, model("root") + host),
        Partition(5, b"so"),
        Partition(0, model("leaf"), 1),
        Partition(1, b"w", 1),
    ]
    facts = describe(write(tmp_path / "m.om", parts, DYNAMIC))
    assert facts["error"] is None
    assert facts["kind"] == "model with dynamic shapes"
    assert (facts["host_env_os"], facts["host_env_cpu"], facts["need_check_os_cpu_info"]) == ("linux", "x86_64", 1)
    assert [one["name"] for one in facts["models"]] == ["root", "leaf"]
    assert [[row[1] for row in one["partitions"]] for one in facts["models"]] == [
        ["MODEL_DEF", "SO_BINS"],
        ["MODEL_DEF", "WEIGHTS_DATA"],
    ]
    assert [one["inputs"][0]["name"] for one in facts["models"]] == ["root", "leaf"]
    assert facts["models"][1]["host_env_os"] is None
    assert facts["inputs"] == facts["models"][0]["inputs"]
    assert facts["partitions"] == facts["models"][0]["partitions"]


def test_a_model_alone_is_not_listed(tmp_path: Path) -> None:
    facts = describe(write(tmp_path / "m.om", [model("one")]))
    assert "models" not in facts
    assert "submodels" not in facts


def test_a_broken_model_leaves_the_others(tmp_path: Path) -> None:
    facts = describe(write(tmp_path / "m.om", [Partition(0, model("root")), Partition(0, graph(b"\xff"), 1)], DYNAMIC))
    assert facts["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert "model 1" in facts["message"]
    assert facts["models"][0]["name"] == "root"
    assert "graph" not in facts["models"][1]


def test_only_so_many_models_are_described(tmp_path: Path) -> None:
    header = HeaderFields(layout="A2", table_bits=64, model_num=MAX_MODELS + 1)
    parts = [Partition(0, EMPTY, number) for number in range(MAX_MODELS + 1)]
    models = describe(write(tmp_path / "m.om", parts, header))["models"]
    assert ["message" in one for one in models] == [False] * MAX_MODELS + [True]
    assert models[-1]["partitions"] == [[0, "MODEL_DEF", 0, len(EMPTY)]]


def test_flow_names_its_submodels(tmp_path: Path) -> None:
    parts = [
        *(Partition(0, EMPTY), flow_list("npu", "udf", "gone")),
        *(submodel("npu", om(tmp_path)), submodel("udf", kind="UDF", file="/elsewhere/udf.om")),
        *(submodel("bad", b"x" * 400), Partition(7, b"\xff")),
    ]
    facts = describe(write(tmp_path / "m.om", parts, FLOW))
    assert (facts["error"], facts["kind"], facts["table"]) == (None, "flow of models", "64")
    npu, udf, bad, unreadable = facts["submodels"]
    assert (npu["name"], npu["type"], npu["error"], npu["modeltype_name"]) == ("npu", "PNE_NPU", None, "IR_MODEL")
    assert npu["partitions"] == [[0, "MODEL_DEF", 0, len(EMPTY)]]
    assert udf == {"name": "udf", "type": "UDF", "file": "/elsewhere/udf.om"}
    assert (bad["name"], bad["error"], bad["bytes"]) == ("bad", "OM_BAD_MAGIC", 400)
    assert "file" not in bad
    assert unreadable["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert facts["notes"] == ["submodels that FLOW_MODEL lists and that are not there: 1, the first: 'gone'"]


@pytest.mark.parametrize(
    ("parts", "note"), [([], "no FLOW_MODEL that lists"), ([Partition(6, b"\xff")], "FLOW_MODEL is not readable")]
)
def test_flow_without_a_list(tmp_path: Path, parts: list[Partition], note: str) -> None:
    facts = describe(write(tmp_path / "m.om", [EMPTY, *parts, submodel("a")], FLOW))
    assert note in facts["notes"][0]


def test_bundle_is_a_run_of_whole_files(tmp_path: Path) -> None:
    whole = [om(tmp_path), om(tmp_path, model("second"), HeaderFields(layout="K", name=b"k"))]
    parts = [Partition(25, struct.pack("<Q", 4096)), *(Partition(24, one) for one in whole)]
    path = write(tmp_path / "m.om", parts, BUNDLE)
    container = open_container(path)
    assert container.header.model_length == path.stat().st_size
    assert container.partition_base == HEADER_BYTES
    assert [container.read(entry) for entry in container.partitions[1:]] == whole
    facts = describe(path)
    assert (facts["error"], facts["kind"], facts["variable_bytes"]) == (None, "bundle of models", 4096)
    assert [(one["dialect"], one["model_name"], one["bytes"]) for one in facts["submodels"]] == [
        ("ascend", "m", len(whole[0])),
        ("kirin", "k", len(whole[1])),
    ]
    copy = tmp_path / "copy.om"
    write_container(copy, header=container.header, partitions=partitions_of(container))
    assert copy.read_bytes() == path.read_bytes()


def test_bundle_without_its_variable_size(tmp_path: Path) -> None:
    facts = describe(write(tmp_path / "m.om", [Partition(24, om(tmp_path)), Partition(25, b"short")], BUNDLE))
    assert facts["variable_bytes"] is None


def test_nesting_is_followed_only_so_deep(tmp_path: Path) -> None:
    data = om(tmp_path)
    for _ in range(MAX_DEPTH + 2):
        data = write(tmp_path / "m.om", [Partition(24, data)], BUNDLE).read_bytes()
    level: dict[str, Any] = describe(tmp_path / "m.om")
    for _ in range(MAX_DEPTH):
        (level,) = level["submodels"]
        assert level["error"] is None
    assert "deeper" in level["submodels"][0]["message"]


def test_parts_are_told_only_so_many_at_all_depths_together(tmp_path: Path) -> None:
    flow = [EMPTY, *(submodel(f"s{number}") for number in range(MAX_SHOWN))]
    inner = write(tmp_path / "inner.om", flow, FLOW).read_bytes()
    facts = describe(write(tmp_path / "m.om", [Partition(24, inner), Partition(24, inner)], BUNDLE))
    assert len(facts["submodels"]) == 1
    assert len(facts["submodels"][0]["submodels"]) == MAX_SHOWN - 1
    assert facts["submodels"][0]["notes"][-1] == "submodels that are not described: 1"
    assert "submodels that are not described: 1" in facts["notes"]


@pytest.mark.parametrize(
    ("modeltype", "types", "kind"),
    [(4, [20, 21], "small executor (exeom)"), (4, [0], "small executor (exeom)"), (0, [20, 9, 11], "nano executor")],
)
def test_files_of_the_small_executors_are_named(tmp_path: Path, modeltype: int, types: list[int], kind: str) -> None:
    header = HeaderFields(layout="A2", modeltype=modeltype)
    contents = [EMPTY if number == 0 else b"123" for number in types]
    path = write(tmp_path / "m.om", [Partition(n, c) for n, c in zip(types, contents, strict=True)], header)
    raw = bytearray(path.read_bytes())
    head = HEADER_BYTES + 4 + 12 * len(types)
    body = bytearray(-head % 8)
    offset = 0
    for row, content in enumerate(contents):  # table and partitions start at multiples of 8
        struct.pack_into("<I", raw, HEADER_BYTES + 4 + 12 * row + 4, offset)
        last = row == len(contents) - 1
        body += content + (b"" if last else bytes(-len(content) % 8))
        offset += len(content) + -len(content) % 8
    data = raw[:head] + body
    struct.pack_into("<I", data, 76, len(data) - HEADER_BYTES)
    path.write_bytes(data)
    facts = describe(path)
    assert facts["error"] is None
    assert kind in facts["kind"]
    container = open_container(path)
    assert [container.read(entry) for entry in container.partitions] == contents
