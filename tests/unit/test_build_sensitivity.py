"""Which matrices keep 8 bits: those whose rounding changes the next-token distributions most per byte."""

import numpy as np
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import decoder
from pytest_cannlm.build.layerwise import LayerRunner, layer_weights
from pytest_cannlm.build.quantize import Formats
from pytest_cannlm.build.sensitivity import choose_eight_bit, measure_sensitivity
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tensors import EMBEDDING
from pytest_cannlm.parity.metrics import kl_divergence
from pytest_cannlm.progress import SilentProgress

FORMATS = Formats("w4", "w8", 32)


@pytest.fixture(scope="module")
def checkpoint():
    with open_checkpoint(tiny_llama()) as opened:
        yield opened


def windows(checkpoint, count=4, positions=16):
    ids = np.random.default_rng(5).integers(0, 500, (count, positions))
    return [checkpoint.read(EMBEDDING)[window] for window in ids]


def measure(checkpoint, read, texts):
    return measure_sensitivity(
        checkpoint.config, read=read, windows=texts, formats=FORMATS, label="", progress=SilentProgress()
    )


def test_the_loss_is_the_divergence_of_the_model_with_that_matrix_rounded(checkpoint):
    config, texts = checkpoint.config, windows(checkpoint)
    found = measure(checkpoint, checkpoint.read, texts)
    rounded_name = "model.layers.0.mlp.down_proj"
    runner = LayerRunner(config, positions=16, final_norm=checkpoint.read(decoder.FINAL_NORM))
    head = checkpoint.read(EMBEDDING)

    def logits(change):
        rows = []
        for text in texts:
            for layer in decoder.layers(config):
                weights = layer_weights(layer, checkpoint.read)
                for matrix in layer.matrices:
                    if change and matrix.name == rounded_name:
                        weights[matrix.name] = FORMATS.rounded(matrix, weights[matrix.name])
                last, text = runner.run_last(layer, weights, text), runner.run(layer, weights, text)
            rows.append(last @ head.T)
        return np.concatenate(rows)[::2]

    expected = kl_divergence(logits(change=False), logits(change=True)).mean()
    assert found[rounded_name] == pytest.approx(expected, rel=1e-3)
    assert set(found) == {m.name for m in decoder.matrices(config) if m.kind == "projection"}


def test_a_matrix_that_four_bits_ruin_comes_first(checkpoint):
    """One huge weight per group makes every other weight of the group 0."""
    victim = "model.layers.1.self_attn.o_proj.weight"

    def read(name, rows=None):
        values = checkpoint.read(name, rows).copy()
        if name == victim:
            values[:, ::32] *= 50
        return values

    found = measure(checkpoint, read, windows(checkpoint))
    assert max(found, key=found.__getitem__) == victim.removesuffix(".weight")
    assert "model.layers.1.self_attn.o_proj" in choose_eight_bit(checkpoint.config, found, share=0.1)


def test_bits_go_where_they_gain_most_and_never_beyond_the_share(checkpoint):
    config = checkpoint.config
    names = [m.name for m in decoder.matrices(config) if m.kind == "projection"]
    # per layer: qkv 256 x 128, o 128 x 128, gate_up 512 x 128, down 128 x 256; 294912 weights
    equal = dict.fromkeys(names, 1.0)
    assert choose_eight_bit(config, equal, share=0.05) == frozenset()
    assert choose_eight_bit(config, equal, share=0.1) == {"model.layers.0.self_attn.o_proj"}
    wanted = equal | {"model.layers.1.mlp.gate_up": 9.0}
    assert choose_eight_bit(config, wanted, share=0.2) == {f"model.layers.{i}.self_attn.o_proj" for i in (0, 1)}
    assert "model.layers.1.mlp.gate_up" in choose_eight_bit(config, wanted, share=0.3)
    assert len(choose_eight_bit(config, equal, share=0.99)) == len(names) - 1
