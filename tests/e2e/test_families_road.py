"""Every model family goes the whole road: build, the simulated NPU, parity with what its package says."""

import json

import numpy as np
import pytest

from pytest_cannlm.agent.protocol import GenerateRequest
from pytest_cannlm.build import Recipe, build, locate_package
from pytest_cannlm.build.reference import quantized_reference
from pytest_cannlm.lint import lint
from pytest_cannlm.parity.accumulate import ParityAccumulator
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.parity.text import cut_windows, standard_text
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.simulator.engine import SimulatedEngine

QUIET = SilentProgress()
TOKENIZER_TYPES = {
    "tiny-llama-bias": "bpe",
    "tiny-qwen2": "qwen",
    "tiny-qwen2-untied": "qwen",
    "tiny-qwen2-yarn": "qwen",
    "tiny-qwen3": "qwen",
    "tiny-glm": "glm",
    "tiny-glm-edge": "glm",
}


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16", "fp16"])
@pytest.mark.parametrize("name", TOKENIZER_TYPES)
def test_a_family_is_built_loaded_and_computes_what_its_package_says(tiny_checkpoint, tmp_path, name, scheme):
    recipe = Recipe(name, tiny_checkpoint(name), scheme=scheme, context=256)
    package = locate_package(build(recipe, cache=tmp_path, progress=QUIET).package)
    assert not lint(package.package).of("error")
    settings = json.loads((package.package / "executor.json").read_text(encoding="utf-8"))
    assert settings["tokenizer"]["type"] == TOKENIZER_TYPES[name]
    assert settings["llm_config"]["vocab_real_size"] == 512

    engine = SimulatedEngine()
    engine.load(str(package.package), {})
    made = engine.generate(GenerateRequest("The capital of France is", 12), lambda event: None)
    assert made.tokens
    assert max(made.tokens) < 512

    reference = OnnxReference(quantized_reference(package, cache=tmp_path, progress=QUIET))
    total = ParityAccumulator(against=reference.against, kind="modelled")
    ids = reference.tokenizer.encode(standard_text(), special=False)
    for window in cut_windows(ids, positions=128, length=128):
        theirs = np.concatenate(list(reference.logits(window.tokens, window.first)))
        ours = [np.frombuffer(rows, "<f4") for rows in engine.logits(window.tokens, window.first)]
        total.add(theirs, np.concatenate(ours).reshape(theirs.shape), np.array(window.targets))
    result = total.result()
    assert not result.guards
    found = {name: figure.value for name, figure in result.metrics.items()}
    assert found["kl_mean"] <= 1e-3
    assert found["top1"] >= 0.98
    assert found["cosine_min"] >= 0.999
