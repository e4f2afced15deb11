import math
import re
from functools import partial
from pathlib import Path

import pytest

from pytest_cannlm.arguments import REFUSALS
from pytest_cannlm.errors import UsageError
from pytest_cannlm.markers import (
    MARKERS,
    FallsBack,
    Layer,
    MemoryCeiling,
    NpuMarker,
    Parity,
    RefusesLoad,
    TokenLatency,
)
from pytest_cannlm.parity.names import METRICS


def parse(marker, *layers, **kwargs):
    return marker.parse(
        [*(Layer((), each, f"layer {i}") for i, each in enumerate(layers)), Layer((), kwargs, "function")]
    )


def refusal(marker, **kwargs):
    with pytest.raises(UsageError) as error:
        parse(marker, **kwargs)
    assert f"@pytest.mark.{marker.name}(" in str(error.value), "the signature is quoted"
    return str(error.value)


def test_defaults_are_those_of_the_reference():
    npu = parse(NpuMarker, model="m")
    assert (npu.scheme, npu.context, npu.chips, npu.requires, npu.converter) == ("w4a16", 2048, ("KirinX90",), (), None)
    latency = parse(TokenLatency, decode_ms=45)
    assert (latency.p, latency.new_tokens, latency.prompt, latency.confidence) == (50, 64, None, 0.95)
    parity = parse(Parity)
    assert (parity.profile, parity.against, parity.prompts, parity.tokens, parity.limits) == (
        None,
        "float",
        None,
        512,
        {},
    )
    assert parse(RefusesLoad, cann="6.0.1.0").at == "gate"


@pytest.mark.parametrize("marker", MARKERS.values(), ids=list(MARKERS))
def test_signature_shows_every_argument(marker):
    signature = marker.signature()
    assert signature.startswith(f"@pytest.mark.{marker.name}(")
    assert all(f"{name}=" in signature for name in marker.arguments())


def test_parity_signature_shows_the_metrics():
    assert "kl_mean=" in Parity.signature()
    assert "tokens=512" in Parity.signature()


@pytest.mark.parametrize(
    ("marker", "typo", "meant"),
    [
        (NpuMarker, "modle", "model"),
        (TokenLatency, "decode_ns", "decode_ms"),
        (MemoryCeiling, "peek", "peak"),
        (Parity, "kl_men", "kl_mean"),
        (Parity, "profil", "profile"),
        (RefusesLoad, "cannn", "cann"),
    ],
)
def test_unknown_argument_names_the_nearest(marker, typo, meant):
    assert f"{typo!r}; did you mean {meant!r}?" in refusal(marker, **{typo: 1})


def test_an_argument_like_nothing_gets_no_hint():
    assert "did you mean" not in refusal(NpuMarker, latency_ms_per_tokn=50)


def test_positional_arguments_are_refused():
    with pytest.raises(UsageError, match="takes keyword arguments only, found 50"):
        NpuMarker.parse([Layer((50,), {"model": "m"}, "function")])


@pytest.mark.parametrize("wrong", [0, -1, "fifty", math.nan, math.inf, True, "45", [45]])
@pytest.mark.parametrize("key", ["decode_ms", "ttft_ms", "prefill_tps"])
def test_latency_limits_are_positive_numbers(key, wrong):
    assert f"cannot have {key}={wrong!r}: expected a number above 0" in refusal(TokenLatency, **{key: wrong})


@pytest.mark.parametrize("given", [{}, {"decode_ms": None}, {"new_tokens": 16}])
def test_a_latency_marker_that_limits_nothing_is_refused(given):
    assert "limits nothing" in refusal(TokenLatency, **given)


@pytest.mark.parametrize("wrong", [1, 0, True, 2.5, "64"])
def test_time_per_token_needs_two_tokens(wrong):
    assert "new_tokens" in refusal(TokenLatency, decode_ms=45, new_tokens=wrong)


def test_max_regression_says_that_it_is_not_available():
    assert "max_regression is not available" in refusal(TokenLatency, decode_ms=45, max_regression="5%")


def test_a_percentile_that_no_affordable_sample_proves_names_the_need():
    text = refusal(TokenLatency, decode_ms=45, p=99)
    assert "p99" in text
    assert ">= 299 generations" in text


@pytest.mark.parametrize(("p", "advice"), [(99.9, "p=96.3 or less"), (99, "p=96.3 or less")])
def test_a_percentile_that_cannot_be_proven_names_one_that_can(p, advice):
    text = refusal(TokenLatency, decode_ms=45, p=p)
    assert advice in text
    assert "rounds or more" not in text
    assert parse(TokenLatency, decode_ms=45, p=float(advice.split()[0].removeprefix("p=")))


@pytest.mark.parametrize(("p", "confidence", "rounds"), [(50, 0.95, 5), (50, 0.99, 7), (90, 0.95, 8), (95, 0.95, 15)])
def test_the_plan_grows_with_what_it_has_to_prove(p, confidence, rounds):
    marker = parse(TokenLatency, decode_ms=45, p=p, confidence=confidence)
    assert marker.plan("fail").rounds == rounds
    assert marker.plan("extend").looks > marker.plan("fail").looks == 1


