"""Sizes that a user gives to inputs: what is accepted, and every refusal with name, value and what is needed."""

import pytest
from onnx_models import FLOAT, INT32, node, plain, value

from pytest_cannlm.affinity import examine_model
from pytest_cannlm.affinity.shapes import parsed
from pytest_cannlm.errors import UsageError


def model():
    """Inputs with a symbol, with two, and with a dimension that has neither value nor name."""
    return plain(
        inputs=[
            value("x", INT32, ("batch", "seq")),
            value("mask", FLOAT, ("batch", "past+seq")),
            value("third", FLOAT, (None, 4)),
        ]
    )


def judge(toolchain: str = "omg", **sizes: object):
    return examine_model(model(), chip="KirinX90", toolchain=toolchain, **sizes)


def open_dimensions(report) -> set[str]:
    return {finding.found for finding in report.findings if finding.rule in ("shape-open", "shape-unnamed")}


def test_every_open_dimension_is_asked_for_by_name():
    assert open_dimensions(judge()) == {
        "dimension batch",
        "dimension seq",
        "dimension past+seq",
        "no value and no name",
    }


def test_a_shape_settles_its_symbols_wherever_they_stand():
    report = judge(shapes={"x": (1, 64)})
    assert open_dimensions(report) == {"dimension past+seq", "no value and no name"}


def test_gears_and_shapes_together_leave_nothing_open():
    sizes = {"batch": (1,), "seq": (1, 64), "past+seq": (65, 128)}
    report = judge(gears=sizes, shapes={"third": (2, 4)})
    assert report.answer == "fine"


def test_atc_takes_one_size_and_omg_sixteen():
    def rules(toolchain: str, number: int) -> set[str]:
        return {each.rule for each in judge(toolchain, gears={"seq": tuple(range(1, number + 1))}).findings}

    assert "gears" not in rules("omg", 16)
    assert "gears" in rules("omg", 17)
    assert "gears" not in rules("atc", 1)
    assert "gears" in rules("atc", 2)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"shapes": {"x": (1, -1)}}, "--shape x=1,-1: every size has to be positive"),
        ({"shapes": {"x": (1, 0)}}, "--shape x=1,0: every size has to be positive"),
        ({"gears": {"seq": ()}}, "--gears seq=: every size has to be positive"),
        ({"shapes": {"x:0": (1, 64)}}, "--shape x:0=1,64: an input x:0 is not in the model"),
        ({"shapes": {"maks": (1, 64)}}, "did you mean mask?"),
        ({"shapes": {"seq": (1,)}}, "that is a name for --gears"),
        ({"gears": {"x": (1, 64)}}, "that is a name for --shape"),
        ({"shapes": {"x": (1, 64, 2)}}, "3 dimensions are given, the model declares 2"),
        ({"shapes": {"third": (1, 5)}}, "dimension 1 is given as 5, the model fixes 4"),
        ({"shapes": {"x": (1, 64), "mask": (2, 64)}}, "batch is given as 2, and elsewhere as 1"),
        ({"gears": {"seq": (1, 64)}, "shapes": {"x": (1, 64)}}, "seq is given as 64, and elsewhere as 1,64"),
        ({"gears": {"seq": (1, 64), "past+seq": (1, 2, 3)}}, "seq has 2, past+seq has 3"),
    ],
)
def test_sizes_that_cannot_be_are_wrong_use(sizes, told):
    with pytest.raises(UsageError) as caught:
        judge(**sizes)
    assert told in str(caught.value)


def test_all_wrong_sizes_are_told_at_once():
    with pytest.raises(UsageError) as caught:
        judge(shapes={"x": (1, 0), "y": (1,)}, gears={"nothing": (1,)})
    assert all(name in str(caught.value) for name in ("--shape x", "--shape y", "--gears nothing"))


def test_texts_become_names_and_sizes():
    assert parsed("--shape", ["x=1,64", "a=b=2"]) == {"x": (1, 64), "a=b": (2,)}


@pytest.mark.parametrize("texts", [["x"], ["=1"], ["x="], ["x=1,12.5"], ["x=1,,2"], ["x=one"], ["x=1", "x=2"]])
def test_texts_of_another_form_are_wrong_use(texts):
    with pytest.raises(UsageError) as caught:
        parsed("--shape", texts)
    assert caught.value.field == "--shape"


@pytest.mark.parametrize(("chip", "toolchain"), [("KirinX99", "omg"), ("KirinX90", "dopt")])
def test_unknown_chips_and_converters_are_wrong_use(chip, toolchain):
    with pytest.raises(UsageError):
        examine_model(plain(), chip=chip, toolchain=toolchain)


def test_dimensions_that_are_not_positive_may_be_settled_by_a_shape():
    spoiled = plain(inputs=[value("x", dims=(0, 4))])
    assert examine_model(spoiled, chip="kirin x90", toolchain="omg", shapes={"x": (1, 4)}).answer == "fine"
    assert examine_model(spoiled, chip="KirinX90", toolchain="omg").answer == "refused"


def test_an_initializer_among_the_inputs_is_not_asked_for():
    from onnx_models import floats, model_of

    old = model_of(
        node("Mul", "x", "w"), inputs=[value("x"), value("w", dims=("N", 4))], constants=[floats("w", 2, 4)], ir=3
    )
    assert examine_model(old, chip="KirinX90", toolchain="omg").answer == "fine"
