"""The rules of affinity: each in a model in which it fires, and in one in which it does not."""

import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import (
    INT32,
    INT64,
    attention,
    external,
    floats,
    graph_of,
    integers,
    model_of,
    node,
    plain,
    rope,
    value,
)

from pytest_cannlm.affinity import AffinityReport, examine_model
from pytest_cannlm.affinity.rules import CONFIDENCE, OUTCOMES, rules

GENERAL = rules().general


def judge(model: onnx.ModelProto, toolchain: str = "omg", **sizes: object) -> AffinityReport:
    return examine_model(model, chip="KirinX90", toolchain=toolchain, **sizes)


def rules_of(report: AffinityReport) -> set[str]:
    return {finding.rule for finding in report.findings}


def with_function() -> onnx.ModelProto:
    body = [node("Relu", "a", to="b")]
    function = helper.make_function("own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 12)])
    model = model_of(node("Twice", "x", domain="own"), opsets=[("", 12), ("own", 1)])
    model.functions.append(function)
    return model


def with_sparse() -> onnx.ModelProto:
    model = model_of(node("Mul", "x", "w"))
    sparse = helper.make_sparse_tensor(floats("w", 2), integers("", 1, 3), [2, 4])
    model.graph.sparse_initializer.append(sparse)
    return model


def with_training() -> onnx.ModelProto:
    model = plain()
    model.training_info.add()
    return model


def without_import() -> onnx.ModelProto:
    model = plain()
    del model.opset_import[:]
    return model


def sequence_output() -> onnx.ModelProto:
    model = plain()
    model.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [2, 4]))
    return model


def sliced(end: int) -> onnx.ModelProto:
    constants = [integers("zero", 0), integers("end", end), integers("axis", 1)]
    return model_of(node("Slice", "x", "zero", "end", "axis"), constants=constants)


def reshaped(size: int) -> onnx.ModelProto:
    return model_of(node("Reshape", "x", "shape"), constants=[integers("shape", size)])


def multiplied(rows: int) -> onnx.ModelProto:
    weights = external("w", [rows, 4], location="w.bin", offset="0", length=str(rows * 16))
    return model_of(node("MatMul", "x", "w"), inputs=[value("x", dims=(2, rows))], constants=[weights])


def located(dims: tuple[int, ...] = (2, 4), **fields: str) -> onnx.ModelProto:
    return model_of(node("Mul", "x", "w"), constants=[external("w", dims, **fields)])


def many_inputs(number: int) -> onnx.ModelProto:
    return plain(inputs=[value("x"), *(value(f"x{n}") for n in range(number - 1))])


FIRES = {
    "opset": lambda: plain(opsets=[("", 23)]),
    "opset-missing": without_import,
    "opset-twice": lambda: plain(opsets=[("", 12), ("ai.onnx", 13)]),
    "ir-version": lambda: plain(ir=10),
    "ir-3": lambda: model_of(node("Mul", "x", "w"), constants=[floats("w", 2, 4)], ir=3),
    "no-nodes": lambda: model_of(),
    "local-function": with_function,
    "undefined-value": lambda: model_of(node("Mul", "x", "nowhere")),
    "written-twice": lambda: model_of(node("Relu", "x"), node("Sigmoid", "x")),
    "sparse": with_sparse,
    "training": with_training,
    "bfloat16": lambda: model_of(node("Cast", "x", to="y"), outputs=[value("y", TensorProto.BFLOAT16)]),
    "data-type": lambda: plain(inputs=[value("x", TensorProto.DOUBLE)]),
    "no-tensor": sequence_output,
    "int64-input": lambda: plain(inputs=[value("x", INT64)]),
    "int64-narrowed": lambda: sliced(2**31 - 1),
    "int64-clamped": lambda: sliced(2**63 - 1),
    "int64-too-large": lambda: reshaped(2**31),
    "int64-unread": lambda: model_of(
        node("Reshape", "x", "s"), constants=[external("s", [1], INT64, location="s", offset="0", length="8")]
    ),
    "float16-rope": lambda: rope(TensorProto.FLOAT16),
    "shape-open": lambda: plain(inputs=[value("x", dims=("S", 4))]),
    "shape-unnamed": lambda: plain(inputs=[value("x", dims=(None, 4))]),
    "shape-not-positive": lambda: plain(inputs=[value("x", dims=(0, 4))]),
    "rank": lambda: plain(inputs=[value("x", dims=(1, 1, 1, 1, 2, 4))]),
    "inputs": lambda: many_inputs(201),
    "name": lambda: model_of(node("Mul", "x:0", "x:0"), inputs=[value("x:0")]),
    "external-field": lambda: located(location="w", __class__="W"),
    "external-outside": lambda: located(location="../secret.bin"),
    "external-size": lambda: located(location="w", length="31"),
    "matmul-large": lambda: multiplied(8960),
    "rope": rope,
    "attention": attention,
    "kv-cache": lambda: plain(inputs=[value("x"), value("past_key_values.0.key", dims=(1, 2, 64, 8))]),
}
"""A model for each rule that can be seen without a file."""
QUIET = {
    "opset": lambda: plain(opsets=[("", 18)]),
    "opset-twice": lambda: plain(opsets=[("", 12), ("ai.onnx", 12)]),
    "ir-version": lambda: plain(ir=8),
    "ir-3": lambda: plain(ir=3),
    "undefined-value": lambda: model_of(node("Relu", "x", to="z"), node("Clip", "z", "", "z")),
    "written-twice": lambda: model_of(node("Dropout", "x", to=["z", ""]), node("Dropout", "z", to=["y", ""])),
    "int64-input": lambda: plain(inputs=[value("x", INT32)]),
    "int64-too-large": lambda: reshaped(-(2**31)),
    "inputs": lambda: many_inputs(200),
    "rank": lambda: plain(inputs=[value("x", dims=(1, 1, 1, 2, 4))]),
    "matmul-large": lambda: multiplied(8959),
    "external-outside": lambda: located(location="sub/../w.bin"),
    "external-size": lambda: located(location="w", length="32"),
    "kv-cache": lambda: plain(inputs=[value("x"), value("past_key_in0", dims=(64, 2, 1, 8))]),
    "float16-rope": rope,
}
"""For rules with a border, a model just inside it."""
ELSEWHERE = {"newer-operator", "unlisted", "gears", "path", "file-size", "external-missing"}
"""Rules that other tests show: for nodes, for sizes that are given, and for files."""


