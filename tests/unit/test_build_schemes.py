"""Codes and scales of each weight format."""

import numpy as np
import pytest

from pytest_cannlm.build.schemes import (
    TensorQuality,
    dequantize_w4,
    dequantize_w8,
    extreme,
    group_size_for,
    quantize_embedding,
    quantize_w4,
    quantize_w8,
    scheme_named,
    split_nibbles,
)
from pytest_cannlm.errors import UnsupportedModelError, UsageError


def rows(n=8, k=128, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, (n, k)).astype(np.float32)


@pytest.mark.parametrize("length", [1, 2, 3, 32, 96, 127, 128, 1536])
def test_extreme_is_the_value_of_largest_magnitude_along_an_axis_of_any_length(length):
    values = rows(7, length)
    expected = values[np.arange(7), np.abs(values).argmax(axis=1)]
    np.testing.assert_array_equal(extreme(values), expected)
    np.testing.assert_array_equal(extreme(values[:, None]), expected[:, None])


def test_of_two_values_of_the_same_magnitude_the_negative_one_is_the_extreme():
    for pair in ([0.5, -0.5], [-0.5, 0.5]):
        assert extreme(np.array([[0.1, *pair, 0.0]], np.float32)) == -0.5


def test_w4_maps_the_extreme_value_of_a_group_to_code_minus_eight():
    values = np.linspace(-0.3, 0.5, 32, dtype=np.float32)[None]
    codes, scales = quantize_w4(values, 32)
    assert scales[0, 0] == np.float16(0.5 / -8)
    assert codes[0, 0, -1] >> 4 == 0  # stored as code + 8
    assert dequantize_w4(codes, scales)[0, -1] == 0.5


def test_w4_known_codes_lower_nibble_first():
    values = np.zeros((1, 32), np.float32)
    values[0, :4] = [-8, 7, 1, -3]
    codes, scales = quantize_w4(values, 32)
    assert scales[0, 0] == 1
    assert list(codes[0, 0, :2]) == [0x0 | 0xF << 4, 0x9 | 0x5 << 4]


def test_w4_uses_the_eighth_negative_level():
    """A range of -7..7 would lose a sixteenth of the levels: the error is measurably larger."""
    values = rows(64)
    codes, scales = quantize_w4(values, 128)
    error = np.square(dequantize_w4(codes, scales) - values).mean()
    seven = np.abs(values).max(1, keepdims=True) / 7
    naive = np.square(np.clip(np.rint(values / seven), -7, 7) * seven - values).mean()
    assert error < naive


def test_w4_group_of_zeros_stays_zero():
    codes, scales = quantize_w4(np.zeros((2, 64), np.float32), 32)
    assert not dequantize_w4(codes, scales).any()


def test_swapped_nibbles_are_seen_by_sqnr():
    values = rows()
    codes, scales = quantize_w4(values, 64)
    swapped = (codes >> 4) | (codes << 4)
    assert TensorQuality.of(values, dequantize_w4(codes, scales)).sqnr_db > 15
    assert TensorQuality.of(values, dequantize_w4(swapped, scales)).sqnr_db < 3


def test_w8_maps_the_extreme_value_of_a_row_to_code_minus_128():
    values = np.array([[1.28, -0.01, 0.5], [0, 0, 0]], np.float32)
    codes, scales = quantize_w8(values)
    assert codes.tolist() == [[-128, 1, -50], [0, 0, 0]]
    np.testing.assert_allclose(scales, [-0.01, 0], rtol=1e-6)
    np.testing.assert_allclose(dequantize_w8(codes, scales), values, atol=1e-7)


def test_embedding_rows_are_symmetric_as_in_the_engines_files():
    values = np.array([[1.27, -0.01, 0.5], [0, 0, 0]], np.float32)
    codes, scales = quantize_embedding(values)
    assert codes.tolist() == [[127, -1, 50], [0, 0, 0]]
    np.testing.assert_allclose(scales, [0.01, 0], rtol=1e-6)


def test_nibble_planes_stand_for_code_plus_128():
    codes = np.array([[-127, -1, 0, 127] * 8], np.int8)
    high, low = split_nibbles(codes, 32)
    assert (high[0, 0, 0] & 15, low[0, 0, 0] & 15) == (0, 1)  # -127 + 128 = 0x01
    assert (high[0, 0, 0] >> 4, low[0, 0, 0] >> 4) == (7, 15)  # -1 + 128 = 0x7F


@pytest.mark.parametrize(
    ("columns", "asked", "size"), [(1536, None, 128), (576, None, 64), (96, None, 32), (576, 128, 64), (128, 32, 32)]
)
def test_group_size_is_the_largest_that_divides(columns, asked, size):
    assert group_size_for(columns, asked) == size


def test_group_size_that_kernels_do_not_take_is_refused():
    with pytest.raises(UsageError, match="48"):
        group_size_for(96, 48)
    with pytest.raises(UnsupportedModelError, match="100 columns"):
        group_size_for(100)


def test_scheme_names():
    assert scheme_named("int8").name == "w8a16"
    with pytest.raises(UsageError, match="w4a16"):
        scheme_named("w4a8")


def test_quality_adds_up_over_chunks():
    values = rows(16)
    codes, scales = quantize_w4(values, 64)
    after = dequantize_w4(codes, scales)
    whole = TensorQuality.of(values, after)
    chunks = TensorQuality.of(values[:5], after[:5]) + TensorQuality.of(values[5:], after[5:])
    assert chunks.sqnr_db == pytest.approx(whole.sqnr_db)
    assert chunks.negative_share == whole.negative_share


def test_quality_without_noise_or_signal():
    zeros, ones = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert TensorQuality.of(ones, ones).sqnr_db == float("inf")
    assert TensorQuality.of(zeros, ones).sqnr_db == float("-inf")
    assert not TensorQuality.of(ones, ones * np.nan).finite
