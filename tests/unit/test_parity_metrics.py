import math

import numpy as np
import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.parity import metrics

ZERO, ONE = np.zeros((1, 4)), np.ones((1, 4))


@pytest.mark.parametrize("shape", [(4, 1000), (1,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_cosine_of_zero_vectors(shape, dtype):
    some = (np.random.default_rng(0).normal(size=shape) + 3).astype(dtype)
    zero = np.zeros(shape, dtype=dtype)
    assert (metrics.cosine(some, zero) == 0).all()
    assert (metrics.cosine(zero, some) == 0).all()
    assert (metrics.cosine(zero, zero) == 1).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-300, 1e300])
def test_cosine_neither_vanishes_nor_overflows(scale):
    values = scale * np.array([[1.0, -2.0, 3.0]])
    assert metrics.cosine(values, values)[0] == pytest.approx(1)
    assert metrics.cosine(values, -values)[0] == pytest.approx(-1)


def test_special_cases_of_error_metrics():
    assert metrics.sqnr_db(ONE, ONE)[0] == math.inf
    assert metrics.sqnr_db(ZERO, ONE)[0] == -math.inf
    assert metrics.sqnr_db(ZERO, ZERO)[0] == math.inf
    assert metrics.rel_l2(ZERO, ZERO)[0] == 0
    assert metrics.rel_l2(ZERO, ONE)[0] == math.inf
    assert metrics.rel_l2(ONE, ZERO)[0] == 1
    assert metrics.psnr_db(ONE, ONE)[0] == math.inf


@pytest.mark.parametrize(
    "metric",
    [
        metrics.cosine,
        metrics.centred_cosine,
        metrics.rel_l2,
        metrics.sqnr_db,
        metrics.psnr_db,
        metrics.max_abs,
        metrics.mean_abs,
        metrics.kl_divergence,
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_never_a_good_result(metric, bad):
    good = np.array([[1.0, 2.0, 3.0]])
    broken = np.array([[1.0, bad, 3.0]])
    with np.errstate(invalid="ignore", over="ignore"):
        for pair in ((good, broken), (broken, good), (broken, broken)):
            value = metric(*pair)[0]
            assert math.isnan(value) or value in (math.inf, -math.inf)
            if value == math.inf:  # an error without bound, not a ratio without error
                assert metric in (metrics.rel_l2, metrics.max_abs, metrics.mean_abs, metrics.kl_divergence)


def test_kl_with_a_masked_vocabulary():
    minus = -math.inf
    reference = np.array([[1.0, 2.0, minus]])
    assert metrics.kl_divergence(reference, np.array([[1.0, 2.0, minus]]))[0] == 0
    assert metrics.kl_divergence(reference, np.array([[1.0, 2.0, 0.0]]))[0] > 0
    assert metrics.kl_divergence(np.array([[1.0, 2.0, 0.0]]), reference)[0] == math.inf


def test_kl_of_logits_far_apart_stays_finite():
    value = metrics.kl_divergence(np.array([[1e4, 0.0, 0.0]]), np.array([[0.0, 1e4, 0.0]]))[0]
    assert value == pytest.approx(1e4)


def test_a_negative_kl_is_a_defect_not_zero():
    improper = np.log(np.array([[0.5, 0.6]]))
    with pytest.raises(ArithmeticError, match="negative KL"):
        metrics.kl_of_logs(np.log(np.array([[0.5, 0.5]])), improper)


def test_top_k_prefers_the_lowest_id_of_a_tie():
    rows = np.array([[1.0, 3.0, 3.0, 0.0, 3.0], [-math.inf, 2.0, -math.inf, -math.inf, 2.0]])
    assert metrics.top_k(rows, 3).tolist() == [[1, 2, 4], [1, 4, 0]]
    assert metrics.top_k(rows, 5).tolist() == [[1, 2, 4, 0, 3], [1, 4, 0, 2, 3]]
    assert rows[0].tolist() == [1, 3, 3, 0, 3]


def test_overlap_of_two_top_k():
    reference = np.array([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]])
    device = np.array([[3.0, 5.0, 4.0, 0.0, 1.0, 2.0]])
    for k, share in ((3, 1.0), (4, 0.75)):
        assert metrics.overlap(metrics.top_k(reference, k), metrics.top_k(device, k)).tolist() == [share]


@pytest.mark.parametrize("k", [0, 7])
def test_k_lies_within_the_vocabulary(k):
    with pytest.raises(UsageError):
        metrics.top_k(np.zeros((1, 6)), k)


def test_likelihood_and_perplexity():
    rows = np.log(np.array([[0.25, 0.75], [0.5, 0.5]]))
    nll = metrics.negative_log_likelihood(rows, np.array([0, 1]))
    assert nll == pytest.approx([math.log(4), math.log(2)])
    assert metrics.perplexity_ratio(nll, nll) == 1
    assert metrics.perplexity_ratio(nll, nll + math.log(1.1)) == pytest.approx(1.1)
