"""Ways to measure that are known to go wrong, each with the value that is right."""

import random
from statistics import quantiles

import pytest

from pytest_cannlm.agent.protocol import Memory, Times
from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure import latency
from pytest_cannlm.measure.figures import Figure, Limit
from pytest_cannlm.measure.judging import judge_latency
from pytest_cannlm.measure.memory import memory_sample
from pytest_cannlm.measure.plan import SamplingPlan, Warmup
from pytest_cannlm.measure.sampling import Round, TimedGeneration, latency_sample
from pytest_cannlm.measure.stats import judge, percentile, quantile_bounds, required_samples, round_figure


def times(*tokens):
    return Times(0.0, None, tokens, tokens[-1])


def test_kb08_nan_does_not_pass_a_negated_comparison():
    figure = Figure("cosine_mean", float("nan"), "", "modelled", None, None, None, 1, "mean")
    assert judge(figure, 0.99, "higher").outcome == "fail"
    assert judge(figure, 0.99, "lower").outcome == "fail"


def test_kb16_the_first_token_is_not_part_of_tpot():
    assert latency.tpot(times(1000.0, *(1000.0 + 20 * n for n in range(1, 10)))) == pytest.approx(20)


def test_kb17_rates_are_totals_over_totals_not_means_of_rates():
    slow = times(0.0, *(100.0 * n for n in range(1, 11)))  # 10 steps in 1 s
    fast = times(0.0, *(10.0 * n for n in range(1, 11)))  # 10 steps in 0.1 s
    assert latency.decode_tps([slow, fast]) == pytest.approx(18.18, abs=0.01)


def test_kb18_a_percentile_of_too_few_samples_is_refused():
    with pytest.raises(UsageError, match="299"):
        SamplingPlan(p=99)
    assert required_samples(99, 0.95) == 299
    assert quantile_bounds([float(n) for n in range(20)], p=99, confidence=0.95)[1] is None


def test_kb19_tokens_are_not_independent():
    """True value at the budget, rounds spread by 3 %: at most about 5 % may pass (tokens as samples: 40 %)."""
    draw, passes, repeats = random.Random(19), 0, 1500
    for _ in range(repeats):
        rounds = [
            [20 * (1 + shift + draw.gauss(0, 0.01) + draw.gauss(0, 0.05 / 8)) for _ in range(4)]
            for shift in (draw.gauss(0, 0.03) for _ in range(5))
        ]
        figure = round_figure("tpot", rounds, confidence=0.95, unit="ms/token", kind="modelled")
        passes += judge(figure, 20).outcome == "pass"
    assert 0.01 < passes / repeats <= 0.05


def test_kb21_warm_up_is_kept_apart_and_loses_no_sample():
    warmup = [20.0] * 10
    assert Warmup().state(warmup, 10) == "steady"
    rounds = [Round((TimedGeneration(5, times(1.0, 2.0), "modelled"),)) for _ in range(20)]
    sample = latency_sample(rounds, plan=SamplingPlan(rounds=20, new_tokens=2))
    assert sample.figures["tpot"].samples == 20


def test_kb22_the_time_is_divided_by_the_steps_once():
    """1000 steps in 250 us are 250 ns each."""
    assert latency.tpot(times(*(1.0 + 0.00025 * n for n in range(1001)))) == pytest.approx(0.00025)


def test_kb23_quartiles_agree_with_the_library():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]
    expected = quantiles(values, n=4, method="inclusive")
    assert [percentile(values, p) for p in (25, 50, 75)] == pytest.approx(expected)
    fence = expected[2] + 1.5 * (expected[2] - expected[0])
    assert max(value for value in values if value <= fence) == 7.0


def test_kb24_one_truncated_generation_moves_nothing():
    whole = TimedGeneration(5, times(*(400.0 + 20 * n for n in range(9))), "modelled")
    truncated = TimedGeneration(5, times(400.0, 401.0), "modelled")
    rounds = [*[Round((whole,) * 4)] * 5, Round((whole, truncated, whole, whole))]
    sample = latency_sample(rounds, plan=SamplingPlan(new_tokens=9))
    assert sample.figures["tpot"].value == pytest.approx(20)
    assert sample.void_rounds == ("2 tokens generated instead of 9",)


def test_kb25_slow_generations_are_not_trimmed_away():
    slow = {(round_, 0) for round_ in range(4)} | {(round_, 1) for round_ in range(4)}
    rounds = [[200.0 if (r, g) in slow else 20.0 for g in range(5)] for r in range(20)]
    figure = round_figure("tpot", rounds, confidence=0.95, unit="ms/token", kind="modelled")
    assert figure.detail["p95_of_sample"] == 200
    assert figure.detail["rounds"] == rounds


def test_kb26_memory_of_other_processes_does_not_count():
    quiet = Memory("measured", 100, 300, 380, 350, 1.0)
    busy = Memory("measured", 100, 300, 380, 350, 1.0, parts={"system_used": 2_000_000_000})
    first, second = (memory_sample(memory).figures["mem_peak"].value for memory in (quiet, busy))
    assert first == second == 380


def test_kb29_every_row_has_its_own_outcome():
    sample = latency_sample(
        [Round((TimedGeneration(10, times(*(100.0 + 20 * n for n in range(9))), "modelled"),))] * 5,
        plan=SamplingPlan(new_tokens=9),
    )
    limits = {"decode_ms": Limit(21, ""), "ttft_ms": Limit(1, ""), "prefill_tps": Limit(1, "")}
    assert [verdict.outcome for verdict in judge_latency(sample, limits)] == ["pass", "fail", "pass"]


def test_kb34_one_sample_is_no_basis_for_a_budget():
    with pytest.raises(UsageError, match=">= 5"):
        SamplingPlan(rounds=1, generations_per_round=1)
    lone = round_figure("tpot", [[20.0]], confidence=0.95, unit="ms/token", kind="measured")
    assert judge(lone, 1000).outcome == "inconclusive"
