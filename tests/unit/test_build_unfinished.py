"""A long quantize step that was stopped goes on where it was, and ends with the bytes of one that was not."""

import numpy as np
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, quantizers
from pytest_cannlm.build import calibrated as step
from pytest_cannlm.build.unfinished import UnfinishedWork
from pytest_cannlm.progress import SilentProgress

RECIPE = Recipe("tiny", tiny_llama(), context=256, quantizer="awq+gptq", keep_8bit=20)
MATRICES_PER_LAYER = 4


class Work:
    """Counts the matrices that are worked on, and stops a build behind a number of them."""

    def __init__(self, monkeypatch):
        self.done, self.limit, self.measured = 0, None, 0
        original, measure = step.Feedback.of, quantizers.measure_sensitivity

        def counted(hessian):
            if self.done == self.limit:
                raise KeyboardInterrupt
            self.done += 1
            return original(hessian)

        def measured(*args, **kwargs):
            self.measured += 1
            return measure(*args, **kwargs)

        monkeypatch.setattr(step.Feedback, "of", counted)
        monkeypatch.setattr(quantizers, "measure_sensitivity", measured)


def weights(built):
    return (built.package / "SubGraph_0.weight").read_bytes()


@pytest.fixture
def work(monkeypatch):
    return Work(monkeypatch)


def stopped_in_the_second_layer(work, cache):
    work.limit = MATRICES_PER_LAYER + 2
    with pytest.raises(KeyboardInterrupt):
        build(RECIPE, cache=cache, progress=SilentProgress())
    work.limit, work.done = None, 0


def test_finished_layers_are_not_done_again(work, tmp_path):
    whole = build(RECIPE, cache=tmp_path / "whole", progress=SilentProgress())
    assert work.done == 2 * MATRICES_PER_LAYER
    work.done = work.measured = 0
    stopped_in_the_second_layer(work, tmp_path / "stopped")
    resumed = build(RECIPE, cache=tmp_path / "stopped", progress=SilentProgress())
    assert work.done == MATRICES_PER_LAYER
    assert work.measured == 1
    assert weights(resumed) == weights(whole)


def test_nothing_is_left_behind(work, tmp_path):
    stopped_in_the_second_layer(work, tmp_path)
    assert list(tmp_path.glob("builds/quantize/*.unfinished/*"))
    build(RECIPE, cache=tmp_path, progress=SilentProgress())
    assert not list(tmp_path.glob("builds/quantize/*.unfinished"))


def test_a_damaged_piece_is_done_again(work, tmp_path):
    stopped_in_the_second_layer(work, tmp_path)
    (piece,) = tmp_path.glob("builds/quantize/*.unfinished/layer-0.npz")
    piece.write_bytes(piece.read_bytes()[:1000])
    build(RECIPE, cache=tmp_path, progress=SilentProgress())
    assert work.done == 2 * MATRICES_PER_LAYER


def test_pieces_come_back_as_they_were_kept(tmp_path):
    kept = UnfinishedWork(tmp_path / "new")
    assert kept.arrays("layer") is None
    assert kept.numbers("losses") is None
    arrays = {"codes:a.b": np.arange(6, dtype=np.uint8).reshape(2, 3), "scales:a.b": np.ones(2, np.float16)}
    kept.keep_arrays("layer", arrays)
    kept.keep_numbers("losses", {"a.b": 0.1 + 0.2})
    found = kept.arrays("layer")
    assert found.keys() == arrays.keys()
    for key, values in arrays.items():
        assert found[key].dtype == values.dtype
        np.testing.assert_array_equal(found[key], values)
    assert kept.numbers("losses") == {"a.b": 0.1 + 0.2}


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut"])
def test_pieces_that_cannot_be_read_are_as_good_as_none(tmp_path, content):
    for name in ("layer.npz", "losses.json"):
        (tmp_path / name).write_bytes(content)
    assert UnfinishedWork(tmp_path).arrays("layer") is None
    assert UnfinishedWork(tmp_path).numbers("losses") is None
