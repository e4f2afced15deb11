import math
import random

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.stats import (
    binomial_cdf,
    exact_figure,
    fit_line,
    judge,
    lower_rank,
    median_absolute_deviation,
    percentile,
    quantile_bounds,
    required_samples,
    round_figure,
    two_stage_bounds,
    upper_rank,
)

REQUIRED = {
    (50, 0.95): (5, 8, 11, 13),
    (50, 0.99): (7, 11, 14, 17),
    (90, 0.95): (29, 46, 61, 76),
    (90, 0.99): (44, 64, 81, 97),
    (95, 0.95): (59, 93, 124, 153),
    (95, 0.99): (90, 130, 165, 198),
    (99, 0.95): (299, 473, 628, 773),
    (99, 0.99): (459, 662, 838, 1001),
}


@pytest.mark.parametrize(("claim", "counts"), REQUIRED.items())
def test_required_samples_are_those_of_the_binomial_tables(claim, counts):
    p, confidence = claim
    assert tuple(required_samples(p, confidence, k) for k in range(4)) == counts


@pytest.mark.parametrize(("claim", "counts"), REQUIRED.items())
def test_a_bound_exists_exactly_from_the_required_sample_on(claim, counts):
    p, confidence = claim
    for k, n in enumerate(counts):
        assert upper_rank(n, p=p, confidence=confidence) == n - k
        shorter = upper_rank(n - 1, p=p, confidence=confidence)
        assert shorter is None if k == 0 else shorter == n - k


@pytest.mark.parametrize(("n", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (50, (18, 33))])
def test_two_sided_ranks_of_a_median(n, ranks):
    assert (lower_rank(n, p=50, confidence=0.975), upper_rank(n, p=50, confidence=0.975)) == ranks


def test_two_sided_bounds_of_a_median_need_six():
    assert upper_rank(5, p=50, confidence=0.975) is None
    assert lower_rank(5, p=50, confidence=0.975) is None


def test_five_rounds_bound_a_median_by_their_extremes():
    assert quantile_bounds([3, 1, 5, 2, 4], p=50, confidence=0.95) == (1, 5)
    assert quantile_bounds([3, 1, 5, 2], p=50, confidence=0.95) == (None, None)
    assert quantile_bounds([], p=50, confidence=0.95) == (None, None)


def test_binomial_cdf_at_its_ends_and_beyond_double_precision_coefficients():
    assert binomial_cdf(-1, 5, 0.5) == 0
    assert binomial_cdf(5, 5, 0.5) == 1
    assert binomial_cdf(2, 5, 0.5) == pytest.approx(0.5)
    assert binomial_cdf(5000, 10000, 0.5) == pytest.approx(0.5 + 0.5 * 0.00797878, rel=1e-5)


@pytest.mark.parametrize("p", [0, 100, -1, 101, math.nan, True])
def test_a_percentile_lies_between_0_and_100(p):
    with pytest.raises(UsageError):
        required_samples(p, 0.95)


@pytest.mark.parametrize("confidence", [0, 1, 95, 0.3, math.nan, True])
def test_a_confidence_lies_between_one_half_and_one(confidence):
    with pytest.raises(UsageError):
        required_samples(50, confidence)


@pytest.mark.parametrize(("p", "confidence", "n"), [(50, 0.95, 5), (50, 0.95, 12), (90, 0.95, 40), (95, 0.99, 100)])
def test_bounds_cover_the_true_quantile_as_often_as_they_claim(p, confidence, n):
    draw, repeats, true = random.Random(p * n), 3000, p / 100
    hits = {"lower": 0, "upper": 0}
    for _ in range(repeats):
        lower, upper = quantile_bounds([draw.random() for _ in range(n)], p=p, confidence=confidence)
        hits["lower"] += lower is not None and lower <= true
        hits["upper"] += upper is not None and upper >= true
    slack = 3 * math.sqrt(confidence * (1 - confidence) / repeats)
    assert hits["upper"] / repeats >= confidence - slack
    if lower_rank(n, p=p, confidence=confidence):
        assert hits["lower"] / repeats >= confidence - slack


def figure(value, lower, upper, name="tpot", unit="ms/token"):
    return Figure(name, value, unit, "modelled", lower, upper, 0.95, 5, "median of round medians")


@pytest.mark.parametrize(
    ("lower", "upper", "better", "outcome"),
    [
        (43, 44.9, "lower", "pass"),
        (43, 45, "lower", "pass"),
        (43, 45.1, "lower", "inconclusive"),
        (45, 46, "lower", "inconclusive"),
        (45.1, 46, "lower", "fail"),
        (None, 44, "lower", "pass"),
        (None, 46, "lower", "inconclusive"),
        (46, None, "lower", "fail"),
        (43, None, "lower", "inconclusive"),
        (None, None, "lower", "inconclusive"),
        (45.1, 46, "higher", "pass"),
        (45, 46, "higher", "pass"),
        (44.9, 46, "higher", "inconclusive"),
        (43, 45, "higher", "inconclusive"),
        (43, 44.9, "higher", "fail"),
        (46, None, "higher", "pass"),
        (None, 44, "higher", "fail"),
        (None, 46, "higher", "inconclusive"),
    ],
)
def test_the_interval_decides_not_the_point(lower, upper, better, outcome):
    # The value lies on the good side of the limit in every row: a point test would pass them all.
    value = 44 if better == "lower" else 46
    assert judge(figure(value, lower, upper), 45, better).outcome == outcome


