import math
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from pytest_cannlm.agent.protocol import Times
from pytest_cannlm.measure import latency
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.stats import (
    binomial_cdf,
    judge,
    lower_rank,
    percentile,
    quantile_bounds,
    required_samples,
    upper_rank,
)
from pytest_cannlm.measure.units import format_bytes
from pytest_cannlm.sizes import parse_size

positive = st.floats(0.01, 1e4)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
percentiles = st.sampled_from([1, 10, 50, 90, 95, 99])
confidences = st.sampled_from([0.9, 0.95, 0.983, 0.99])


@given(st.integers(1, 60), percentiles, confidences)
def test_ranks_are_the_tightest_that_keep_their_confidence(n, p, confidence):
    rank = upper_rank(n, p=p, confidence=confidence)
    assert (rank is None) == (n < required_samples(p, confidence))
    if rank is not None:
        assert binomial_cdf(rank - 1, n, p / 100) >= confidence - 1e-9
        assert rank == 1 or binomial_cdf(rank - 2, n, p / 100) < confidence
    low = lower_rank(n, p=p, confidence=confidence)
    if low is not None:
        assert 1 - binomial_cdf(low - 1, n, p / 100) >= confidence - 1e-9
        assert 1 - binomial_cdf(low, n, p / 100) < confidence + 1e-9 or low == n


@given(values, percentiles, confidences, st.randoms())
def test_bounds_are_ordered_and_do_not_depend_on_order(sample, p, confidence, shuffler):
    bounds = quantile_bounds(sample, p=p, confidence=confidence)
    shuffled = list(sample)
    shuffler.shuffle(shuffled)
    assert quantile_bounds(shuffled, p=p, confidence=confidence) == bounds
    lower, upper = bounds
    assert lower is None or upper is None or lower <= upper
    assert lower is None or lower in sample
    mirrored = quantile_bounds([-value for value in sample], p=100 - p, confidence=confidence)
    assert mirrored == tuple(None if bound is None else -bound for bound in reversed(bounds))


@given(values)
def test_the_median_agrees_with_the_library(sample):
    assert math.isclose(percentile(sample, 50), median(sample), rel_tol=1e-9, abs_tol=1e-9)
    assert percentile(sample, 0) == min(sample)
    assert percentile(sample, 100) == max(sample)


@given(
    st.floats(),
    st.floats() | st.none(),
    st.floats() | st.none(),
    st.floats(-1e6, 1e6),
    st.sampled_from(["lower", "higher"]),
)
def test_a_pass_always_has_a_bound_on_the_good_side(value, lower, upper, limit, better):
    figure = Figure("x", value, "ms", "measured", lower, upper, 0.95, 5, "any")
    verdict = judge(figure, limit, better)
    bound = upper if better == "lower" else lower
    good = bound is not None and (bound <= limit if better == "lower" else bound >= limit)
    assert (verdict.outcome == "pass") <= good
    if any(number is not None and math.isnan(number) for number in (value, lower, upper)):
        assert verdict.outcome == "fail"


@given(positive, st.lists(positive, min_size=1, max_size=50), positive)
def test_ttft_and_decode_never_mix(first, steps, later):
    tokens = [first]
    for step in steps:
        tokens.append(tokens[-1] + step)
    times = Times(0.0, None, tuple(tokens), tokens[-1])
    delayed = Times(0.0, None, tuple(token + later for token in tokens), tokens[-1] + later)
    assert math.isclose(latency.tpot(times), sum(steps) / len(steps), rel_tol=1e-6)
    assert math.isclose(latency.tpot(delayed), latency.tpot(times), rel_tol=1e-6)
    assert math.isclose(latency.ttft_model(delayed), latency.ttft_model(times) + later, rel_tol=1e-9)
    assert math.isclose(sum(latency.itl(times)), sum(steps), rel_tol=1e-6)
    assert math.isclose(latency.decode_tps([times]), 1000 / latency.tpot(times), rel_tol=1e-9)


@given(st.lists(st.tuples(positive, st.integers(2, 30)), min_size=1, max_size=10))
def test_the_rate_of_many_lies_between_the_rates_of_each(generations):
    each = [
        Times(0.0, None, tuple(100 + step * n for n in range(count)), 100 + step * (count - 1))
        for step, count in generations
    ]
    rates = [latency.decode_tps([times]) for times in each]
    assert min(rates) * (1 - 1e-9) <= latency.decode_tps(each) <= max(rates) * (1 + 1e-9)


@given(st.integers(0, 2**50))
def test_a_size_that_is_shown_can_be_read_again(count):
    assert abs(parse_size(format_bytes(count)) - count) <= 0.05 * count
