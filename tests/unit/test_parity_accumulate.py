import math
import time
import tracemalloc

import numpy as np
import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.parity import accumulate, metrics
from pytest_cannlm.parity.accumulate import ParityAccumulator
from pytest_cannlm.parity.guards import Guard
from pytest_cannlm.parity.judging import judge_parity
from pytest_cannlm.parity.profiles import choose_profile


def compare(reference, device, targets=None, *, window=None, **options):
    accumulator = ParityAccumulator(**{"against": "float", "kind": "modelled", **options})
    size = window or len(reference)
    for start in range(0, len(reference), size):
        rows = slice(start, start + size)
        accumulator.add(reference[rows], device[rows], None if targets is None else targets[rows])
    return accumulator.result()


@pytest.fixture(scope="module")
def pair():
    draw = np.random.default_rng(1)
    reference = (3 * draw.normal(size=(70, 400))).astype(np.float32)
    device = (reference + 0.3 * draw.normal(size=reference.shape)).astype(np.float32)
    return reference, device, draw.integers(0, 400, 70)


def test_every_metric_is_its_definition_over_all_positions(pair):
    reference, device, targets = pair
    found = {name: figure.value for name, figure in compare(*pair).metrics.items()}
    kl = metrics.kl_divergence(reference, device)
    flat = [array.reshape(1, -1) for array in (reference, device)]
    tops = [np.argsort(-side, axis=1, kind="stable")[:, :5] for side in (reference, device)]
    expected = {
        "cosine_mean": metrics.cosine(reference, device).mean(),
        "cosine_min": metrics.cosine(reference, device).min(),
        "centred_cosine_mean": metrics.centred_cosine(reference, device).mean(),
        "sqnr_db": metrics.sqnr_db(*flat)[0],
        "rel_l2": metrics.rel_l2(*flat)[0],
        "psnr_db": metrics.psnr_db(*flat)[0],
        "max_abs": metrics.max_abs(*flat)[0],
        "mean_abs": metrics.mean_abs(*flat)[0],
        "kl_mean": kl.mean(),
        "kl_p99": np.percentile(kl, 99),
        "top1": np.mean(reference.argmax(axis=1) == device.argmax(axis=1)),
        "top5_agreement": np.mean([top[0] in other for top, other in zip(*tops, strict=True)]),
        "top5_overlap": np.mean([len({*top} & {*other}) / 5 for top, other in zip(*tops, strict=True)]),
        "perplexity_ratio": metrics.perplexity_ratio(
            *(metrics.negative_log_likelihood(side, targets) for side in (reference, device))
        ),
    }
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("window", [1, 7, 64])
@pytest.mark.parametrize("block", [1, 1000, 2**17])
def test_windows_and_blocks_change_nothing(pair, window, block, monkeypatch):
    whole = compare(*pair)
    monkeypatch.setattr(accumulate, "_BLOCK_ELEMENTS", block)
    cut = compare(*pair, window=window)
    assert cut.positions == whole.positions == 70
    for name, figure in whole.metrics.items():
        assert cut.metrics[name].value == pytest.approx(figure.value, rel=1e-12)
        assert cut.metrics[name].upper == pytest.approx(figure.upper, rel=1e-12)
    assert cut.worst == whole.worst
    assert cut.guards == whole.guards == ()


def test_means_carry_two_standard_errors(pair):
    reference, device, targets = pair
    found = compare(*pair).metrics
    kl = metrics.kl_divergence(reference, device)
    error = kl.std(ddof=1) / math.sqrt(70)
    assert found["kl_mean"].upper == pytest.approx(kl.mean() + 2 * error)
    assert found["kl_mean"].lower == pytest.approx(kl.mean() - 2 * error)
    nll = [metrics.negative_log_likelihood(side, targets) for side in (reference, device)]
    difference = nll[1] - nll[0]
    bound = math.exp(difference.mean() + 2 * difference.std(ddof=1) / math.sqrt(70))
    assert found["perplexity_ratio"].upper == pytest.approx(bound)
    assert found["top1"].lower < found["top1"].value


def test_points_on_the_fixed_set_say_that_they_are(pair):
    found = compare(*pair).metrics
    for name in ("kl_p99", "cosine_min", "sqnr_db", "rel_l2", "psnr_db", "max_abs", "mean_abs"):
        assert found[name].lower == found[name].upper == found[name].value
        assert "regression check on the fixed set" in found[name].statistic
    assert found["kl_p99"].detail["upper_95"] is None  # 70 positions prove no p99