@pytest.mark.parametrize("wrong", [{"p": 0}, {"p": 100}, {"p": True}, {"confidence": 1}, {"confidence": 95}])
def test_percentile_and_confidence_have_their_range(wrong):
    refusal(TokenLatency, decode_ms=45, **wrong)


@pytest.mark.parametrize("wrong", [400, "400", "-1MiB", "0MiB", "400 MX", True, math.nan])
def test_memory_limits_need_a_unit(wrong):
    assert "peak" in refusal(MemoryCeiling, peak=wrong)


def test_nothing_may_be_left_over_but_no_other_limit_is_zero():
    assert parse(MemoryCeiling, retained="0B").retained == 0
    assert "retained=0" in refusal(MemoryCeiling, retained=0)
    assert "retained='-1B'" in refusal(MemoryCeiling, retained="-1B")
    assert "above 0" in refusal(MemoryCeiling, load="0B")


def test_memory_units_are_not_mixed_up():
    marker = parse(MemoryCeiling, peak="1.5GiB", load="400MB")
    assert (marker.peak, marker.load) == (1610612736, 400_000_000)
    assert "limits nothing" in refusal(MemoryCeiling)


def test_a_model_has_to_be_named():
    assert "names no model" in refusal(NpuMarker)
    assert "names no model" in refusal(NpuMarker, model=None)
    assert "model=' '" in refusal(NpuMarker, model=" ")


def test_scheme_aliases_and_wrong_schemes():
    assert parse(NpuMarker, model="m", scheme="int8").scheme == "w8a16"
    assert "did you mean 'w4a16'" in refusal(NpuMarker, model="m", scheme="w4a61")


def test_lists_fan_out_in_order_and_sets_are_sorted():
    marker = parse(NpuMarker, model={"b", "a", "c"}, scheme=["w4a16", "fp16", "w4a16"])
    assert marker.fanned_out() == {"model": ("a", "b", "c"), "scheme": ("w4a16", "fp16")}
    assert parse(NpuMarker, model="m").fanned_out() == {}
    assert "at least 1" in refusal(NpuMarker, model=[])


def test_chips_are_a_list_and_not_parameters():
    marker = parse(NpuMarker, model="m", chips={"KirinX90", "Kirin9020"})
    assert marker.chips == ("Kirin9020", "KirinX90")
    assert marker.fanned_out() == {}
    assert "at least 1" in refusal(NpuMarker, model="m", chips=())


def test_a_single_capability_needs_no_list():
    assert parse(NpuMarker, model="m", requires="logits").requires == ("logits",)
    assert "did you mean 'logits'" in refusal(NpuMarker, model="m", requires=["logit"])


def test_a_path_is_a_model():
    assert parse(NpuMarker, model=Path("models") / "tiny").model == str(Path("models") / "tiny")


def test_inner_layers_override_argument_by_argument():
    marker = parse(TokenLatency, {"decode_ms": 45, "ttft_ms": 800}, {"p": 90}, decode_ms=30)
    assert (marker.decode_ms, marker.ttft_ms, marker.p) == (30, 800, 90)
    assert marker.sources == {"decode_ms": "function", "ttft_ms": "layer 0", "p": "layer 1"}
    assert marker.explain() == "token_latency: decode_ms=30.0 (function), ttft_ms=800.0 (layer 0), p=90.0 (layer 1)"


def test_an_inner_none_lifts_a_limit_but_not_all():
    assert parse(TokenLatency, {"decode_ms": 45, "ttft_ms": 800}, decode_ms=None).decode_ms is None
    with pytest.raises(UsageError, match="limits nothing"):
        parse(TokenLatency, {"decode_ms": 45}, decode_ms=None)


def test_an_error_in_an_overridden_layer_is_still_an_error():
    with pytest.raises(UsageError, match="decode_ms=-1"):
        parse(TokenLatency, {"decode_ms": -1}, decode_ms=30)


def test_parity_limits_are_kept_by_metric_name():
    marker = parse(Parity, profile="w4a16", kl_mean=0.1, top1=0.9, sqnr_db=-3)
    assert marker.limits == {"kl_mean": 0.1, "top1": 0.9, "sqnr_db": -3}
    assert "kl_mean=0.1 (function)" in marker.explain()


@pytest.mark.parametrize(
    ("metric", "wrong"), [("kl_mean", 0), ("top1", 1.5), ("top1", 95), ("kl_mean", math.nan), ("sqnr_db", True)]
)
def test_parity_limits_out_of_range_are_refused(metric, wrong):
    assert f"{metric}={wrong!r}" in refusal(Parity, **{metric: wrong})


def test_parity_profiles_are_checked_at_collection():
    assert parse(Parity, profile="int8").profile == "int8"
    assert "did you mean 'w4a16'" in refusal(Parity, profile="w4a6")
    assert 'against "quantized"' in refusal(Parity, profile="fidelity")
    assert parse(Parity, profile="fidelity", against="quantized").against == "quantized"


