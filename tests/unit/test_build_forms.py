"""The two exported forms: the interface that the engine expects, and equal numbers."""

import numpy as np
import onnx
import pytest
from engine_form import EngineForm, cut
from tiny import tiny_llama

from pytest_cannlm.build.engine_form import for_onnxruntime, interface, write_engine_form
from pytest_cannlm.build.reference import float_reference
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress

CONTEXT = 128
IDS = np.random.default_rng(7).integers(0, 500, 80).tolist()
CONVERTER_OPERATORS = {
    "Abs", "Add", "Cast", "Concat", "Div", "Gather", "MatMul", "Mul", "Pow", "ReduceMax", "ReduceMean", "Reshape",
    "ScatterND", "Sigmoid", "Slice", "Softmax", "Sqrt", "Transpose",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint():
    with open_checkpoint(tiny_llama()) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine_form(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine form") / "model.onnx"
    write_engine_form(checkpoint.config, CONTEXT, checkpoint.read, path)
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return OnnxReference(float_reference(tiny_llama(), context=256, cache=cache, progress=SilentProgress()))


def test_engine_form_has_the_engines_interface(checkpoint, engine_form):
    graph = onnx.load(engine_form, load_external_data=False).graph
    names = [i.name for i in graph.input]
    assert names == [
        "input_embed", "attention_mask", "position_ids",
        "past_key_in0", "past_value_in0", "past_key_in1", "past_value_in1",
        "new_kv_cache_pos", "embed_scales",
    ]  # fmt: skip
    assert [o.name for o in graph.output] == ["lm_logits", "past_key0", "past_value0", "past_key1", "past_value1"]
    c = checkpoint.config
    declared = {v.name: (v.type.tensor_type.elem_type, _dims(v)) for v in [*graph.input, *graph.output]}
    types = onnx.TensorProto
    assert declared["input_embed"] == (types.INT8, [1, "S", c.hidden_size])
    assert declared["attention_mask"] == (types.FLOAT, [1, 1, "S", CONTEXT])
    assert declared["position_ids"] == (types.INT32, [1, "S"])
    assert declared["past_key_in1"] == (types.FLOAT, [CONTEXT, c.kv_heads, 1, c.head_dim])
    assert declared["new_kv_cache_pos"] == (types.INT32, ["S"])
    assert declared["embed_scales"] == (types.FLOAT, [1, "S", 1])
    assert declared["lm_logits"] == (types.FLOAT, [1, "S", c.vocab_size])
    assert declared["past_value0"] == (types.FLOAT, [CONTEXT, c.kv_heads, 1, c.head_dim])


def test_qwen_sized_interface_has_61_inputs_and_57_outputs(checkpoint):
    from dataclasses import replace

    inputs, outputs = interface(replace(checkpoint.config, layers=28), 2048)
    assert (len(inputs), len(outputs)) == (61, 57)


def test_engine_form_uses_opset_12_and_standard_operators_only(engine_form):
    model = onnx.load(engine_form, load_external_data=False)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 12)]
    assert {node.op_type for node in model.graph.node} <= CONVERTER_OPERATORS
    assert {node.domain for node in model.graph.node} == {""}
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


def test_scatter_indices_are_int32_for_the_converter_and_int64_for_onnxruntime(engine_form):
    model = onnx.load(engine_form, load_external_data=False)
    assert not [n for n in model.graph.node if n.op_type == "Cast" and "indices64" in n.name]
    fixed = for_onnxruntime(model)
    assert len([n for n in fixed.graph.node if "indices64" in n.name]) == 4
    path = engine_form.with_name("checked.onnx")
    onnx.save(fixed, path)
    onnx.checker.check_model(path)


def test_both_forms_give_equal_logits_in_prefill_and_decode(checkpoint, engine_form, reference):
    """Prefill in steps of 64, then decode steps of 1, on both forms and the same float weights."""
    table = checkpoint.read("model.embed_tokens.weight")
    # both forms must see the same rows: int8 rows with a scale, as the engine feeds them
    scales = np.abs(table).max(1, keepdims=True) / 127
    rows = np.rint(table / scales).astype(np.int8)
    reference.session._embedding = lambda ids: rows[ids] * scales[ids]
    expected = np.concatenate(list(reference.logits(IDS)))
    engine = EngineForm(engine_form, checkpoint.config, CONTEXT)
    steps = cut(IDS, prefill=64, single=16)
    scales = scales.astype(np.float32)
    got = np.concatenate([engine.step({"input_embed": rows[step], "embed_scales": scales[step]}) for step in steps])
    np.testing.assert_allclose(got, expected, atol=2e-4, rtol=1e-4)
    del reference.session


def test_runtime_form_chunked_equals_token_by_token(reference):
    whole = np.concatenate(list(reference.logits(IDS)))
    session = reference.session
    session.rewind(0)
    single = np.stack([session.feed([i]) for i in IDS])
    np.testing.assert_allclose(single, whole, atol=2e-4, rtol=1e-4)


def test_rewinding_the_cache_gives_the_same_logits_again(reference):
    session = reference.session
    session.rewind(0)
    session.feed(IDS[:40])
    before = session.feed(IDS[40:50])
    session.rewind(40)
    np.testing.assert_array_equal(session.feed(IDS[40:50]), before)
    with pytest.raises(ValueError, match="cannot rewind"):
        session.rewind(51)


def _dims(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