def test_every_figure_carries_its_kind(pair):
    assert {figure.kind for figure in compare(*pair, kind="measured").metrics.values()} == {"measured"}
    assert {figure.kind for figure in compare(*pair).metrics.values()} == {"modelled"}


def test_the_smallest_tolerances_that_pass(pair):
    reference, device, _ = pair
    found = compare(*pair)
    r, d = reference.astype(np.float64), device.astype(np.float64)
    np.testing.assert_allclose(d, r, atol=found.minimum_atol, rtol=0)
    np.testing.assert_allclose(d, r, atol=0, rtol=found.minimum_rtol * (1 + 1e-12))
    for shrunk in ({"atol": found.minimum_atol * 0.999, "rtol": 0}, {"atol": 0, "rtol": found.minimum_rtol * 0.999}):
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(d, r, **shrunk)


def test_a_zero_of_the_reference_needs_an_infinite_relative_tolerance():
    reference = np.array([[0.0, 1.0, 2.0]])
    assert compare(reference, np.array([[0.0, 1.0, 2.2]])).minimum_rtol == pytest.approx(0.1)
    assert compare(reference, np.array([[0.1, 1.0, 2.0]])).minimum_rtol == math.inf


def test_the_worst_twenty_elements_are_listed(pair):
    reference, device, _ = pair
    worst = compare(*pair, window=9).worst
    difference = np.abs(reference.astype(np.float64) - device)
    order = np.sort(difference.ravel())[::-1]
    assert [abs(each.reference - each.device) for each in worst] == pytest.approx(order[:20].tolist())
    for each in worst:
        assert difference[each.position, each.token] == pytest.approx(abs(each.reference - each.device))
        assert reference[each.position, each.token] == each.reference


def test_figures_carry_tolerances_and_the_worst_elements(pair):
    found = compare(*pair)
    for figure in found.metrics.values():
        assert figure.detail["minimum_atol"] == found.minimum_atol
        assert figure.detail["minimum_rtol"] == found.minimum_rtol
    worst = found.metrics["max_abs"].detail["worst"]
    assert len(worst) == 20
    assert worst[0]["reference"] == found.worst[0].reference


def test_one_broken_row_is_named():
    draw = np.random.default_rng(3)
    reference = draw.normal(size=(64, 64))
    device = reference + 1e-4 * draw.normal(size=(64, 64))
    device[-1] = draw.normal(size=64)
    found = compare(reference, device).metrics
    assert found["cosine_mean"].value > 0.97
    assert found["cosine_min"].detail["worst_position"] == 63
    assert found["kl_mean"].detail["worst_position"] == 63
    assert found["kl_mean"].detail["last_position"] == found["kl_mean"].detail["worst"]


def test_matching_infinities_leave_both_sides_only_when_allowed():
    draw = np.random.default_rng(4)
    reference, device = draw.normal(size=(3, 12)), draw.normal(size=(3, 12))
    masked = [0, 5, 11]
    kept = [column for column in range(12) if column not in masked]
    plain = compare(reference[:, kept], device[:, kept], np.array([0, 1, 2]))
    for side in (reference, device):
        side[:, masked] = -math.inf
    targets = np.array([kept[0], kept[1], kept[2]])
    allowed = compare(reference, device, targets, allow_matching_infinities=True)
    assert allowed.guards == ()
    assert any("9 infinities" in note for note in allowed.notes)
    for name, figure in plain.metrics.items():
        assert allowed.metrics[name].value == pytest.approx(figure.value)
    assert {each.token for each in allowed.worst} <= set(kept)
    assert [guard.name for guard in compare(reference, device).guards] == ["undefined_input"]
    with pytest.raises(UsageError, match="mask"):
        compare(reference, device, np.array([0, 1, 1]), allow_matching_infinities=True)


def test_infinities_that_do_not_match_fail_even_when_allowed():
    reference = np.random.default_rng(5).normal(size=(3, 12))
    device = reference.copy()
    device[1, 4] = -math.inf
    found = compare(reference, device, allow_matching_infinities=True)
    assert [guard.name for guard in found.guards] == ["nonfinite_device"]


