"""The tiny checkpoint as we read it gives the logits that transformers computes, and the files belong together."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy_llama
import pytest
from goldens import FOLDER, cosine, golden_arrays
from tiny import tiny_gguf, tiny_llama

from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tensors import EMBEDDING


class Changed:
    """A checkpoint with one tensor changed."""

    def __init__(self, checkpoint, name, change):
        self.config, self._read, self._name, self._change = checkpoint.config, checkpoint.read, name, change

    def read(self, name, rows=None):
        array = self._read(name, rows)
        return self._change(array) if name == self._name else array


def test_the_folder_gives_the_golden_logits():
    golden = golden_arrays("tiny_llama")
    ours = numpy_llama.logits(open_checkpoint(tiny_llama()), golden["ids"])
    assert np.abs(ours - golden["logits"]).max() < 2e-4
    assert cosine(ours, golden["logits"]).min() > 0.9999999


def test_the_gguf_file_gives_them_too(tmp_path):
    golden = golden_arrays("tiny_llama")
    with open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf")) as checkpoint:
        assert np.abs(numpy_llama.logits(checkpoint, golden["ids"]) - golden["logits"]).max() < 2e-4


@pytest.mark.parametrize("part", ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"])
def test_a_small_change_in_any_part_would_be_seen(part):
    golden = golden_arrays("tiny_llama")
    changed = Changed(open_checkpoint(tiny_llama()), f"model.layers.0.{part}.weight", lambda array: array * 1.01)
    assert np.abs(numpy_llama.logits(changed, golden["ids"]) - golden["logits"]).max() > 2e-3


def test_provenance_fits_the_committed_files():
    provenance = json.loads((FOLDER / "provenance.json").read_text())
    for name, expected in provenance["outputs_sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == expected
    inputs = {name: value for name, value in provenance["inputs_sha256"].items() if name.startswith("tiny-llama/")}
    assert len(inputs) == 5
    for name, expected in inputs.items():
        assert hashlib.sha256((FOLDER.parent / name).read_bytes()).hexdigest() == expected


def test_the_tiny_checkpoint_can_be_made_again(tmp_path):
    pytest.importorskip("ml_dtypes", reason="making bfloat16 files needs ml_dtypes")
    script = Path(__file__).resolve().parents[2] / "fixtures" / "make_tiny.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)
    again, committed = open_checkpoint(tmp_path), open_checkpoint(tiny_llama())
    assert again.config == committed.config
    for name in committed.tensors:
        np.testing.assert_array_equal(again.read(name), committed.read(name))


def test_the_tiny_model_is_a_useful_test_model():
    logits = golden_arrays("tiny_llama")["logits"].astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    assert 1.0 < entropy.mean() < math.log(512) - 1, "neither certain nor indifferent"
    assert len(set(logits.argmax(axis=1).tolist())) > 24
    assert open_checkpoint(tiny_llama()).read(EMBEDDING).nbytes < 1 << 20
