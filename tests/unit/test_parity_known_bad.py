"""Metrics that are known to be computed wrongly elsewhere, each with the value that is right."""

import math

import numpy as np
import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.measure.stats import exact_figure, judge
from pytest_cannlm.parity import metrics, profiles
from pytest_cannlm.parity.accumulate import ParityAccumulator
from pytest_cannlm.parity.judging import judge_parity
from pytest_cannlm.parity.result import ParityResult


def row(*values):
    return np.array([values], dtype=np.float32)


def compare(reference, device, targets=None, **options):
    accumulator = ParityAccumulator(against="float", kind="modelled", **options)
    accumulator.add(np.asarray(reference), np.asarray(device), targets)
    return accumulator.result()


def fired(result):
    return {guard.name for guard in result.guards}


def test_kb01_kl_is_normalised_and_positive():
    reference = row(4, 2, 0, -2)
    assert metrics.kl_divergence(reference, reference[:, ::-1])[0] == pytest.approx(5.3793, abs=1e-4)


def test_kb02_no_element_is_masked_where_the_reference_is_zero():
    assert metrics.max_abs(row(0, 1), row(100, 1))[0] == 100


def test_kb03_opposite_and_zero_outputs_are_as_far_as_they_are():
    reference = row(1, -2, 3)
    assert np.abs(reference + reference).sum() == metrics.mean_abs(reference, -reference)[0] * 3 == 12
    assert metrics.cosine(reference, -reference)[0] == pytest.approx(-1)
    assert "all_zero_output" in fired(compare(reference, 0 * reference))


def test_kb04_a_zero_reference_has_no_finite_relative_distance():
    assert metrics.rel_l2(row(0, 0), row(5, 5))[0] == math.inf
    assert "all_zero_reference" in fired(compare(row(0, 0), row(4, 5)))


def test_kb05_a_common_offset_must_not_hide_unrelated_logits():
    draw = np.random.default_rng(5)
    reference, device = (20 + draw.normal(size=(8, 32000)) for _ in range(2))
    found = compare(reference, device).metrics
    assert found["cosine_mean"].value == pytest.approx(0.9975, abs=2e-4)
    assert found["sqnr_db"].value == pytest.approx(23, abs=0.1)
    assert found["kl_mean"].value == pytest.approx(1.02, abs=0.05)
    assert found["top5_overlap"].value == pytest.approx(0, abs=0.03)
    assert abs(found["centred_cosine_mean"].value) < 0.02
    verdicts = judge_parity(
        compare(reference, device),
        profiles.choose_profile("w8a16", scheme="w8a16", parameters=0).sourced_limits()
        | {"perplexity_ratio": Limit(9, "")},
    )
    assert {verdict.name: verdict.outcome for verdict in verdicts}["kl_mean"] == "fail"


def test_kb06_cosine_is_blind_to_scale_and_the_others_are_not():
    reference = row(1, 2, 3, 4)
    assert metrics.cosine(reference, 3 * reference)[0] == pytest.approx(1)
    assert metrics.sqnr_db(reference, 3 * reference)[0] == pytest.approx(-6.02, abs=0.01)
    assert metrics.kl_divergence(reference, 3 * reference)[0] == pytest.approx(0.626, abs=1e-3)


def test_kb07_kl_is_of_the_reference_against_the_device():
    assert metrics.kl_divergence(row(3, 0, 0), row(1, 0, 0))[0] == pytest.approx(0.275, abs=1e-3)
    assert metrics.kl_divergence(row(1, 0, 0), row(3, 0, 0))[0] == pytest.approx(0.391, abs=1e-3)