def test_ties_of_the_reference_are_counted_and_explain_mismatches():
    reference = np.zeros((3, 12), dtype=np.float32)
    reference[:, [5, 9]] = 7.0
    reference[2, 9] = 6.9995
    device = reference.copy()
    device[0, 9] += 1e-3  # chooses 9 where 5 and 9 are equal
    device[1, 7] = 8.0  # chooses 7, which is not in the tie
    device[2, 9] = 7.5  # chooses 9, which is 0.0005 behind
    found = compare(reference, device)
    top1 = found.metrics["top1"]
    assert top1.value == 0
    assert top1.detail == {
        "standard_error": 0.0,
        "minimum_atol": 8.0,
        "minimum_rtol": math.inf,
        "mismatches": 3,
        "mismatches_in_exact_ties": 1,
        "mismatches_in_near_ties": 1,
        "reference_ties": 2,
    }
    assert any("tied at 2 positions" in note for note in found.notes)


def behind_an_outlier(logits):
    """One equal outlier, everything else unrelated."""
    other = np.random.default_rng(70).normal(size=logits.shape)
    other[:, 0] = logits[:, 0]
    return other


@pytest.mark.parametrize(
    ("outlier", "change", "failed"),
    [
        (None, lambda logits: 0.5 * logits, "kl_mean"),
        (None, lambda logits: 10 * logits, "kl_mean"),
        (5000.0, behind_an_outlier, "top5_overlap"),
        (None, lambda logits: logits + 3.0, None),  # softmax does not see a common offset: right for logits
    ],
)
def test_a_high_cosine_alone_does_not_pass(outlier, change, failed):
    reference = 3 * np.random.default_rng(7).normal(size=(40, 500))
    if outlier:
        reference[:, 0] = outlier
    found = compare(reference, change(reference), np.arange(40))
    assert found.metrics["cosine_mean"].value > 0.7
    verdicts = judge_parity(found, choose_profile(None, scheme="w8a16", parameters=0).sourced_limits())
    failures = {verdict.name for verdict in verdicts if verdict.outcome == "fail"}
    assert (failed in failures) if failed else not failures


def test_perfect_agreement():
    reference = np.random.default_rng(8).normal(size=(10, 50))
    found = compare(reference, reference, np.arange(10))
    values = {name: figure.value for name, figure in found.metrics.items()}
    assert values["sqnr_db"] == values["psnr_db"] == math.inf
    assert values["kl_mean"] == values["kl_p99"] == values["rel_l2"] == values["max_abs"] == 0
    assert values["top1"] == values["top5_overlap"] == values["perplexity_ratio"] == 1
    assert (found.minimum_atol, found.minimum_rtol, found.worst, found.guards) == (0, 0, (), ())


def test_one_position_has_no_interval():
    reference = np.random.default_rng(8).normal(size=(1, 50))
    found = compare(reference, reference + 0.1)
    assert (found.metrics["kl_mean"].lower, found.metrics["kl_mean"].upper) == (None, None)


def test_without_targets_there_is_no_perplexity_and_with_a_tiny_vocabulary_no_top5():
    reference = np.random.default_rng(9).normal(size=(6, 4))
    assert not {"perplexity_ratio", "top5_overlap", "top5_agreement"} & set(compare(reference, reference).metrics)


@pytest.mark.parametrize("targets", [[0, 1], [0, 1, 50], [0, 1, -1], [[0], [1], [2]]])
def test_targets_fit_positions_and_vocabulary(targets):
    reference = np.random.default_rng(9).normal(size=(3, 50))
    with pytest.raises(UsageError):
        compare(reference, reference, np.array(targets))


def test_what_the_caller_found_stays():
    mine = Guard("simulated_as_device", "3 layers")
    reference = np.random.default_rng(9).normal(size=(3, 50))
    found = compare(reference, reference, guards=[mine], reference_hash="abc", against="quantized")
    assert (found.guards, found.reference_hash, found.against) == ((mine,), "abc", "quantized")


def test_half_precision_is_compared_in_double_and_noted():
    reference = np.random.default_rng(9).normal(size=(3, 50)).astype(np.float32)
    found = compare(reference, reference.astype(np.float16))
    assert found.guards == ()
    assert found.notes == ("reference float32, device float16: compared in float64",)


def test_memory_and_time_stay_bounded():
    """256 positions of a 49152-word vocabulary: about half a second, and a few blocks of memory."""
    draw = np.random.default_rng(2)
    reference = draw.standard_normal((32, 49152), dtype=np.float32)
    device = reference + np.float32(0.1)
    accumulator = ParityAccumulator(against="float", kind="modelled")
    accumulator.add(reference[:2], device[:2])
    tracemalloc.start()
    accumulator.add(reference, device)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20
    started = time.process_time()
    for _ in range(8):
        accumulator.add(reference, device)
    assert time.process_time() - started < 5  # ten times what it takes, for a busy machine
