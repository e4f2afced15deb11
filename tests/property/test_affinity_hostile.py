"""Affinity on spoiled models: a report or an error of ours, whatever the file holds."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx_models import attention, external, graph_of, integers, model_of, node, plain, rope, value

from pytest_cannlm.affinity import examine
from pytest_cannlm.cli.affinity import judge
from pytest_cannlm.errors import CannlmError
from pytest_cannlm.strategies import mutations


def _branches():
    inner = graph_of(node("Mul", "x", "v"), inputs=(), constants=[external("v", [2], location="v.bin", offset="0")])
    return model_of(node("If", "x", then_branch=inner, else_branch=inner))


SEEDS = [
    model.SerializeToString(deterministic=True)
    for model in (
        plain(inputs=[value("x", dims=("S", None))]),
        rope(),
        attention(),
        _branches(),
        model_of(node("Gather", "x", "i"), constants=[integers("i", 1, 2**40)]),
        model_of(node("Resize", "x", mode="cubic"), opsets=[("", 12), ("com.microsoft", 1)]),
    )
]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "model.onnx"


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.sampled_from(SEEDS),
    spoil=st.lists(mutations(), min_size=1, max_size=3),
    toolchain=st.sampled_from(["omg", "atc"]),
)
@example(seed=SEEDS[0], spoil=[lambda data: b""], toolchain="omg")
@example(seed=SEEDS[0], spoil=[lambda data: data.replace(b"x", b"\xff")], toolchain="omg")
def test_a_spoiled_model_is_a_report_or_an_error_of_ours(path, seed, spoil, toolchain):
    data = seed
    for damage in spoil:
        data = damage(data)
    path.write_bytes(data)
    try:
        report = examine(path, chip="KirinX90", toolchain=toolchain)
    except CannlmError:
        return
    json.dumps(report.as_dict())
    texts = [*report.findings, *report.operators]
    assert all("\n" not in place for each in texts for place in each.where)
    assert judge(path, chip="KirinX90", path=toolchain, shapes=(), gears=()).lines