def test_every_rule_is_shown_to_fire():
    assert set(FIRES) | ELSEWHERE == set(GENERAL)


@pytest.mark.parametrize("rule", FIRES)
def test_a_rule_fires_and_says_why_and_what_to_do(rule):
    report = judge(FIRES[rule]())
    finding = next(each for each in report.findings if each.rule == rule)
    assert finding.outcome == GENERAL[rule].outcome
    assert finding.where
    assert finding.why
    assert finding.instead
    if finding.outcome == "refused":
        assert report.answer == "refused"


@pytest.mark.parametrize("rule", QUIET)
def test_a_rule_is_quiet_inside_its_border(rule):
    assert rule not in rules_of(judge(QUIET[rule]()))


def test_a_plain_model_is_fine_with_both_converters():
    for toolchain in rules().toolchains:
        report = judge(plain(), toolchain)
        assert report.answer == "fine"
        assert not report.findings
        assert [(verdict.operator, verdict.count, verdict.where) for verdict in report.operators] == [
            ("Mul", 1, ("n_y",))
        ]


def test_converters_differ_in_the_oldest_opset():
    assert "opset" not in rules_of(judge(plain(opsets=[("", 7)]), "omg"))
    assert "opset" in rules_of(judge(plain(opsets=[("", 7)]), "atc"))
    assert "opset" in rules_of(judge(plain(opsets=[("", 6)]), "omg"))


def test_versions_are_told_with_what_this_machine_and_the_converter_know():
    report = judge(plain(opsets=[("", 99)], ir=99))
    found = {finding.rule: (finding.found, finding.expected) for finding in report.findings}
    assert found["opset"][0].startswith("opset 99; onnx ")
    assert found["opset"][1] == "7 to 18"
    assert found["ir-version"][0].startswith("IR version 99; onnx ")
    assert found["ir-version"][1] == "up to 8"


def test_equal_problems_are_one_finding_with_the_first_places_and_their_number():
    inputs = [value("x"), *(value(f"x{n}", dims=("S", 4)) for n in range(5))]
    (finding,) = judge(plain(inputs=inputs)).findings
    assert (finding.found, finding.count) == ("dimension S", 5)
    assert finding.where == ("x0 axis 0", "x1 axis 0", "x2 axis 0")
    assert finding.expected == "--gears S=SIZES"


def test_all_problems_are_found_at_once():
    model = plain(inputs=[value("x", INT64, ("S", 4))], opsets=[("", 23)], ir=10)
    assert rules_of(judge(model)) >= {"opset", "ir-version", "int64-input", "shape-open"}


def test_an_unknown_thing_alone_is_no_refusal():
    assert judge(plain(inputs=[value("x", dims=("S", 4))])).answer == "unknown"


# -- the data files


def test_general_rules_are_whole():
    for rule in GENERAL.values():
        assert rule.outcome in OUTCOMES
        assert rule.confidence in CONFIDENCE
        assert rule.title
        assert rule.why
        assert rule.instead
        assert set(rule.toolchains) <= set(rules().toolchains)
        assert not rule.limit or set(rule.limit) == set(rules().toolchains)


def test_operator_rules_are_whole_and_name_operators_that_exist():
    for rule in rules().operators:
        assert rule.outcome in {"refused", "unknown", "slow", "fine"}
        assert rule.confidence in CONFIDENCE
        assert rule.outcome == "fine" or (rule.why and rule.instead)
        if not rule.domain:
            assert [name for name in rule.operators if not onnx.defs.has(name, "")] == []


@pytest.mark.parametrize("toolchain", rules().toolchains)
@pytest.mark.parametrize("chip", ["KirinX90", "Kirin9020"])
def test_no_operator_rule_hides_another(toolchain, chip):
    for key, found in rules().for_operators(toolchain, chip).items():
        decided = [rule for number, rule in enumerate(found) if any(each.when is None for each in found[:number])]
        # only what holds on one chip may stand before what holds on all
        assert all(found[0].chips and not rule.chips for rule in decided), key


def test_a_body_of_a_branch_is_judged_too():
    branch = graph_of(node("MatMulInteger", "x", "x"), inputs=())
    model = model_of(
        node("If", "x", then_branch=branch, else_branch=branch), inputs=[value("x", TensorProto.BOOL, (1,))]
    )
    report = judge(model)
    assert report.nodes == 3
    counts = {verdict.operator: (verdict.outcome, verdict.count) for verdict in report.operators}
    assert counts == {"MatMulInteger": ("refused", 2), "If": ("unknown", 1)}
