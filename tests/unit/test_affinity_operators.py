"""Nodes of a model against the operator rules."""

import pytest
from onnx import TensorProto
from onnx_models import INT32, INT64, integers, model_of, node, value

from pytest_cannlm.affinity import OperatorVerdict, examine_model

INT8 = TensorProto.INT8


def verdict(model, operator: str, *, chip: str = "KirinX90", toolchain: str = "omg") -> OperatorVerdict:
    report = examine_model(model, chip=chip, toolchain=toolchain)
    return next(each for each in report.operators if each.operator == operator)


def of_two(operator: str, one: int, other: int, **attributes: object):
    inputs = [value("x", one, (4, 4)), value("z", other, (4, 4))]
    return model_of(node(operator, "x", "z", **attributes), inputs=inputs)


@pytest.mark.parametrize("operator", ["MatMulInteger", "DynamicQuantizeLinear", "QuantizeLinear", "QLinearMatMul"])
def test_quantization_of_onnx_is_refused_and_dopt_named(operator):
    found = verdict(model_of(node(operator, "x")), operator)
    assert found.outcome == "refused"
    assert "dopt" in found.why


@pytest.mark.parametrize("operator", ["Unsqueeze", "Expand"])
def test_what_the_guide_lists_and_the_converter_refuses_is_refused_on_that_chip(operator):
    model = model_of(node(operator, "x"))
    assert verdict(model, operator).outcome == "refused"
    assert verdict(model, operator, chip="Kirin9020").outcome == "fine"


@pytest.mark.parametrize("operator", ["GroupQueryAttention", "RotaryEmbedding", "MatMulNBits", "FastGelu"])
def test_operators_of_onnxruntime_are_refused_with_their_domain(operator):
    model = model_of(node(operator, "x", domain="com.microsoft"), opsets=[("", 12), ("com.microsoft", 1)])
    assert verdict(model, f"com.microsoft::{operator}").outcome == "refused"


def test_the_domain_is_part_of_the_operator():
    found = verdict(model_of(node("Mul", "x", "x", domain="own"), opsets=[("", 12), ("own", 1)]), "own::Mul")
    assert (found.outcome, found.confidence) == ("unknown", "inferred")


@pytest.mark.parametrize("operator", ["Attention", "RMSNormalization", "RotaryEmbedding", "Gelu"])
def test_an_operator_newer_than_the_converter_is_refused(operator):
    found = verdict(model_of(node(operator, "x"), opsets=[("", 23)]), operator)
    assert found.outcome == "refused"
    assert "opset" in found.why


@pytest.mark.parametrize("operator", ["Identity", "NonZero", "NoSuchOperator"])
def test_an_operator_of_no_list_is_unknown(operator):
    found = verdict(model_of(node(operator, "x")), operator)
    assert found.outcome == "unknown"
    assert "list" in found.why


@pytest.mark.parametrize("operator", ["Sin", "Cos", "TopK", "LayerNormalization"])
def test_slow_operators_say_what_instead(operator):
    found = verdict(model_of(node(operator, "x"), opsets=[("", 17)]), operator)
    assert found.outcome == "slow"
    assert found.instead


def test_division_is_slow_except_by_a_root():
    assert verdict(of_two("Div", 1, 1), "Div").outcome == "slow"
    norm = model_of(node("Sqrt", "x", to="root"), node("Div", "x", "root"))
    assert verdict(norm, "Div").outcome == "fine"


def test_integer_by_integer_is_refused_and_float_by_integer_is_not():
    assert verdict(of_two("MatMul", INT8, INT8), "MatMul").outcome == "refused"
    assert verdict(of_two("MatMul", TensorProto.UINT8, INT8), "MatMul").outcome == "refused"
    assert verdict(of_two("MatMul", TensorProto.FLOAT, INT8), "MatMul").outcome == "fine"


def test_the_type_of_a_factor_follows_through_the_graph():
    nodes = [node("Transpose", "x", to="t"), node("Reshape", "t", "s", to="r"), node("MatMul", "r", "x")]
    model = model_of(*nodes, inputs=[value("x", INT8, (4, 4))], constants=[integers("s", 4, 4)])
    assert verdict(model, "MatMul").outcome == "refused"


def test_a_cast_makes_a_factor_float():
    nodes = [node("Cast", "x", to="t"), node("MatMul", "t", "x")]
    nodes[0].attribute.add(name="to", i=TensorProto.FLOAT, type=2)
    model = model_of(*nodes, inputs=[value("x", INT8, (4, 4))])
    assert verdict(model, "MatMul").outcome == "fine"


@pytest.mark.parametrize(("element", "outcome"), [(1, "fine"), (INT32, "fine"), (INT64, "refused"), (INT8, "refused")])
def test_add_takes_float_and_int32(element, outcome):
    assert verdict(of_two("Add", element, element), "Add").outcome == outcome


@pytest.mark.parametrize("operator", ["Gather", "ScatterND"])
def test_computed_indices_have_to_be_int32(operator):
    assert verdict(of_two(operator, 1, INT64), operator).outcome == "refused"
    assert verdict(of_two(operator, 1, INT32), operator).outcome == "fine"
    constant = model_of(node(operator, "x", "i"), constants=[integers("i", 0, 1)])
    assert verdict(constant, operator).outcome == "fine"


def test_cubic_resize_is_refused_and_linear_is_not_known():
    assert verdict(model_of(node("Resize", "x", mode="cubic")), "Resize").outcome == "refused"
    assert verdict(model_of(node("Resize", "x", mode="linear")), "Resize").outcome == "unknown"


def test_training_and_classical_operators_are_refused_by_their_domain():
    for domain, operator in (("ai.onnx.preview.training", "Gradient"), ("ai.onnx.ml", "Normalizer")):
        model = model_of(node(operator, "x", domain=domain), opsets=[("", 12), (domain, 1)])
        assert verdict(model, f"{domain}::{operator}").outcome == "refused"


def test_control_flow_is_unknown_and_says_what_to_do():
    found = verdict(model_of(node("Loop", "x")), "Loop")
    assert found.outcome == "unknown"
    assert "unrolled" in found.instead


def test_nodes_without_a_name_go_by_their_output():
    nameless = node("Relu", "x")
    nameless.name = ""
    assert verdict(model_of(nameless), "Relu").where == ("Relu of y",)


def test_nodes_of_one_operator_are_one_line_with_the_first_names():
    nodes = [node("Relu", "x", to=f"y{n}") for n in range(7)]
    found = verdict(model_of(*nodes), "Relu")
    assert (found.count, found.where) == (7, ("n_y0", "n_y1", "n_y2"))
