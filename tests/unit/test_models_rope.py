"""The rotary embedding in all its spellings, its frequencies, and the order of rows it needs."""

import math
from pathlib import Path

import numpy as np
import pytest
from samples import samples_dir

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.fields import Fields, read_json
from pytest_cannlm.models.rope import Rope, Yarn, half_split_rows, rope_of

FILE = Path("model/config.json")
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def rope(family="qwen2", head_dim=128, **config):
    return rope_of(Fields(config, file=FILE), family=FAMILIES[family], head_dim=head_dim)


def test_yarn_in_the_old_and_the_new_spelling():
    old = rope(rope_theta=1e6, rope_scaling=YARN)
    new = rope(rope_parameters={**YARN, "rope_type": "yarn", "rope_theta": 1e6})
    both = rope(rope_theta=1e6, rope_scaling=YARN, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6})
    assert old == new == both
    assert old == Rope(1e6, 128, Yarn(4.0, 32768, 0.1 * math.log(4) + 1))
    assert old.yarn.positions == 131072


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (0.05 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
        ({"mscale": 0.5}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
        ({"beta_fast": 16, "beta_slow": 2, "truncate": False}, 0.1 * math.log(4) + 1),
    ],
)
def test_attention_factor(more, expected):
    assert rope(rope_theta=1e6, rope_scaling={**YARN, **more}).attention_factor == pytest.approx(expected)


def test_frequencies_without_stretching():
    frequencies = Rope(10000.0, 8).inverse_frequencies()
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001])


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones():
    plain = Rope(1e6, 128).inverse_frequencies()
    stretched = Rope(1e6, 128, Yarn(4.0, 32768, 1.0)).inverse_frequencies()
    turns = 32768 * plain / (2 * math.pi)
    np.testing.assert_allclose(stretched[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(stretched[turns < 0.8], plain[turns < 0.8] / 4)
    between = (turns < 20) & (turns > 2)
    assert ((stretched < plain) & (stretched > plain / 4))[between].all()


def test_a_ramp_of_no_width():
    frequencies = Rope(1e6, 8, Yarn(4.0, 4, 1.0)).inverse_frequencies()
    assert np.isfinite(frequencies).all()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"rope_scaling": YARN}, "rope_theta"),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": None}}, "factor"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": 0.5}}, "factor"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": "many"}}, "factor"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": 1e300}}, "factor"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "original_max_position_embeddings": 0.5}}, "original_max"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "original_max_position_embeddings": 1e300}}, "original_max"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "truncate": 1}}, "truncate"),
        ({"rope_theta": 1e6, "rope_scaling": {**YARN, "beta_fast": 0.5}}, "beta_fast"),
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.3}, "partial_rotary_factor"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.001}, "partial_rotary_factor"),
    ],
)
def test_nonsense_is_refused(config, field):
    with pytest.raises(BadInputError) as caught:
        rope("glm", head_dim=32, **config)
    assert field in caught.value.field


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}},
        {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}},
        {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
        {"original_max_position_embeddings": 4096, "rope_scaling": YARN},
    ],
)
def test_settings_that_contradict_each_other(config):
    with pytest.raises(BadInputError, match="twice with different values"):
        rope("glm", rope_theta=1e6, **config)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "longrope", "made-up"])
def test_other_kinds_are_refused_by_name(kind):
    with pytest.raises(UnsupportedModelError, match=kind):
        rope(rope_theta=1e6, rope_scaling={"rope_type": kind, "factor": 4.0})


@pytest.mark.parametrize(
    ("config", "rotary_dim"),
    [
        ({}, 16),
        ({"partial_rotary_factor": 1.0}, 32),
        ({"partial_rotary_factor": 0.25}, 8),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}, 32),
    ],
)
def test_glm_rotates_half_a_head_unless_told_otherwise(config, rotary_dim):
    assert rope("glm", head_dim=32, rope_theta=1e4, **config).rotary_dim == rotary_dim


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_other_families_rotate_whole_heads(family):
    assert rope(family, rope_theta=1e4, partial_rotary_factor=1.0).rotary_dim == 128
    with pytest.raises(UnsupportedModelError, match="partial rotary"):
        rope(family, rope_theta=1e4, partial_rotary_factor=0.5)


def test_order_of_interleaved_rows():
    assert half_split_rows(16, head_dim=8, rotary_dim=4, interleaved=True).tolist() == [
        0, 2, 4, 5, 1, 3, 6, 7,
        8, 10, 12, 13, 9, 11, 14, 15,
    ]  # fmt: skip


def test_order_of_partly_rotated_rows_that_are_split_in_halves():
    assert half_split_rows(8, head_dim=8, rotary_dim=4, interleaved=False).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_whole_heads_in_halves_stay_as_they_are():
    assert half_split_rows(16, head_dim=8, rotary_dim=8, interleaved=False).tolist() == list(range(16))


@pytest.mark.parametrize("rotary_dim", [4, 8, 12, 16])
def test_attention_scores_do_not_change_with_the_order(rotary_dim):
    """q of one position times k of another: rotated as the checkpoint means it, and as the graph does."""
    random = np.random.default_rng(rotary_dim)
    q, k = random.standard_normal((2, 16))
    frequencies = Rope(100.0, rotary_dim).inverse_frequencies()

    def neighbours(x, position):
        turned = x[:rotary_dim:2] + 1j * x[1:rotary_dim:2]
        turned = turned * np.exp(1j * position * frequencies)
        return np.concatenate([np.stack([turned.real, turned.imag], axis=1).reshape(-1), x[rotary_dim:]])

    def halves(x, position):
        x = x[half_split_rows(16, head_dim=16, rotary_dim=rotary_dim, interleaved=True)]
        angles = np.pad(position * frequencies, (0, 8 - len(frequencies)))
        turned = (x[:8] + 1j * x[8:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag])

    assert halves(q, 7) @ halves(k, 3) == pytest.approx(neighbours(q, 7) @ neighbours(k, 3))


@pytest.mark.parametrize(
    ("name", "theta"), [("Qwen2.5-7B-Instruct", 1e6), ("Qwen3-8B", 1e6), ("Qwen3-4B-Thinking-2507", 5e6)]
)
def test_published_configurations(name, theta):
    folder = samples_dir()
    if folder is None:
        pytest.skip("needs the sample files")
    file = folder / "hf_configs" / name / "config.json"
    data = read_json(file)
    assert rope_of(Fields(data, file=file), family=FAMILIES[data["model_type"]], head_dim=128) == Rope(theta, 128)
