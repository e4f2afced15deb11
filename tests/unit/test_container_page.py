"""The page that ``cannlm inspect`` prints for people."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from graphs import BUNDLE, FLOW, attributes, corpus, desc, flow_list, graph, net_output, op, submodel, write

from pytest_cannlm.cli.app import run
from pytest_cannlm.cli.describing import described, with_contradictions
from pytest_cannlm.compat.origin import contradictions, read_attributes
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inoutinfo import InOutInfo, InOutTensor, encode_inout_info
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.kirin import write_simulated_omc
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import Attribute, TensorIO
from pytest_cannlm.container.writer import Partition


def page(path: Path) -> str:
    return "\n".join(described(describe(path)))


def test_simulated_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.omc"
    write_simulated_omc(
        path,
        name="tiny",
        chip="KirinX90",
        build_version="6.1.1.0",
        inputs=[TensorIO("input_embed", "int8", (1, -1, 16)), TensorIO("position_ids", "int32", (1, -1))],
        outputs=[TensorIO("lm_logits", "float", (1, -1, 32))],
        weight_size=4096,
        runtime_graph=b"graph",
    )
    assert (
        page(path)
        == """\
model for the simulated NPU (kirin, layout K, HCS_PARTITION_MODEL), 1.1 KiB (1,139 bytes)
  name              tiny
  container         0x10000000

Made with and for
  chip              KirinX90
  platform code     10, KirinX90
  CANN version      6.1.1.0
  from              Onnx

Partitions
  MODEL_DEF                  760 B at 0
  WEIGHTS_DATA                 0 B at 760
  TASK_INFO                   66 B at 760
  CANNLM_RUNTIME_GRAPH         5 B at 826

Inputs
  input_embed       int8 [1, -1, 16] ND
  position_ids      int32 [1, -1] ND

Outputs
  lm_logits:0       float [1, -1, 32] ND

Graph tiny: 4 ops
  Data                   2
  GraphOp                1
  NetOutput              1

Compiled parts
  SubGraph_0        NPUCL, task 66 B at 0, weight 4.0 KiB at 0

Weights outside the file
  SubGraph_0.weight  4.0 KiB (4,096 bytes)

Attributes
  cannlm_simulated  1

TASK_INFO
  record of type 1  10 B
  record of type 5  24 B

