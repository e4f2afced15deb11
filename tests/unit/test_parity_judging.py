import math

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Figure, Limit
from pytest_cannlm.parity.guards import Guard
from pytest_cannlm.parity.judging import check_metric, judge_parity
from pytest_cannlm.parity.result import ParityResult


def result(*, guards=(), positions=600, **values):
    figures = {
        name: Figure(name, mean, "", "modelled", mean - 2 * error, mean + 2 * error, 0.977, positions, "mean")
        for name, (mean, error) in values.items()
    }
    return ParityResult(figures, positions, tuple(guards), "float")


def outcomes(found, min_positions=1, missing=None, **limits):
    sourced = {name: Limit(value, "marker") for name, value in limits.items()}
    return [v.outcome for v in judge_parity(found, sourced, min_positions=min_positions, missing=missing)]


def test_means_are_judged_on_two_standard_errors():
    found = result(kl_mean=(0.10, 0.01), top1=(0.90, 0.01))
    assert outcomes(found, kl_mean=0.1201) == ["pass"]
    assert outcomes(found, kl_mean=0.11) == ["inconclusive"]
    assert outcomes(found, kl_mean=0.0799) == ["fail"]
    assert outcomes(found, top1=0.8799) == ["pass"]
    assert outcomes(found, top1=0.89) == ["inconclusive"]
    assert outcomes(found, top1=0.9201) == ["fail"]


def test_all_limits_have_to_hold_and_each_is_judged_alone():
    found = result(kl_mean=(0.1, 0.001), top1=(0.5, 0.001))
    assert outcomes(found, kl_mean=0.2, top1=0.9) == ["pass", "fail"]


def test_a_guard_comes_before_every_metric():
    found = result(guards=[Guard("simulated_as_device", "3 layers", "the converter")], kl_mean=(0.0, 0.0))
    (verdict,) = judge_parity(found, {"kl_mean": Limit(1.0, "marker")})
    assert (verdict.outcome, verdict.name, verdict.reason) == ("fail", "simulated_as_device", "3 layers")
    assert verdict.look_at == "the converter"


def test_a_limit_on_logits_is_not_observable_without_them():
    found = result(prefix_tokens=(16.0, 0.0))
    (verdict,) = judge_parity(found, {"kl_mean": Limit(1.0, "marker")})
    assert verdict.reason == "not observed: not observable: needs logits"
    assert outcomes(found, prefix_tokens=16, min_positions=10_000) == ["pass"]  # positions are for logits
    assert outcomes(found, prefix_tokens=17) == ["fail"]
    why = {"perplexity_ratio": "the text has no targets"}
    (told,) = judge_parity(found, {"perplexity_ratio": Limit(1.0, "marker")}, missing=why)
    assert "no targets" in told.reason


def test_nan_fails():
    assert outcomes(result(kl_mean=(math.nan, 0.0)), kl_mean=1e9) == ["fail"]


def test_nothing_to_judge_and_unknown_metrics_are_usage_errors():
    with pytest.raises(UsageError, match="judge nothing"):
        judge_parity(result(), {})
    with pytest.raises(UsageError, match="Did you mean kl_mean"):
        check_metric("kl_men")
    with pytest.raises(UsageError):
        outcomes(result(), quality=1)
