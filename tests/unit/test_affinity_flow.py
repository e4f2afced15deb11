"""What follows from node to node: types, numbers of dimensions, and whether a value is there at all."""

import pytest
from onnx import TensorProto, helper
from onnx_models import INT32, INT64, external, floats, graph_of, integers, model_of, node, value

from pytest_cannlm.affinity import AffinityReport, Finding, examine_model, ranks
from pytest_cannlm.affinity.ranks import Extent

DOUBLE = TensorProto.DOUBLE


def judge(*nodes, **graph) -> AffinityReport:
    return examine_model(model_of(*nodes, **graph), chip="KirinX90", toolchain="omg")


def outcome(report: AffinityReport, operator: str) -> str:
    return next(each.outcome for each in report.operators if each.operator == operator)


def findings(report: AffinityReport, rule: str) -> list[Finding]:
    return [each for each in report.findings if each.rule == rule]


# -- types

INDICES = {
    "Range": [node("Range", "zero", "four", "one", to="i")],
    "TopK": [node("TopK", "x", "one", to=["top", "i"])],
    "Constant, computed with": [
        node("Constant", to="k", value_int=1),
        node("Constant", to="many", value_ints=[1, 2]),
        node("Mul", "k", "many", to="i"),
    ],
    "CumSum": [node("CumSum", "four", "zero", to="i")],
    "ConstantOfShape": [
        node("ConstantOfShape", "one", to="i", value=helper.make_tensor("v", INT64, [1], [0])),
    ],
    "EyeLike": [node("EyeLike", "x", to="i", dtype=INT64)],
    "EyeLike, of its input": [node("Shape", "x", to="s"), node("EyeLike", "s", to="i")],
    "CastLike": [node("CastLike", "x", "four", to="i")],
    "Unique": [node("Unique", "x", to=["u", "i"])],
    "Where, of its second": [node("Equal", "x", "x", to="c"), node("Where", "c", "open", "four", to="i")],
}
"""Ways to compute indices of int64."""


@pytest.mark.parametrize("way", INDICES)
def test_indices_computed_as_int64_are_refused(way):
    constants = [integers("zero", 0), integers("one", 1), integers("four", 4)]
    report = judge(*INDICES[way], node("Gather", "x", "i"), constants=constants)
    assert outcome(report, "Gather") == "refused"


def test_the_type_of_each_output_is_its_own():
    constants = [integers("one", 1)]
    report = judge(node("TopK", "x", "one", to=["y", "i"]), node("Gather", "w", "y", to="z"), constants=constants)
    assert outcome(report, "Gather") == "fine"  # of floats it is invalid, and not of int64


def test_indices_of_a_type_that_nobody_knows_are_unknown():
    own = node("Own", "x", to="i", domain="own")
    report = judge(own, node("Gather", "x", "i"), opsets=[("", 12), ("own", 1)])
    assert outcome(report, "Gather") == "unknown"
    cast = node("Cast", "i", to="j")
    cast.attribute.append(helper.make_attribute("to", INT32))
    report = judge(own, cast, node("Gather", "x", "j"), opsets=[("", 12), ("own", 1)])
    assert outcome(report, "Gather") == "fine"


def test_what_a_loop_gives_is_not_taken_for_what_it_was_given():
    body = graph_of(node("Identity", "x", to="b"), inputs=(), outputs=[value("b")])
    loop = node("Loop", "", "", "x", "x", to=["l", "i"], body=body)
    assert outcome(judge(loop, node("Gather", "x", "i")), "Gather") == "unknown"


@pytest.mark.parametrize(
    "given",
    [
        node("RandomNormalLike", "x", to="y", dtype=DOUBLE),
        node("ConstantOfShape", "one", value=helper.make_tensor("v", DOUBLE, [1], [0.0])),
    ],
)
def test_a_type_that_no_operator_takes_is_found_where_an_attribute_makes_it(given):
    report = judge(given, node("Relu", "y", to="z"), outputs=[value("z")], constants=[integers("one", 1)])
    assert findings(report, "data-type")[0].found == "double"


def test_a_filled_tensor_is_float_unless_it_says_otherwise():
    report = judge(
        node("ConstantOfShape", "one", to="f"), node("MatMul", "f", "f"), constants=[integers("one", 1)], outputs=[]
    )
    assert not findings(report, "data-type")
    assert outcome(report, "MatMul") == "fine"


# -- constants in every spelling