def test_kb09_a_nan_sample_is_not_averaged_away():
    good = np.random.default_rng(9).normal(size=(3, 50))
    bad = good + 0.01
    bad[0, 7] = math.nan
    found = compare(good, bad)
    for name in (
        "cosine_mean",
        "cosine_min",
        "kl_mean",
        "kl_p99",
        "sqnr_db",
        "max_abs",
        "mean_abs",
        "rel_l2",
        "psnr_db",
    ):
        assert math.isnan(found.metrics[name].value), name
    assert fired(found) == {"nonfinite_device"}


def test_kb10_an_all_zero_output_fails_however_loose_the_tolerance():
    reference = np.random.default_rng(10).normal(size=(4, 20))
    found = compare(reference, np.zeros_like(reference))
    assert found.metrics["cosine_mean"].value == 0
    assert found.minimum_rtol == 1
    loose = {"max_abs": Limit(1e9, "marker"), "rel_l2": Limit(1e9, "marker")}
    assert [verdict.outcome for verdict in judge_parity(found, loose)] == ["fail"]


def test_kb11_psnr_takes_the_peak_of_the_reference():
    reference = row(2, 0, -2, 1)
    device = reference + np.array([[0.02, -0.02, 0.02, -0.02]])
    assert metrics.psnr_db(reference, device)[0] == pytest.approx(40)
    with pytest.raises(TypeError):
        metrics.psnr_db(reference, device, 1e-8)


def test_kb13_nothing_compared_is_a_failure():
    nothing = ParityAccumulator(against="float", kind="modelled").result()
    assert fired(nothing) == {"no_comparisons"}
    assert [v.outcome for v in judge_parity(nothing, {"kl_mean": Limit(1e9, "marker")})] == ["fail"]


def test_kb14_half_precision_input_is_summed_in_double():
    values = np.full((1, 4096), 40, dtype=np.float16)
    values[0, 0] = 39
    assert np.isfinite(metrics.cosine(values, values)[0])
    error = metrics.rel_l2(values, np.zeros_like(values))
    assert error[0] == 1
    assert metrics.sqnr_db(np.full((1, 4096), 40, np.float16), np.full((1, 4096), 39, np.float16))[0] == pytest.approx(
        20 * math.log10(2560 / 64)
    )


def test_kb15_a_comparison_that_could_not_be_made_fails_with_its_reason():
    reference = np.random.default_rng(15).normal(size=(4, 20))
    device = reference.copy()
    device[2, 3] = math.nan
    (verdict,) = judge_parity(compare(reference, device), {"kl_mean": Limit(1e9, "marker")})
    assert verdict.outcome == "fail"
    assert "position 2, token 3" in verdict.reason


def test_kb31_a_mean_carries_its_interval():
    draw = np.random.default_rng(31)
    reference = draw.normal(size=(64, 100))
    figure = compare(reference, reference + 0.3 * draw.normal(size=(64, 100))).metrics["kl_mean"]
    assert figure.lower < figure.value < figure.upper
    assert judge(figure, figure.value).outcome == "inconclusive"


def test_kb32_each_limit_stands_in_one_place():
    limits = dict(profiles.choose_profile(None, scheme="fp16", parameters=1).limits)
    assert limits.pop("top5_overlap") == 0.4
    assert limits == {
        "kl_mean": 1e-4,
        "kl_p99": 1e-3,
        "top1": 0.985,
        "perplexity_ratio": 1.005,
        "cosine_min": 0.999,
    }
    rows = [(row.name, row.min_parameters, row.quantizers, row.model) for row in profiles.profiles().rows]
    assert len(rows) == len(set(rows))


def test_a_user_metric_that_gives_nothing_fails():
    broken = exact_figure("kl_mean", math.nan, unit="nats", kind="modelled", samples=1, statistic="user")
    result = ParityResult({"kl_mean": broken}, 600, (), "float")
    limits = {"kl_mean": Limit(1, "marker"), "max_abs": Limit(1, "marker")}
    assert [verdict.outcome for verdict in judge_parity(result, limits)] == ["fail", "fail"]
    with pytest.raises(UsageError):
        judge_parity(result, {})
