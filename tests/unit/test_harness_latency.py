"""The sampling plan as it is run: modelled engines draw times, measured ones are warmed up first."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_npu import FakeClient

from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness import latency
from pytest_cannlm.harness.run import Asked
from pytest_cannlm.markers import Layer, TokenLatency


class Run(SimpleNamespace):
    """What the latency judge looks at."""

    def can(self, name):
        return name in self.client.names

    def room(self, text):
        return self.context - len(text.split()) + 1

    def generate(self, request):
        self.client.reset()
        return self.client.generate(request)


def run_with(client, *, kind="modelled", context=256, prompt="one two three"):
    from pytest_cannlm.agent.protocol import GenerateRequest

    first = client.generate(GenerateRequest(text=prompt, max_new_tokens=2))
    client.log.clear()
    client.kind = kind
    return Run(client=client, context=context, asked=[Asked(prompt, first)], tokenizer=None)


def marker(**arguments):
    return TokenLatency.parse([Layer((), arguments, "function")])


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(latency.time, "monotonic", lambda: next(clock))


def outcomes(judged):
    return {verdict.name: verdict.outcome for verdict in judged.verdicts}


def test_a_modelled_engine_computes_nothing_again():
    client = FakeClient()
    judged = latency.judge(run_with(client), marker(decode_ms=21, ttft_ms=101, prefill_tps=1), "fail")
    assert outcomes(judged) == {"decode_ms": "pass", "ttft_ms": "pass", "prefill_tps": "pass"}
    assert set(client.log) == {"sample_times"}
    assert len(client.log) == 5, "one call per round"


def test_rounds_use_seeds_of_their_own():
    seen = []
    client = FakeClient()
    draw = client.sample_times
    client.sample_times = lambda request: (seen.append((request.seed, request.repeats)), draw(request))[1]
    latency.judge(run_with(client), marker(decode_ms=21), "fail")
    assert seen == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4)]


def test_times_that_were_drawn_are_modelled_whatever_the_device_claims():
    judged = latency.judge(run_with(FakeClient(), kind="measured"), marker(decode_ms=21), "fail")
    assert {figure.kind for figure in judged.figures} == {"modelled"}


def test_measured_and_modelled_times_are_not_mixed():
    client = FakeClient(capabilities=())
    run = run_with(client, kind="measured")
    generate = client.generate
    client.generate = lambda request: replace(
        generate(request), kind="modelled" if len(client.log) > 30 else "measured"
    )
    judged = latency.judge(run, marker(decode_ms=1000), "fail")
    assert outcomes(judged) == {"decode_ms": "fail"}
    assert "some of the times are measured and some modelled" in judged.verdicts[0].reason


def test_a_measured_engine_is_warmed_up_and_starts_from_an_empty_cache_each_time():
    client = FakeClient(capabilities=("logits",))
    judged = latency.judge(run_with(client, kind="measured"), marker(decode_ms=21), "fail")
    assert outcomes(judged) == {"decode_ms": "pass"}
    assert judged.verdicts[0].figure.kind == "measured"
    warm_up = 5
    assert client.log == ["reset", "generate"] * (warm_up + 20)


def test_an_engine_that_never_settles_is_undecided_whatever_its_figures():
    client = FakeClient(capabilities=(), token_ms=lambda n: 10.0 + n)
    judged = latency.judge(run_with(client, kind="measured"), marker(decode_ms=1000), "fail")
    assert outcomes(judged) == {"decode_ms": "inconclusive"}
    assert "never steady in 30 warm-up generations" in judged.verdicts[0].reason


def test_extend_takes_more_rounds_before_it_gives_up():
    rounds = {}
    for policy in ("fail", "extend"):
        client = FakeClient(token_ms=lambda n: 18 + n % 5)
        latency.judge(run_with(client), marker(decode_ms=20), policy)
        rounds[policy] = client.log.count("sample_times")
    assert rounds["fail"] == 5
    assert rounds["extend"] > 10


def test_another_percentile_is_judged_over_generations():
    client = FakeClient(token_ms=lambda n: 40 if n % 10 == 0 else 20)
    assert outcomes(latency.judge(run_with(client), marker(decode_ms=30), "fail")) == {"decode_ms": "pass"}
    assert outcomes(latency.judge(run_with(client), marker(decode_ms=30, p=95), "fail")) != {"decode_ms": "pass"}


def test_what_does_not_fit_the_cache_is_not_timed():
    with pytest.raises(UsageError, match="do not fit the KV cache"):
        latency.judge(run_with(FakeClient(), context=64), marker(decode_ms=21), "fail")


def test_a_prefix_from_the_cache_voids_the_round():
    client = FakeClient(capabilities=())
    run = run_with(client, kind="measured")
    generate = client.generate
    client.generate = lambda request: replace(generate(request), cached_prefix_tokens=2)
    judged = latency.judge(run, marker(ttft_ms=1000), "fail")
    assert outcomes(judged) == {"ttft_ms": "inconclusive"}
    assert "prefix cache" in judged.verdicts[0].reason


def test_every_figure_of_the_sample_is_handed_on():
    judged = latency.judge(run_with(FakeClient()), marker(decode_ms=21), "fail")
    assert {figure.name for figure in judged.figures} >= {
        "tpot",
        "ttft_model",
        "ttft_request",
        "prefill_tps",
        "decode_tps",
    }