@pytest.mark.parametrize("spelling", [{"value_int": 2**40}, {"value_ints": [1, 2**40]}])
def test_large_integers_are_found_in_every_spelling_of_a_constant(spelling):
    report = judge(node("Constant", to="k", **spelling), node("Gather", "x", "k"))
    (finding,) = findings(report, "int64-too-large")
    assert finding.where == (f"{next(iter(spelling))} of n_k",)
    assert outcome(report, "Gather") == "fine"


def test_other_spellings_are_floats_and_texts():
    report = judge(
        node("Constant", to="f", value_float=1.0),
        node("Constant", to="fs", value_floats=[1.0, 2.0]),
        node("Add", "f", "fs"),
        node("Constant", to="t", value_string="text"),
        node("Constant", to="ts", value_strings=["a", "b"]),
    )
    assert outcome(report, "Add") == "fine"
    (finding,) = findings(report, "data-type")
    assert (finding.found, finding.where) == ("string", ("t", "ts"))


def test_a_sparse_constant_has_the_type_of_its_values():
    sparse = helper.make_sparse_tensor(floats("", 2), integers("", 1, 3), [4])
    report = judge(node("Constant", to="k", sparse_value=sparse), node("Add", "x", "k"))
    assert outcome(report, "Add") == "fine"


# -- numbers of dimensions

SIX = integers("six", 1, 1, 1, 1, 2, 4)
GROWS = {
    "Reshape": [node("Reshape", "x", "six", to="q")],
    "Reshape to a shape that is put together": [
        node("Shape", "x", to="s"),
        node("Concat", "four", "s", to="shape", axis=0),
        node("Reshape", "x", "shape", to="q"),
    ],
    "Reshape to a Constant": [
        node("Constant", to="shape", value_ints=[1, 1, 1, 1, 2, 4]),
        node("Reshape", "x", "shape", to="q"),
    ],
    "Reshape to numbers that are taken out": [
        node("Shape", "x", to="s"),
        node("Gather", "s", "zero", to="n"),
        node("Unsqueeze", "n", to="length", axes=[0]),
        node("Concat", "length", "four", "length", to="shape", axis=0),
        node("Reshape", "x", "shape", to="q"),
    ],
    "Expand": [node("Expand", "x", "six", to="q")],
    "ConstantOfShape": [node("ConstantOfShape", "six", to="q")],
    "Unsqueeze": [node("Unsqueeze", "x", to="q", axes=[0, 1, 2, 3])],
    "Unsqueeze by an input": [node("Unsqueeze", "x", "four", to="q")],
    "Gather": [node("Reshape", "i", "five", to="j"), node("Gather", "x", "j", to="q")],
}
"""Ways to six dimensions that nothing declares."""
THEN = {
    "Transpose": node("Transpose", "q", to="r", perm=[5, 4, 3, 2, 1, 0]),
    "Tile": node("Tile", "q", "six", to="r"),
    "Cast": node("Identity", "q", to="r"),
    "Add": node("Add", "x", "q", to="r"),
    "MatMul": node("MatMul", "q", "x", to="r"),
    "ReduceSum": node("ReduceSum", "q", to="r"),
    "TopK": node("TopK", "q", "six", to=["t", "r"]),
}


def ranked(*nodes) -> set[str]:
    constants = [SIX, integers("four", 1, 1, 1, 1), integers("five", 1, 1, 1, 1, 1), integers("flat", 8)]
    constants.append(helper.make_tensor("zero", INT64, [], [0]))
    inputs = [value("x"), value("i", INT32, (1,))]
    (finding,) = findings(judge(*nodes, constants=constants, inputs=inputs), "rank")
    assert (finding.found, finding.outcome) == ("6 dimensions", "refused")
    return set(finding.where)


@pytest.mark.parametrize("way", GROWS)
def test_too_many_dimensions_are_found_where_a_node_makes_them(way):
    assert ranked(*GROWS[way], node("Reshape", "q", "flat")) == {"q"}


@pytest.mark.parametrize("then", THEN)
def test_too_many_dimensions_are_followed(then):
    assert "r" in ranked(*GROWS["Reshape"], THEN[then], node("Reshape", "r", "flat"))


def test_a_shape_in_an_external_file_has_a_known_length():
    shape = external("shape", [6], INT64, location="s", offset="0", length="48")
    assert findings(judge(node("Reshape", "x", "shape"), constants=[shape], outputs=[value("y", dims=None)]), "rank")