def test_parity_knows_the_metrics_that_are_computed():
    assert set(Parity.METRICS) == set(METRICS)


@pytest.mark.parametrize(
    ("marker", "arguments", "expected"),
    [
        (NpuMarker, {"model": "m", "chips": ["KirinX09"]}, "did you mean 'KirinX90'"),
        (NpuMarker, {"model": "m", "chips": "Kirin"}, "expected a known chip"),
        (RefusesLoad, {"chip": "Kirin9021"}, "did you mean 'Kirin9020'"),
        (RefusesLoad, {"cann": "6.O.1.0"}, "four numbers such as 6.1.1.0"),
        (RefusesLoad, {"cann": "8.0.0"}, "four numbers such as 6.1.1.0"),
        (RefusesLoad, {"cann": "0.0.0.0"}, "four numbers such as 6.1.1.0"),
        (RefusesLoad, {"cann": "6.0.1.0", "error": "CANN_VERSION_MISMATHC"}, "did you mean 'CANN_VERSION_MISMATCH'"),
        (RefusesLoad, {"cann": "6.0.1.0", "error": "CANN_MISMATCH"}, "did you mean 'CANN_VERSION_MISMATCH'"),
    ],
)
def test_a_typo_that_would_assert_nothing_is_refused(marker, arguments, expected):
    assert expected in refusal(marker, **arguments)


def test_chips_have_one_spelling_and_engines_codes_of_their_own():
    assert parse(NpuMarker, model="m", chips="kirin x90").chips == ("KirinX90",)
    assert parse(RefusesLoad, chip="kirin 9020").chip == "Kirin9020"
    for code in ("145000", 145000):
        assert parse(RefusesLoad, cann="6.0.1.0", error=code, at="engine").error == "145000"
    assert "error=True" in refusal(RefusesLoad, cann="6.0.1.0", error=True)
    assert "error=-1" in refusal(RefusesLoad, cann="6.0.1.0", error=-1)


def test_every_code_of_a_refusal_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert [code for code in REFUSALS if f"`{code}`" not in page] == []
    gate = page.partition("## Codes of the gate")[2].partition("## Codes of agent")[0]
    assert set(re.findall(r"`((?:OM2?|CANN|CHIP|PACKAGE)_[A-Z0-9_]+)`", gate)) <= set(REFUSALS)


def test_a_profile_gets_the_positions_that_it_needs():
    assert "a profile needs 512" in refusal(Parity, profile="w4a16", tokens=511)
    assert "a profile needs 512" in refusal(Parity, tokens=256)
    assert parse(Parity, kl_mean=1, tokens=5).tokens == 5


def test_every_prompt_gets_a_position():
    assert "fewer than its 3 prompts" in refusal(Parity, prompts=["a", "b", "c"], tokens=2, kl_mean=1)


def test_parity_prompts_may_be_one_text():
    assert parse(Parity, prompts="one").prompts == ("one",)
    refusal(Parity, prompts=[])
    refusal(Parity, tokens=0)


@pytest.mark.parametrize("given", [{}, {"cann": "6.0.1.0", "chip": "Kirin9020"}, {"at": "engine"}])
def test_exactly_one_thing_is_wrong_with_the_copy(given):
    assert "exactly one of" in refusal(RefusesLoad, **given)


def test_what_no_engine_notices_is_asked_of_the_gate():
    assert parse(RefusesLoad, damage="stale-manifest").at == "gate"
    assert "no engine notices damage='stale-manifest'; use at=\"gate\"" in refusal(
        RefusesLoad, damage="stale-manifest", at="engine"
    )


def test_a_refusal_has_to_come_within_some_time():
    assert parse(RefusesLoad, cann="6.0.1.0", within_s=2).within_s == 2.0
    for wrong in (0, -1, "2 s", float("nan"), True):
        assert "expected a number above 0" in refusal(RefusesLoad, cann="6.0.1.0", within_s=wrong)


def test_damage_and_place_are_words_of_a_list():
    assert "did you mean 'truncate'" in refusal(RefusesLoad, damage="truncated")
    assert "at='device'" in refusal(RefusesLoad, cann="6.0.1.0", at="device")


def test_an_app_is_a_program_or_a_callable():
    assert parse(FallsBack).app is None
    assert parse(FallsBack, app=["python", Path("app.py")]).app == ("python", "app.py")
    assert parse(FallsBack, app=len).app is len


async def _coroutine(): ...
def _generator():
    yield


async def _both():
    yield


class _Called:
    async def __call__(self): ...


@pytest.mark.parametrize("app", [_coroutine, _generator, _both, partial(_coroutine), _Called()])
def test_an_app_that_only_begins_when_it_is_called_is_refused(app):
    assert "async or a generator" in refusal(FallsBack, app=app)


@pytest.mark.parametrize("app", ["python app.py", [], ["python", 3], ["python", ""], {"python"}, 7])
def test_any_other_app_is_refused(app):
    assert "a list of texts" in refusal(FallsBack, app=app)


def test_there_is_only_the_cloud_to_fall_back_to():
    assert "to='cpu'" in refusal(FallsBack, to="cpu")
