"""The real model: read, tokenized and computed as its originals do."""

import tracemalloc

import numpy as np
import numpy_llama
import pytest
from goldens import cosine, golden_arrays, golden_tokens
from real_model import smollm2

from pytest_cannlm.build.reference import float_reference
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tensors import parameter_count
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress

WHY_SKIPPED = "compares live with transformers, which is not installed here; the stored goldens are checked anyway"


@pytest.fixture(scope="module")
def checkpoint():
    with open_checkpoint(smollm2()) as opened:
        yield opened


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer(checkpoint.tokenizer())


def test_the_configuration(checkpoint):
    config = checkpoint.config
    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert (config.layers, config.hidden_size, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.rope.theta, config.rms_norm_eps, config.torch_dtype) == (100000.0, 1e-05, "q4_1")
    assert config.eos_sources == (("tokenizer.ggml.eos_token_id", (2,)),)
    assert parameter_count(config) == 134_515_008


@pytest.mark.parametrize("case", golden_tokens()["encoded"], ids=lambda case: ascii(case["text"])[:40])
def test_ids_are_those_of_llama_cpp(tokenizer, case):
    assert tokenizer.encode(case["text"]) == case["special"]
    assert tokenizer.encode(case["text"], special=False) == case["plain"]
    assert tokenizer.decode(case["plain"]) == case["text"]


def test_the_engine_form_gives_the_same_ids(tokenizer):
    engine = Tokenizer.from_json(tokenizer.spec.engine_json())
    for case in golden_tokens()["encoded"]:
        assert engine.encode(case["text"]) == case["special"]


def test_the_chat_is_rendered_as_by_transformers(tokenizer):
    chat = golden_tokens()["chat"]
    assert tokenizer.render_chat(chat["messages"]) == chat["prompt"]
    assert tokenizer.render_chat(chat["messages"], add_generation_prompt=False) == chat["transcript"]


def test_the_weights_give_the_golden_logits(checkpoint):
    golden = golden_arrays("smollm2_135m")
    ours = numpy_llama.logits(checkpoint, golden["ids"])
    assert cosine(ours[:, golden["columns"]], golden["logits"]).min() >= 0.99999
    assert np.abs(ours[:, golden["columns"]] - golden["logits"]).max() < 2e-3
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), golden["norm"], rtol=1e-5)
    np.testing.assert_allclose(np.logaddexp.reduce(ours.astype(np.float64), axis=1), golden["logsumexp"], atol=1e-3)
    clear = golden["argmax_margin"] > 1e-2
    assert clear.sum() > 50
    np.testing.assert_array_equal(ours.argmax(axis=1)[clear], golden["argmax"][clear])


def test_a_row_range_takes_memory_for_those_rows_only(checkpoint):
    name = "model.embed_tokens.weight"
    checkpoint.read(name, slice(0, 1))
    tracemalloc.start()
    try:
        part = checkpoint.read(name, slice(1000, 1256))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert part.shape == (256, 576)
    assert peak < 8 * part.nbytes


def test_live_against_transformers(checkpoint, tmp_path):
    torch = pytest.importorskip("torch", reason=WHY_SKIPPED)
    transformers = pytest.importorskip("transformers", reason=WHY_SKIPPED)
    file = smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    weights = model.state_dict()
    for name in checkpoint.tensors:
        np.testing.assert_array_equal(checkpoint.read(name), weights[name].numpy())
    golden = golden_arrays("smollm2_135m")
    with torch.no_grad():
        theirs = model(torch.tensor(golden["ids"])[None]).logits[0].numpy()
    assert cosine(theirs[:, golden["columns"]], golden["logits"]).min() >= 0.99999
    assert cosine(numpy_llama.logits(checkpoint, golden["ids"]), theirs).min() >= 0.99999
    reference = OnnxReference(float_reference(file, context=256, cache=tmp_path, progress=SilentProgress()))
    ours = np.concatenate(list(reference.logits(golden["ids"].tolist())))
    assert cosine(ours, theirs).min() >= 0.99999
    assert np.abs(ours - theirs).max() <= 2e-3