def test_dimensions_that_are_taken_away_are_not_counted():
    squeezed = [node("Reshape", "x", "five", to="q"), node("Squeeze", "q", to="s", axes=[0, 1])]
    grown = node("Unsqueeze", "s", to="y", axes=[0, 1])
    constants = [integers("five", 1, 1, 1, 2, 4)]
    report = judge(*squeezed, grown, constants=constants, outputs=[value("y", dims=None)])
    assert not findings(report, "rank")


@pytest.mark.parametrize(
    ("operator", "attributes", "inputs", "found"),
    [
        ("Shape", {}, [Extent(6)], Extent(1, 6)),
        ("Shape", {"start": 1}, [Extent(6)], Extent(1)),
        ("Expand", {}, [Extent(6), Extent(1, 2)], Extent(6)),
        ("Expand", {}, [Extent(6), Extent(1)], None),
        ("MatMul", {}, [Extent(6), Extent(2)], Extent(6)),
        ("MatMul", {}, [Extent(6), Extent(1)], None),
        ("ReduceSum", {}, [Extent(6)], Extent(6)),
        ("ReduceSum", {"keepdims": 0}, [Extent(6)], None),
        ("Concat", {}, [Extent(1, 4), Extent(1)], Extent(1)),
        ("Gather", {}, [Extent(1, 6), Extent(0)], Extent(0)),
        ("Add", {}, [Extent(6), None], None),
        ("Unsqueeze", {}, [Extent(5), None], None),
    ],
)
def test_extents_are_told_where_they_are_beyond_doubt(operator, attributes, inputs, found):
    names = [f"i{number}" for number in range(len(inputs))]
    known = {name: extent for name, extent in zip(names, inputs, strict=True) if extent is not None}
    ranks.follow(node(operator, *names, **attributes), known)
    assert known.get("y") == found


def test_a_tensor_of_too_many_dimensions_is_told_once_and_not_in_every_branch():
    branch = graph_of(node("Relu", "x", to="b"), inputs=(), outputs=[value("b")])
    report = judge(
        node("If", "c", then_branch=branch, else_branch=branch),
        inputs=[value("x", dims=(1, 1, 1, 1, 2, 4)), value("c", TensorProto.BOOL, (1,))],
    )
    assert findings(report, "rank")[0].where == ("x",)


# -- whether a value is there


@pytest.mark.parametrize(
    ("nodes", "place", "found"),
    [
        ([node("Mul", "x", "z")], "z of n_y", "computed nowhere"),
        ([node("Relu", "z"), node("Relu", "x", to="z")], "z of n_y", "computed later"),
        ([node("Relu", "y")], "y of n_y", "computed later"),
        ([node("Relu", "x", to="z")], "output y", "computed nowhere"),
    ],
)
def test_a_value_that_is_not_there_is_named_with_its_place(nodes, place, found):
    (finding,) = findings(judge(*nodes), "undefined-value")
    assert (finding.where, finding.found, finding.outcome) == ((place,), found, "refused")


@pytest.mark.parametrize("name", ["x", "w"])
def test_no_node_writes_an_input_or_a_constant(name):
    report = judge(node("Relu", "x"), node("Relu", "x", to=name), constants=[floats("w", 2, 4)])
    assert findings(report, "written-twice")[0].where == (f"{name} of n_{name}",)


def test_a_branch_sees_what_is_around_it_and_nothing_else():
    seeing = graph_of(node("Relu", "z", to="b"), inputs=(), outputs=[value("b")])
    blind = graph_of(node("Relu", "a", to="b"), inputs=(), outputs=[value("b")])
    report = judge(
        node("Relu", "x", to="z"),
        node("If", "c", then_branch=seeing, else_branch=blind),
        inputs=[value("x"), value("c", TensorProto.BOOL, (1,))],
    )
    (finding,) = findings(report, "undefined-value")
    assert finding.where == ("a of n_b",)
    assert not findings(report, "written-twice")


def test_a_branch_in_a_branch_sees_the_graph():
    inner = graph_of(node("Relu", "x", to="d"), inputs=(), outputs=[value("d")])
    outer = graph_of(node("If", "c", to="b", then_branch=inner, else_branch=inner), inputs=(), outputs=[value("b")])
    inputs = [value("x"), value("c", TensorProto.BOOL, (1,))]
    report = judge(node("If", "c", then_branch=outer, else_branch=outer), inputs=inputs)
    assert not findings(report, "undefined-value")
