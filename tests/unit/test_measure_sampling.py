import random

import pytest

from pytest_cannlm.agent.protocol import Generation, Times
from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.measure.judging import judge_latency
from pytest_cannlm.measure.plan import SamplingPlan
from pytest_cannlm.measure.sampling import Round, TimedGeneration, latency_sample, void_reason

PLAN = SamplingPlan(new_tokens=9)


def timed(*, first=400.0, step=20.0, count=9, cached=0, prefill=None, prompt=41, kind="modelled"):
    tokens = tuple(first + step * n for n in range(count))
    return TimedGeneration(prompt, Times(0.0, prefill, tokens, tokens[-1] if tokens else first), kind, cached)


def rounds(*steps, **fields):
    return [Round((timed(step=step, **fields),) * 4) for step in steps]


def sample(found, plan=PLAN, **fields):
    return latency_sample(found, plan=plan, **fields)


def verdict(found, plan=PLAN, **limits):
    (only,) = judge_latency(sample(found, plan), {name: Limit(value, "marker") for name, value in limits.items()})
    return only


def test_figures_carry_kind_unit_and_what_they_rest_on():
    found = sample(rounds(19, 20, 21, 22, 23), context=2048)
    tpot = found.figures["tpot"]
    assert (tpot.value, tpot.lower, tpot.upper) == (pytest.approx(21), pytest.approx(19), pytest.approx(23))
    assert (tpot.unit, tpot.kind, tpot.samples, tpot.confidence) == ("ms/token", "modelled", 5, 0.95)
    ttft = found.figures["ttft_model"]
    assert (ttft.value, ttft.detail["prompt_tokens"], ttft.detail["context"]) == (400, [41], 2048)
    assert set(found.figures) == {"tpot", "ttft_model", "ttft_request", "prefill_tps_via_ttft", "decode_tps", "itl_p95"}
    assert not found.missing


def test_limits_pass_fail_and_stay_open():
    found = rounds(19, 20, 21, 22, 23)
    assert verdict(found, decode_ms=23.001).outcome == "pass"
    assert verdict(found, decode_ms=22).outcome == "inconclusive"
    assert verdict(found, decode_ms=18.9).outcome == "fail"
    assert verdict(found, ttft_ms=400).outcome == "pass"
    assert verdict(found, ttft_ms=399).outcome == "fail"
    assert verdict(found, prefill_tps=100).outcome == "pass"
    assert verdict(found, prefill_tps=103).outcome == "fail"


def test_prefill_is_preferred_where_the_engine_tells_its_end():
    found = sample(rounds(20, 20, 20, 20, 20, prefill=200.0))
    assert found.figures["prefill_tps"].value == pytest.approx(205)
    assert "prefill_tps_via_ttft" not in found.figures


def test_an_end_of_prefill_told_only_sometimes_is_not_mixed():
    mixed = [Round((timed(prefill=200.0), timed()))] * 5
    assert "some generations only" in sample(mixed).missing["prefill_tps"]
    assert verdict(mixed, prefill_tps=1).outcome == "fail"


@pytest.mark.parametrize("count", [0, 1])
def test_a_generation_without_decode_steps_fails_as_unmeasured(count):
    found = latency_sample([Round((timed(count=count),))] * 5, plan=PLAN, fixed_length=False)
    (judged,) = judge_latency(found, {"decode_ms": Limit(1e9, "marker")})
    assert judged.outcome == "fail"
    assert judged.figure is None
    assert f"{count} generated tokens" in judged.reason


def test_nothing_timed_is_a_failure():
    judged = verdict([], decode_ms=1e9)
    assert (judged.outcome, judged.reason) == ("fail", "not observed: no generation was timed")


def test_disturbed_rounds_stay_out_of_the_statistics_and_in_the_record():
    found = sample([*rounds(20, 20, 20, 20, 20), Round((timed(step=500),), void="throttled")])
    assert found.figures["tpot"].value == pytest.approx(20)
    assert (found.good_rounds, found.void_rounds) == (5, ("throttled",))
    assert found.figures["tpot"].detail["void_rounds"] == ["throttled"]


def test_only_void_rounds_say_why():
    judged = verdict([Round((timed(cached=12),))], decode_ms=1e9)
    assert judged.outcome == "fail"
    assert "prefix cache" in judged.reason


def test_what_voids_a_generation():
    assert void_reason(timed(), 9) is None
    assert "12 prompt tokens" in void_reason(timed(cached=12), 9)
    assert "8 tokens generated instead of 9" in void_reason(timed(count=8), 9)
    assert void_reason(timed(count=8), None) is None
    assert sample([Round(())]).void_rounds == ("no generation in the round",)


def test_batched_tokens_mark_their_latencies_unreliable():
    tokens = tuple(400.0 + 120 * (n // 3) for n in range(9))
    batched = TimedGeneration(41, Times(0.0, None, tokens, tokens[-1]), "modelled")
    assert sample([Round((batched,))] * 5).figures["tpot"].detail["itl_reliable"] is False
    assert sample(rounds(20)).figures["tpot"].detail["itl_reliable"] is True


def test_a_percentile_of_rates_looks_at_the_slow_tail():
    plan = SamplingPlan(p=90, rounds=30, generations_per_round=1, new_tokens=9)
    found = sample([Round((timed(first=400.0 if n else 4000.0),)) for n in range(30)], plan)
    assert found.figures["ttft_model"].statistic == "p90 over generations"
    assert found.figures["prefill_tps_via_ttft"].statistic == "p10 over generations"
    assert found.figures["ttft_model"].upper > 400
    assert found.figures["prefill_tps_via_ttft"].lower < 41 / 0.4


def test_a_limit_that_looks_like_the_other_unit_is_explained():
    judged = verdict(rounds(40, 40, 40, 40, 40), decode_ms=25)
    assert judged.outcome == "fail"
    assert "the figure is 25 tokens/s: decode_ms takes milliseconds per token" in judged.reason
    assert "milliseconds" not in verdict(rounds(40, 40, 40, 40, 40), decode_ms=30).reason


def test_an_unknown_limit_is_a_usage_error():
    with pytest.raises(UsageError):
        verdict(rounds(20), decode=45)


def test_the_timed_part_of_a_generation():
    times = Times(0.0, None, (1.0, 2.0), 2.0)
    answer = Generation("x", 7, (1, 2), "length", times, "modelled", "double", cached_prefix_tokens=3)
    assert TimedGeneration.of(answer) == TimedGeneration(7, times, "modelled", 3)


def test_false_passes_at_the_budget_stay_near_five_percent():
    draw, passes, repeats = random.Random(11), 0, 400
    for _ in range(repeats):
        shifts = [draw.gauss(0, 0.03) for _ in range(5)]
        found = [Round(tuple(timed(step=20 * (1 + shift + draw.gauss(0, 0.01))) for _ in range(4))) for shift in shifts]
        passes += verdict(found, decode_ms=20).outcome == "pass"
    assert passes / repeats <= 0.06
