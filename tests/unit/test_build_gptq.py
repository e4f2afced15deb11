"""GPTQ: the factor of the Hessian, less error in what matters, and the same bytes for every number of threads."""

import numpy as np
import pytest

from pytest_cannlm.build.gptq import DAMPING, Feedback, FeedbackRounding
from pytest_cannlm.build.schemes import dequantize_w4, dequantize_w8, quantize_w4, quantize_w8


def correlated(columns, positions=600, seed=0):
    """Rows as activations are: few directions carry most, a few channels are much larger than the others."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(positions, columns // 4)) @ rng.normal(size=(columns // 4, columns))
    rows += 0.3 * rng.normal(size=rows.shape)
    rows[:, ::17] *= 8
    return rows.astype(np.float32)


def weights(rows, columns, seed=1):
    return np.random.default_rng(seed).normal(0, 0.05, (rows, columns)).astype(np.float32)


def hessian(rows):
    return rows.T.astype(np.float64) @ rows


def output_error(after, before, rows):
    return float(np.square((after - before) @ rows.T).sum())


@pytest.mark.parametrize("columns", [32, 64, 96, 320])
def test_the_factor_is_that_of_the_damped_hessian(columns):
    h = hessian(correlated(columns))
    damped = h + np.eye(columns) * DAMPING * h.diagonal().mean()
    feedback = Feedback.of(h.copy())
    u = feedback.spread.astype(np.float64)
    np.testing.assert_array_equal(np.tril(u, -1), 0)
    np.testing.assert_allclose(u.diagonal(), 1, rtol=1e-6)
    np.testing.assert_allclose((u * feedback.cost) @ u.T, damped, atol=1e-5 * np.abs(damped).max())


@pytest.mark.parametrize("group", [32, 64, 128])
def test_w4_outputs_err_far_less_than_rounded_to_nearest_on_unseen_rows(group):
    w, rows = weights(48, 384), correlated(384)
    rounding = FeedbackRounding(Feedback.of(hessian(rows[:500])))
    nearest = output_error(dequantize_w4(*quantize_w4(w, group)), w, rows[500:])
    assert output_error(dequantize_w4(*rounding.w4(w, group)), w, rows[500:]) < 0.4 * nearest


def test_w8_outputs_err_far_less_than_rounded_to_nearest_on_unseen_rows():
    w, rows = weights(48, 384), correlated(384)
    rounding = FeedbackRounding(Feedback.of(hessian(rows[:500])))
    nearest = output_error(dequantize_w8(*quantize_w8(w)), w, rows[500:])
    assert output_error(dequantize_w8(*rounding.w8(w)), w, rows[500:]) < 0.4 * nearest


def test_columns_that_do_not_depend_on_each_other_are_rounded_to_nearest():
    w = weights(16, 64)
    codes, scales = FeedbackRounding(Feedback.of(np.eye(64))).w8(w)
    nearest, same_scales = quantize_w8(w)
    np.testing.assert_array_equal(scales, same_scales)
    np.testing.assert_array_equal(codes, nearest)


def test_columns_that_were_never_fed_anything_stay_themselves():
    rows = correlated(64)
    rows[:, 10:20] = 0
    w = weights(16, 64)
    for h in (hessian(rows), np.zeros((64, 64))):
        after = dequantize_w4(*FeedbackRounding(Feedback.of(h)).w4(w, 32))
        assert np.isfinite(after).all()
        assert np.abs(after - w)[:, 10:20].max() < 0.2 * np.abs(w).max()


def test_rows_of_zeros_stay_zero():
    w = weights(4, 64)
    w[1] = 0
    rounding = FeedbackRounding(Feedback.of(hessian(correlated(64))))
    assert not dequantize_w4(*rounding.w4(w, 32))[1].any()
    assert not dequantize_w8(*rounding.w8(w))[1].any()


def test_rows_do_not_depend_on_each_other():
    w = weights(10, 256)
    rounding = FeedbackRounding(Feedback.of(hessian(correlated(256))))
    whole, scales = rounding.w4(w, 64)
    pieces = [rounding.w4(w[start : start + 5], 64) for start in (0, 5)]
    np.testing.assert_array_equal(whole, np.concatenate([codes for codes, _ in pieces]))
    np.testing.assert_array_equal(scales, np.concatenate([scales for _, scales in pieces]))