@pytest.mark.parametrize(
    ("value", "lower", "upper"), [(math.nan, 1, 2), (44, math.nan, 44), (44, 43, math.nan), (math.nan, None, None)]
)
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_nan_never_passes(value, lower, upper, better):
    verdict = judge(figure(value, lower, upper), 45, better)
    assert verdict.outcome == "fail"
    assert "NaN" in verdict.reason


def test_no_data_is_a_failure_that_says_why():
    verdict = judge(None, 45, name="decode_ms", unit="ms/token", missing="a generation had 1 token")
    assert (verdict.outcome, verdict.figure, verdict.margin) == ("fail", None, None)
    assert "a generation had 1 token" in verdict.reason
    assert verdict.name == "decode_ms"


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf, True])
def test_a_limit_is_a_finite_number(limit):
    with pytest.raises(UsageError):
        judge(figure(44, 43, 45), limit)


def test_infinite_values_are_judged_on_their_side():
    perfect = exact_figure("sqnr_db", math.inf, unit="dB", kind="modelled", samples=1, statistic="whole set")
    broken = exact_figure("kl_mean", math.inf, unit="nats", kind="modelled", samples=1, statistic="mean")
    assert judge(perfect, 20, "higher").outcome == "pass"
    assert judge(broken, 0.5, "lower").outcome == "fail"
    assert judge(broken, 0.5, "lower").margin is None


def test_the_margin_is_the_room_between_value_and_limit():
    inside, outside = judge(figure(40, 39, 41), 50), judge(figure(60, 59, 61), 50)
    assert (inside.margin, inside.margin_percent) == (10, 20)
    assert (outside.margin, outside.margin_percent) == (-10, -20)
    faster = judge(figure(60, 59, 61), 50, "higher")
    assert (faster.margin, faster.margin_percent) == (10, 20)
    assert judge(figure(0, 0, 0), 0).margin_percent is None


def test_reasons_name_bound_and_limit():
    assert judge(figure(44, 43, 44.5), 45).reason == "upper bound 44.5 ms/token is within the limit of 45 ms/token"
    assert judge(figure(47, 46, 48), 45).reason == "even the lower bound 46 ms/token is above the limit of 45 ms/token"
    assert "lies between 44 ms/token and 46 ms/token" in judge(figure(45, 44, 46), 45).reason
    assert "5 samples give no upper bound at 95 % confidence" in judge(figure(44, 43, None), 45).reason


def test_a_round_figure_is_the_median_of_round_medians():
    found = round_figure("tpot", [[1, 2, 9], [4], [3, 5]], confidence=0.95, unit="ms/token", kind="measured")
    assert (found.value, found.samples, found.lower, found.upper) == (4, 3, None, None)
    assert found.detail["round_medians"] == [2, 4, 4]
    assert found.detail["mad"] == 0
    assert found.kind == "measured"


def test_no_rounds_give_no_figure():
    assert round_figure("tpot", [], confidence=0.95, unit="ms", kind="modelled") is None
    assert round_figure("tpot", [[], []], confidence=0.95, unit="ms", kind="modelled") is None


def test_another_percentile_is_over_generations_and_records_its_bootstrap():
    draw = random.Random(3)
    rounds = [[draw.gauss(20, 1) for _ in range(6)] for _ in range(5)]
    found = round_figure("tpot", rounds, p=90, confidence=0.95, unit="ms", kind="modelled")
    assert found.samples == 30
    assert found.statistic == "p90 over generations"
    assert found.lower <= found.value <= found.upper
    assert found.detail["bootstrap_seed"] == 20240229
    again = round_figure("tpot", rounds, p=90, confidence=0.95, unit="ms", kind="modelled")
    assert again == found


def test_the_two_stage_bootstrap_sees_that_rounds_differ():
    draw = random.Random(5)
    alike = [[draw.gauss(20, 0.1) for _ in range(4)] for _ in range(5)]
    apart = [[value + 2 * number for value in group] for number, group in enumerate(alike)]
    narrow, wide = (two_stage_bounds(rounds, p=50, confidence=0.95) for rounds in (alike, apart))
    assert wide[1] - wide[0] > 10 * (narrow[1] - narrow[0])


def test_a_percentile_describes_what_is_there():
    assert percentile([1.0, 3.0], 25) == 1.5
    assert math.isnan(percentile([1.0, math.nan], 50))
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    spoiled = round_figure("tpot", [[1.0, math.nan]] * 30, p=90, confidence=0.95, unit="ms", kind="modelled")
    assert judge(spoiled, 1e9).outcome == "fail"


def test_lines_and_deviations():
    assert fit_line([0, 1, 2], [1, 3, 5]) == (1, 2)
    assert fit_line([1, 1], [3, 5]) == (4, 0)
    assert median_absolute_deviation([1, 2, 3, 4, 100]) == 1
