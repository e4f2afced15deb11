"""References that are too large to be loaded, on models that are not: both ways of evaluating give the same."""

import numpy as np
import pytest

from pytest_cannlm.build import Recipe, build, locate_package
from pytest_cannlm.build.reference import (
    ReferenceFolder,
    StreamedReference,
    float_reference,
    quantized_reference,
)
from pytest_cannlm.errors import BuildError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.parity.layerwise import LayerwiseDecoder
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress

NAMES = ["tiny-llama", "tiny-llama-bias", "tiny-qwen2", "tiny-qwen2-untied", "tiny-qwen2-yarn", "tiny-qwen3",
         "tiny-glm", "tiny-glm-edge"]  # fmt: skip
CONTEXT = 128
QUIET = SilentProgress()
TEXTS = [(list(range(20, 90)), 0), ([7], 0), (list(range(300, 340)), 33)]
NOTHING_WHOLE = {"whole_bytes": 0}


def opened(checkpoint, cache, **options):
    return OnnxReference(float_reference(checkpoint, context=CONTEXT, cache=cache, progress=QUIET, **options))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=NAMES)
def pair(request, tiny_checkpoint, cache):
    """One family's float reference, loaded and streamed."""
    folder = tiny_checkpoint(request.param)
    return opened(folder, cache), opened(folder, cache / "streamed", **NOTHING_WHOLE)


def test_layer_by_layer_gives_the_logits_of_the_whole_model(pair):
    for loaded, streamed in zip(*(reference.logits_of(TEXTS) for reference in pair), strict=True):
        assert streamed.dtype == np.float32
        assert np.abs(loaded - streamed).max() <= 1e-4


def test_layer_by_layer_writes_the_same_greedy_text(pair):
    loaded, streamed = pair
    assert streamed.generate([5, 6, 7], 6) == loaded.generate([5, 6, 7], 6)


def test_one_text_alone_has_the_logits_that_it_has_among_others(pair):
    _, streamed = pair
    *_, among_others = streamed.logits_of(TEXTS)
    np.testing.assert_allclose(np.concatenate(list(streamed.logits(*TEXTS[-1]))), among_others, atol=1e-5)


def test_a_streamed_reference_leaves_nothing_on_disk(tiny_checkpoint, tmp_path):
    streamed = opened(tiny_checkpoint("tiny-llama"), tmp_path, **NOTHING_WHOLE)
    list(streamed.logits([1, 2, 3]))
    assert not (tmp_path / "references").exists()


def test_the_quantized_reference_of_a_package_can_be_streamed_too(tiny_checkpoint, tmp_path):
    recipe = Recipe("tiny", tiny_checkpoint("tiny-llama"), context=CONTEXT)
    package = locate_package(build(recipe, cache=tmp_path, progress=QUIET).package)
    made = [quantized_reference(package, cache=tmp_path, progress=QUIET, **options) for options in ({}, NOTHING_WHOLE)]
    assert [type(each) for each in made] == [ReferenceFolder, StreamedReference]
    assert made[0].digest == made[1].digest
    loaded, streamed = (list(OnnxReference(each).logits_of(TEXTS)) for each in made)
    for one, other in zip(loaded, streamed, strict=True):
        assert np.abs(one - other).max() <= 1e-4


def test_size_decides_and_a_reference_on_disk_is_used(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("tiny-llama")
    with open_checkpoint(folder) as checkpoint:
        weights = sum(4 * np.prod(tensor.shape) for tensor in checkpoint.tensors.values())

    def kind(whole_bytes):
        made = float_reference(folder, context=CONTEXT, cache=tmp_path, progress=QUIET, whole_bytes=whole_bytes)
        return type(made)

    assert kind(weights - 1) is StreamedReference
    assert kind(weights) is ReferenceFolder
    assert kind(0) is ReferenceFolder


def test_a_damaged_weight_stops_the_evaluation_by_name(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("tiny-llama")
    made = float_reference(folder, context=CONTEXT, cache=tmp_path, progress=QUIET, whole_bytes=0)

    def read(name, rows=None):
        values = made.read(name, rows)
        return np.full_like(values, np.nan) if name == "model.layers.1.mlp.up_proj.weight" else values

    broken = StreamedReference(**{**vars(made), "read": read})
    with pytest.raises(BuildError, match=r"layers\.1\.mlp\.up_proj"):
        LayerwiseDecoder(broken).evaluate(TEXTS)


def test_a_streamed_reference_has_no_session(tiny_checkpoint, tmp_path):
    streamed = opened(tiny_checkpoint("tiny-llama"), tmp_path, **NOTHING_WHOLE)
    with pytest.raises(TypeError, match="layer by layer"):
        _ = streamed.session
