"""One layer at a time: the same numbers as the whole model, and scales that change none of them."""

import numpy as np
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import decoder
from pytest_cannlm.build.awq import RescaledRows, rescale_layer
from pytest_cannlm.build.layerwise import LayerRunner, layer_weights
from pytest_cannlm.build.quantize import Formats
from pytest_cannlm.build.reference import float_reference
from pytest_cannlm.errors import BuildError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tensors import EMBEDDING
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress

IDS = [int(token) for token in np.random.default_rng(3).integers(0, 500, 40)]
NAMES = ["tiny-llama", "tiny-llama-bias", "tiny-qwen2", "tiny-qwen3", "tiny-glm"]


@pytest.fixture(params=NAMES)
def checkpoint(request, tiny_checkpoint):
    folder = tiny_llama() if request.param == "tiny-llama" else tiny_checkpoint(request.param)
    with open_checkpoint(folder) as opened:
        yield opened


def hidden_rows(config, read, rows):
    """What the LM head is fed, run layer by layer, and per matrix what it is fed."""
    runner = LayerRunner(config, positions=len(rows), final_norm=read(decoder.FINAL_NORM))
    inputs = {}
    for layer in decoder.layers(config):
        weights = layer_weights(layer, read)
        last = runner.run_last(layer, weights, rows)
        rows, fed = runner.run_with_inputs(layer, weights, rows)
        inputs |= fed
    return last, inputs


def test_layers_one_by_one_are_the_model(checkpoint, tmp_path):
    config = checkpoint.config
    last, inputs = hidden_rows(config, checkpoint.read, checkpoint.read(EMBEDDING)[IDS])
    logits = last @ checkpoint.read(decoder.lm_head(config).parts[0]).T
    folder = float_reference(checkpoint.path, context=64, cache=tmp_path, progress=SilentProgress())
    expected = np.concatenate(list(OnnxReference(folder).logits(IDS)))
    np.testing.assert_allclose(logits, expected, atol=2e-4 * np.abs(expected).max())
    assert set(inputs) == {matrix.name for matrix in decoder.matrices(config) if matrix.kind == "projection"}


def test_run_is_what_run_with_inputs_gives_and_positions_may_be_fewer(checkpoint):
    config, rows = checkpoint.config, checkpoint.read(EMBEDDING)[IDS]
    runner = LayerRunner(config, positions=64, final_norm=checkpoint.read(decoder.FINAL_NORM))
    layer = next(decoder.layers(config))
    weights = layer_weights(layer, checkpoint.read)
    whole, _ = runner.run_with_inputs(layer, weights, rows)
    np.testing.assert_array_equal(runner.run(layer, weights, rows), whole)
    np.testing.assert_allclose(runner.run(layer, weights, rows[:7]), whole[:7], atol=1e-4)


def test_rescaled_weights_compute_the_same(checkpoint):
    config, rows = checkpoint.config, checkpoint.read(EMBEDDING)[IDS]
    before, inputs = hidden_rows(config, checkpoint.read, rows)
    read = RescaledRows(checkpoint.read)
    formats = Formats("w4", "w8", 32)
    for layer in decoder.layers(config):
        hessians = {m.name: inputs[m.name].T.astype(np.float64) @ inputs[m.name] for m in layer.matrices}
        columns, divisors = rescale_layer(
            layer, config, layer_weights(layer, checkpoint.read), hessians, formats.rounded
        )
        read.columns |= columns
        read.rows |= divisors
    assert any(np.ptp(scales) > 0.1 for scales in read.columns.values())
    after, rescaled_inputs = hidden_rows(config, read, rows)
    np.testing.assert_allclose(after, before, atol=2e-4 * np.abs(before).max())
    for layer in decoder.layers(config):
        for matrix in layer.matrices:
            scales = read.columns[matrix.parts[0]]
            expected = inputs[matrix.name] / scales
            np.testing.assert_allclose(rescaled_inputs[matrix.name], expected, atol=2e-4 * np.abs(expected).max())


def test_rescaled_rows_can_be_read_in_pieces():
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    read = RescaledRows(lambda name, rows=None: values[rows or slice(None)])
    read.columns["w"] = np.array([1, 2, 3], np.float32)
    read.rows["w"] = np.array([1, 2, 4, 8], np.float32)
    expected = values * [1, 2, 3] / np.array([[1], [2], [4], [8]])
    np.testing.assert_allclose(read("w"), expected)
    np.testing.assert_allclose(read("w", slice(1, 3)), expected[1:3])
    np.testing.assert_array_equal(read("other"), values)


def test_channels_that_are_never_fed_keep_their_scale():
    with open_checkpoint(tiny_llama()) as checkpoint:
        layer = next(decoder.layers(checkpoint.config))
        weights = layer_weights(layer, checkpoint.read)
        none = {m.name: np.zeros((weights[m.name].shape[1],) * 2) for m in layer.matrices}
        columns, rows = rescale_layer(layer, checkpoint.config, weights, none, Formats("w4", "w8", 32).rounded)
    assert all((scales == 1).all() for scales in [*columns.values(), *rows.values()])


def test_weights_that_are_not_finite_are_named():
    with open_checkpoint(tiny_llama()) as checkpoint:

        def read(name, rows=None):
            values = checkpoint.read(name, rows).copy()
            if name.endswith("0.mlp.up_proj.weight"):
                values[0, 0] = np.nan
            return values

        with pytest.raises(BuildError, match="NaN") as caught:
            layer_weights(next(decoder.layers(checkpoint.config)), read)
    assert caught.value.field == "model.layers.0.mlp.up_proj.weight"