Notes
  model 0 partition 1 (WEIGHTS_DATA) is empty"""
    )


def test_both_sides_of_a_conversion_and_choices(tmp_path: Path) -> None:
    listed = InOutTensor("x", "uint8", (1, 8), "NHWC", size=8)
    parts = [
        Partition(8, encode_inout_info(InOutInfo((listed,), (), batch=(1, 4)))),
        graph(op("Data", "x", desc(33, 4, 1, 8), desc(34, 2, 1, 8))) + attributes({"list": [1, 2], "empty": ""}),
    ]
    shown = page(write(tmp_path / "m.om", parts))
    assert "  x                 uint8 [1, 8] NHWC, 8 B; inside float16 [1, 8] ND\n" in shown
    assert "\nChoices\n  batch             (1, 4)\n" in shown
    assert "\nAttributes\n  list              1, 2" in shown
    assert "empty" not in shown


def test_most_frequent_types_come_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    ops = [op(f"Type{number:02}") * (30 - number) for number in range(25)]
    lines = page(write(tmp_path / "m.om", [graph(*ops) + graph()])).splitlines()
    start = lines.index("Graph : 450 ops, 1 subgraphs beside it")
    assert lines[start + 1].split() == ["Type00", "30"]
    assert lines[start + 21].split() == ["5", "more", "types", "40"]


def test_models_and_submodels_have_a_heading_each(tmp_path: Path) -> None:
    two = [Partition(0, graph(net_output("x"))), Partition(0, graph(net_output("y")), 1)]
    shown = page(write(tmp_path / "m.om", two, HeaderFields(layout="A2", table_bits=64, model_num=2)))
    assert "\nModel 0\n" in shown
    assert "\nModel 1\n" in shown
    assert "output_0_y_0" in shown
    plain = write(tmp_path / "inner.om", [graph()]).read_bytes()
    parts = [graph(), flow_list("a", "b"), submodel("a", plain), submodel("b", b"x" * 300), submodel("c", file="c.om")]
    flow = write(tmp_path / "flow.om", parts, FLOW)
    shown = page(write(tmp_path / "m.om", [Partition(24, flow.read_bytes())], BUNDLE))
    for line in ("Submodel 0 flow", "  Submodel 0 a", "  Submodel 1 b", "    type              PNE_NPU"):
        assert f"\n{line}\n" in shown
    assert shown.endswith("\n    file              c.om")
    assert "    OM_BAD_MAGIC: not an offline model: unknown bytes\n" in shown


def test_rejected_file(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(b"DOMI" + bytes(3000))
    assert described(describe(path)) == [
        "OM_BAD_MAGIC: not an offline model: unknown bytes",
        "  field             magic",
        "  found             444f4d49 ('DOMI')",
        "  expected          494d4f44 ('IMOD')",
        "  Check that this is the file that the converter wrote.",
        "  size              2.9 KiB (3,004 bytes)",
    ]


def test_broken_content_is_named_above_what_is_left(tmp_path: Path) -> None:
    lines = described(describe(write(tmp_path / "m.om", [graph(b"\xff")])))
    assert lines[0].startswith("OM_MODEL_DEF_UNREADABLE: ")
    assert lines[1:4] == [
        "  field             MODEL_DEF",
        "  found             3 bytes at offset 288",
        "  expected          a protobuf message ModelDef with a graph",
    ]
    assert lines[6].startswith("model (ascend, layout A2, IR_MODEL), ")


def test_header_of_an_encrypted_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.om", [graph()])
    data = bytearray(path.read_bytes())
    data[80] = 1
    path.write_bytes(data)
    facts = describe(path)
    assert (facts["error"], facts["kind"], facts["model_name"]) == ("OM_ENCRYPTED", "encrypted model", "m")
    assert "partitions" not in facts
    lines = described(with_contradictions(facts))
    assert lines[0].startswith("OM_ENCRYPTED: ")
    assert f"encrypted model (ascend, layout A2, IR_MODEL), {len(data)} B" in lines


CONTRADICTION: dict[str, Attribute] = {"soc_version": "Ascend310B4", "atc_version": "7.6.0.1.220", "atc_cmdline": ""}


@pytest.mark.parametrize(
    ("said", "notes"),
    [
        (
            {"atc_cmdline": "/ascend-toolkit/8.1.RC1/bin/atc"},
            ["atc_cmdline says CANN 8.1.RC1, atc_version says CANN 7.6.0.1.220"],
        ),
        ({"opp_version": "7.7.0.1.1"}, ["opp_version says CANN 7.7.0.1.1, atc_version says CANN 7.6.0.1.220"]),
        (
            {"atc_cmdline": "atc --soc_version=Ascend910B4"},
            ["atc_cmdline says chip Ascend910B4, soc_version says chip Ascend310B4"],
        ),
        ({"atc_cmdline": "atc --soc_version=ascend310b4"}, []),
        ({"opp_version": "", "atc_cmdline": "/ascend-toolkit/8.0.0/bin/atc"}, []),
    ],
)
def test_what_a_model_says_of_its_origin_in_two_ways_is_judged_as_the_gate_does(
    said: dict[str, Attribute], notes: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / "m.om", [graph() + attributes(CONTRADICTION | said)])
    facts = describe(path)
    assert facts["notes"] == []
    assert with_contradictions(facts)["notes"] == notes
    container = open_container(path)
    told = contradictions(container, read_attributes(container), Target(chip="Ascend310B4", cann="8.0.0"))
    assert bool(told) == bool(notes)


def test_contradictions_of_several_models_say_which(tmp_path: Path) -> None:
    odd = attributes(CONTRADICTION | {"opp_version": "7.7.0.1.1"})
    header = HeaderFields(layout="A2", table_bits=64, model_num=2)
    path = write(tmp_path / "m.om", [Partition(0, graph()), Partition(0, graph() + odd, 1)], header)
    assert with_contradictions(describe(path))["notes"][0].startswith("model 1: opp_version says")


@pytest.mark.parametrize("name", ["a1", "exeom", "bundle of bundles", "compressed names", "custom data"])
def test_every_kind_of_file_has_a_page_also_from_its_json(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.om"
    path.write_bytes(corpus(tmp_path)[name])
    facts = describe(path)
    assert described(json.loads(json.dumps(facts)))[1:] or facts["error"]


def keys_of(facts: Any) -> set[str]:
    """Names of facts at every depth; those of ops, attributes and choices of a model are data."""
    if isinstance(facts, list | tuple):
        return set().union(*map(keys_of, facts))
    if not isinstance(facts, dict):
        return set()
    data = {"op_types", "quantization", "attributes"}
    return set(facts).union(*(keys_of(value) for key, value in facts.items() if key not in data))


def test_every_key_is_in_the_reference(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "container.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", text))
    for name, data in corpus(tmp_path).items():
        path = tmp_path / "file.om"
        path.write_bytes(data)
        assert keys_of(describe(path)) - documented == set(), name


@pytest.mark.parametrize(
    ("code", "soc", "shown"),
    [
        (10, "KirinX90", "10, KirinX90"),
        (10, None, "10, KirinX90 or a chip without a code"),
        (14, None, "14, no known name"),
        (14, "Kirin9999", "14, no known name"),
    ],
)
def test_a_platform_code_is_shown_with_its_chip(tmp_path: Path, code: int, soc: str | None, shown: str) -> None:
    facts = {**describe(write(tmp_path / "m.om", [graph()])), "kirin_platform": code, "soc_version": soc}
    assert f"  platform code     {shown}" in described(facts)


def test_a_long_value_is_one_short_line(tmp_path: Path) -> None:
    facts = {**describe(write(tmp_path / "m.om", [graph()])), "attributes": {"long": "x\n" * 5000}}
    (line,) = [line for line in described(facts) if line.startswith("  long")]
    assert len(line) < 200
    assert line.endswith("… (9,999 characters)")


def test_the_command_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m.om", [graph()])
    run(["inspect", str(path)])
    assert capsys.readouterr().out.splitlines()[0] == str(path)
    run(["inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["file"] == str(path)
