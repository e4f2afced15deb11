"""The timing model, the profiles that feed it, number formats and sampling."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from pytest_cannlm.errors import BadInputError, EngineError, UsageError
from pytest_cannlm.simulator.numerics import with_number_formats
from pytest_cannlm.simulator.package import Load
from pytest_cannlm.simulator.profile import load_profile, parse_profile, profile_names
from pytest_cannlm.simulator.sampling import Sampler, TokenChooser
from pytest_cannlm.simulator.session import Shape
from pytest_cannlm.simulator.stopping import StopMatcher
from pytest_cannlm.simulator.timing import TimingModel

X90 = load_profile("kirinx90")


def qwen(layers, hidden_weights, head_weights, kv_heads, kind, bytes_per_weight, head_bytes=None):
    head = head_weights * (head_bytes or bytes_per_weight)
    load = {kind: int(hidden_weights * bytes_per_weight)}
    load["w8" if head_bytes else kind] = load.get("w8" if head_bytes else kind, 0) + int(head)
    return TimingModel(X90, Load(load, int(hidden_weights), int(head_weights)), Shape(layers, kv_heads, 128), 2048, 64)


def test_fitted_rows_are_met():
    """The figures that the profile was fitted to; see the sources in the profile."""
    fp16_15b = qwen(28, 1.310e9, 0.233e9, 2, "fp16", 2)
    assert fp16_15b.decode_ms == pytest.approx(76, rel=0.03)
    assert fp16_15b.prefill_ms(94) == pytest.approx(693, rel=0.03)
    w4_7b = qwen(28, 6.525e9, 0.545e9, 4, "w4", 0.5 + 2 / 128, head_bytes=1)
    assert w4_7b.decode_ms == pytest.approx(60, rel=0.05)


def test_a_figure_that_was_not_used_is_predicted_within_a_factor_of_two():
    """Qwen3-4B with fp16 weights: 2.5 to 4.1 tokens per second were measured."""
    tokens_per_second = 1000 / qwen(36, 3.63e9, 0.389e9, 8, "fp16", 2).decode_ms
    assert 2.5 / 2 < tokens_per_second < 4.1 * 2


def test_no_prediction_beats_the_memory():
    model = qwen(28, 1.310e9, 0.233e9, 2, "w4", 0.5)
    floor = model.load.total_bytes / (X90["memory_bandwidth_gbs"] * 1e6)
    assert model.decode_ms > floor


def test_prefill_pays_for_whole_steps():
    model = qwen(28, 1.310e9, 0.233e9, 2, "w4", 0.5)
    assert model.prefill_ms(1) == model.prefill_ms(64) < model.prefill_ms(65) == model.prefill_ms(128)


def test_longer_context_makes_every_step_slower():
    model = qwen(28, 1.310e9, 0.233e9, 2, "w4", 0.5)
    assert replace(model, context=8192).decode_ms > model.decode_ms


def test_times_spread_around_the_prediction():
    model = qwen(28, 1.310e9, 0.233e9, 2, "w4", 0.5)
    tpots = [(t.tokens[-1] - t.tokens[0]) / 63 for t in (model.times(64, 64, seed) for seed in range(200))]
    assert np.mean(tpots) == pytest.approx(model.decode_ms, rel=0.005)
    assert 0.005 < np.std(tpots) / model.decode_ms < 0.02


@pytest.mark.parametrize("name", profile_names())
def test_every_number_says_where_it_is_from(name):
    profile = load_profile(name)
    assert profile.chip.lower() == name
    for number in profile.numbers.values():
        assert number.source
        assert number.status in ("source", "fitted", "assumed")


@pytest.mark.parametrize("gone", ["source", "status", "unit", "value"])
def test_number_without_a_source_is_refused(tmp_path, gone):
    entry = {"value": 1, "unit": "ms", "status": "assumed", "source": "a guess"}
    del entry[gone]
    data = {"chip": "KirinX90", "title": "t", "numbers": {"clock_ghz": entry}}
    with pytest.raises(BadInputError, match="clock_ghz"):
        parse_profile("x", data, tmp_path)


def test_unknown_profile_lists_those_that_there_are():
    with pytest.raises(UsageError, match="kirin9020, kirinx90"):
        load_profile("kirin1")


def graph_of(kind, name):
    a, b, c = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in ("a", "b", name))
    node = helper.make_node(kind, ["a", "b"], [name], name)
    return helper.make_model(helper.make_graph([node], "g", [a, b], [c]), ir_version=9)


def test_results_are_rounded_and_overflow_to_infinity():
    import onnxruntime as ort

    model = with_number_formats(graph_of("Mul", "c"), "faithful")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.array([1.0001, 300], np.float32), np.array([1, 300], np.float32)
    (c,) = session.run(None, {"a": a, "b": b})
    assert c.tolist() == [1.0, np.inf]


def test_operators_inner_results_stay_float32():
    model = with_number_formats(graph_of("Mul", "c.f32"), "faithful")
    assert [n.op_type for n in model.graph.node] == ["Mul"]


GREEDY = Sampler(do_sample=False, temperature=1.0, top_k=20, top_p=1.0, repetition_penalty=1.0, seed=0)


def choose(logits, seen=(), usable=None, forbidden=(), **options):
    sampler = replace(GREEDY, **options)
    chooser = TokenChooser(sampler, usable or len(logits), forbidden)
    return [chooser.choose(np.array(logits, np.float32), list(seen)) for _ in range(50)]


def test_greedy_takes_the_first_of_equal_logits():
    assert set(choose([1, 3, 3, 2])) == {1}


def test_padding_rows_and_forbidden_ids_are_never_chosen():
    assert set(choose([1, 3, 2, 9], usable=3)) == {1}
    assert set(choose([1, 3, 2, 9], forbidden=[3, 1])) == {2}


def test_top_k_and_top_p_bound_what_can_be_chosen():
    assert set(choose([5, 4.9, 4.8, 0], do_sample=True, top_k=2)) == {0, 1}
    assert set(choose([5, 5, -9, -9], do_sample=True, top_p=0.4)) == {0}
    assert set(choose([5, 5, -9, -9], do_sample=True, top_p=0.6)) == {0, 1}


def test_temperature_flattens():
    cold = choose([2, 1, 0], do_sample=True, temperature=0.05)
    hot = choose([2, 1, 0], do_sample=True, temperature=50.0)
    assert set(cold) == {0}
    assert len(set(hot)) == 3


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    assert set(choose([4, 3, -1], seen=[0], repetition_penalty=2.0)) == {1}
    assert set(choose([-1, -1.5, -9], seen=[0], repetition_penalty=2.0)) == {1}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_numbers_are_never_a_token(value):
    for options in ({}, {"do_sample": True}):
        with pytest.raises(EngineError, match="1 of 3 logits") as caught:
            choose([1, value, 2], **options)
        assert caught.value.code == "NONFINITE_LOGITS"


def test_ids_without_a_token_do_not_disturb_the_choice():
    assert set(choose([1, 3, 2], seen=[7], forbidden=[9], repetition_penalty=2.0)) == {1}


def test_stop_matcher_holds_back_a_possible_beginning():
    matcher = StopMatcher(["<end>"])
    assert [matcher.feed(t) for t in ("a<", "en", "x", "<en", "d>b")] == ["a", "", "<enx", "", ""]
    assert matcher.stopped
    assert matcher.finish() == ""
