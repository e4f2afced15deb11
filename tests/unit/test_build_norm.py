"""RMSNorm of the engine form: computed in fp16 throughout, no row overflows, and in float32 nothing changes."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from pytest_cannlm.build import decoder
from pytest_cannlm.build.engine_form import engine_form
from pytest_cannlm.build.graph import GraphWriter
from pytest_cannlm.models.checkpoint import open_checkpoint

EPS = 1e-6
DTYPES = {"float16": onnx.TensorProto.FLOAT16, "float32": onnx.TensorProto.FLOAT}


@pytest.fixture(scope="module")
def shipped(tiny_checkpoint):
    """The last norm of an engine form as it is shipped, up to the multiplication with its weight."""
    with open_checkpoint(tiny_checkpoint("tiny-qwen3")) as checkpoint:
        assert checkpoint.config.rms_norm_eps == EPS
        model = engine_form(checkpoint.config, 128, location="none")
    nodes = [node for node in model.graph.node if node.name.startswith("/final_norm/") and "scaled" not in node.name]
    return nodes, {tensor.name: tensor for tensor in model.graph.initializer}


@pytest.fixture(scope="module")
def naive():
    """The six nodes alone."""
    g = GraphWriter("norm")
    decoder.six_node_norm(g, "x", g.constant("eps", EPS, "float32"), "/norm")
    g.output("/norm/div.f32", "float32", ["n", "k"])
    graph = g.model({"": 12}, 7).graph
    return list(graph.node), {tensor.name: tensor for tensor in graph.initializer}


def evaluate(norm, rows, dtype, outputs=None):
    """``rows`` normed with every result in ``dtype``."""
    nodes, constants = norm
    made = {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input} - made
    (x,) = read - set(constants)
    used = ((name, numpy_helper.to_array(constants[name])) for name in read & set(constants))
    initializers = [numpy_helper.from_array(value.astype(dtype), name) for name, value in used]
    values = [onnx.helper.make_tensor_value_info(name, DTYPES[dtype], None) for name in (x, nodes[-1].output[0])]
    graph = onnx.helper.make_graph(nodes, "norm", values[:1], values[1:], initializer=initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 12)])
    with np.errstate(over="ignore", under="ignore"):
        return ReferenceEvaluator(model).run(outputs, {x: rows.astype(dtype)})[0]


def exact(rows):
    wide = rows.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS)


def rows_with(**last):
    rows = np.random.default_rng(5).standard_normal((64, 1536)).astype(np.float32)
    for name, value in last.items():
        if name == "all":
            rows[-1] = value
        else:
            rows[-1, 17] = value
    return rows


RANGES = {
    "300 throughout": rows_with(all=300.0),
    "25168 throughout": rows_with(all=25168.0),
    "one of 25168": rows_with(one=25168.0),
    "the largest of fp16": rows_with(all=65504.0),
    "small": rows_with(all=0.02),
    "one of 300 among zeros": rows_with(all=0.0, one=300.0),
    "normal": rows_with(),
}


@pytest.mark.parametrize("rows", RANGES.values(), ids=RANGES)
def test_no_row_is_lost_in_fp16(shipped, rows):
    found = evaluate(shipped, rows, "float16")
    assert np.isfinite(found).all()
    expected = exact(rows)
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < 5e-3


@pytest.mark.parametrize("name", ["300 throughout", "25168 throughout", "one of 25168", "the largest of fp16"])
def test_the_six_nodes_alone_lose_it(naive, name):
    assert np.abs(evaluate(naive, RANGES[name], "float16")[-1]).max() == 0


@pytest.mark.parametrize("rows", RANGES.values(), ids=RANGES)
def test_in_float32_it_is_rms_norm(shipped, rows):
    np.testing.assert_allclose(evaluate(shipped, rows, "float32"), exact(rows), rtol=2e-6, atol=1e-30)


def test_zeros_stay_zeros(shipped):
    assert (evaluate(shipped, np.zeros((2, 1536)), "float16") == 0).all()


@pytest.mark.parametrize("rows", RANGES.values(), ids=RANGES)
def test_squares_sum_to_no_more_than_their_number(shipped, rows):
    """So that a mean stays a number whichever way it is added up."""
    squares = evaluate(shipped, rows, "float16", ["/final_norm/pow.f32"])
    assert squares.astype(np.float64).sum(axis=1).max() <= 1.01 * rows.shape[1]
