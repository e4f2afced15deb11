import math

import pytest

from pytest_cannlm.agent.protocol import Times
from pytest_cannlm.errors import EngineError, NotObservable, UsageError
from pytest_cannlm.measure import latency


def times(tokens, *, start=0.0, prefill=None, end=None):
    return Times(start, prefill, tuple(tokens), max([start, *tokens]) if end is None else end)


def generation(count, *, first=400.0, step=20.0, **fields):
    return times([first + step * n for n in range(count)], **fields)


@pytest.mark.parametrize("count", [2, 5, 9, 65])
def test_decode_speed_does_not_depend_on_how_many_tokens_were_asked(count):
    """Prefill takes 400 ms, each later token 20 ms."""
    assert latency.ttft_model(generation(count)) == 400
    assert latency.tpot(generation(count)) == pytest.approx(20)
    assert latency.itl(generation(count)) == pytest.approx((20,) * (count - 1))
    assert latency.decode_tps([generation(count)]) == pytest.approx(50)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("metric", [latency.tpot, latency.itl, lambda t: latency.decode_tps([t])])
def test_fewer_than_two_tokens_have_no_decode_speed(count, metric):
    with pytest.raises(UsageError, match="undefined") as error:
        metric(generation(count))
    assert error.value.found == f"{count} generated tokens"


def test_no_token_has_no_first_token():
    for metric in (latency.ttft_model, latency.ttft_request):
        with pytest.raises(UsageError):
            metric(generation(0))


def test_model_and_request_side_differ_by_what_comes_before_prefill():
    found = generation(3, start=15.0)
    assert (latency.ttft_model(found), latency.ttft_request(found)) == (385, 400)


def test_prefill_speed_says_how_it_was_found():
    assert latency.prefill_tps(generation(2, start=100.0, prefill=300.0), 50) == ("prefill_tps", 250)
    assert latency.prefill_tps(generation(2), 40) == ("prefill_tps_via_ttft", 100)
    with pytest.raises(UsageError):
        latency.prefill_tps(generation(2), 0)


def test_a_duration_of_zero_is_not_a_speed():
    frozen = times([400.0, 400.0, 400.0], prefill=0.0)
    for metric in (latency.tpot, lambda t: latency.decode_tps([t]), lambda t: latency.prefill_tps(t, 10)):
        with pytest.raises(NotObservable, match="resolution"):
            metric(frozen)
    with pytest.raises(NotObservable):
        latency.ttft_model(times([0.0, 1.0]))


@pytest.mark.parametrize(
    "broken",
    [
        times([400, 390, 410]),
        times([400, 420], start=401),
        times([400, 420], prefill=401),
        times([400, 420], end=410),
        times([400, math.nan]),
        times([400, math.inf]),
        times([400, 420], start=-1),
    ],
)
def test_a_clock_that_runs_backwards_is_an_error(broken):
    with pytest.raises(EngineError) as error:
        latency.tpot(broken)
    assert error.value.code == "CLOCK_NOT_MONOTONIC"


def test_tokens_in_batches_keep_their_count_and_are_told_apart():
    """24 tokens as 8 callbacks of 3, 120 ms apart: 23 steps in 840 ms."""
    batched = times([400.0 + 120 * (n // 3) for n in range(24)])
    assert latency.is_batched(batched)
    assert not latency.is_batched(generation(24))
    assert latency.tpot(batched) == pytest.approx(840 / 23)


def test_depth_is_fitted_in_ms_per_thousand_tokens():
    prompt, instants = 100, [500.0]
    for i in range(2, 66):
        instants.append(instants[-1] + 20 + 0.002 * (prompt + i))
    base, slope = latency.depth_fit(times(instants), prompt)
    assert (base, slope) == (pytest.approx(20), pytest.approx(2))
