import math

import numpy as np
import pytest

from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.parity.accumulate import ParityAccumulator
from pytest_cannlm.parity.guards import check_origin
from pytest_cannlm.parity.judging import judge_parity

DRAW = np.random.default_rng(0)
GOOD = DRAW.normal(size=(10, 1000)).astype(np.float32)
ANY = {"kl_mean": Limit(1e9, "marker"), "cosine_mean": Limit(-1, "marker"), "top1": Limit(0, "marker")}


def guards(reference, device, **options):
    accumulator = ParityAccumulator(against="float", kind="modelled", **options)
    accumulator.add(np.asarray(reference), np.asarray(device))
    result = accumulator.result()
    verdicts = judge_parity(result, ANY)
    assert {verdict.outcome for verdict in verdicts} == ({"fail"} if result.guards else {"pass"})
    return {guard.name: guard.detail for guard in result.guards}


def changed(*places):
    device = GOOD.copy()
    for row, column, value in places:
        device[row, column] = value
    return device


def test_a_good_output_fires_nothing():
    assert guards(GOOD, GOOD + 0.01) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_value_of_the_device_is_counted_and_placed(value):
    found = guards(GOOD, changed((3, 17, value)))
    assert list(found) == ["nonfinite_device"]
    assert found["nonfinite_device"].startswith("1 values")
    assert "position 3, token 17" in found["nonfinite_device"]


def test_all_values_bad():
    found = guards(GOOD, np.full_like(GOOD, math.nan))
    assert found["nonfinite_device"].startswith("10000 values")


def test_a_bad_reference_is_told_apart():
    assert list(guards(changed((0, 0, math.nan)), GOOD)) == ["nonfinite_reference"]


def test_the_same_bad_value_on_both_sides_is_no_pass():
    broken = changed((1, 2, math.nan))
    assert list(guards(broken, broken)) == ["undefined_input"]


@pytest.mark.parametrize("shape", [(4, 1000), (2, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_zero_outputs(shape, dtype):
    some = (DRAW.normal(size=shape) + 3).astype(dtype)
    zero = np.zeros(shape, dtype)
    assert guards(some, zero) == {"all_zero_output": "the device's output is all zero"}
    assert "all_zero_reference" in guards(zero, some)
    assert "degenerate" in guards(zero, zero)["all_zero_output"]
    assert guards(zero, zero, allow_zero=True) == {}


def test_tiny_is_not_zero():
    tiny = np.float32(1e-30) * GOOD
    assert guards(tiny, tiny) == {}


def test_constant_rows_are_counted_and_placed():
    device = GOOD.copy()
    device[[4, 6]] = 1.5
    found = guards(GOOD, device)
    assert found["constant_output"].startswith("2 of 10 positions have all logits equal")
    assert "position 4" in found["constant_output"]


def test_the_same_row_at_every_position():
    found = guards(GOOD, np.repeat(GOOD[:1], 10, axis=0))
    assert "same logits at all 10 positions" in found["constant_output"]
    same = np.repeat(GOOD[:1], 10, axis=0)
    assert guards(same, same) == {}  # so does the reference


@pytest.mark.parametrize("device", [GOOD[:, :999], GOOD[:9], GOOD[0], GOOD[np.newaxis], GOOD.T])
def test_shapes_have_to_be_equal(device):
    assert set(guards(GOOD, device)) == {"shape_differs", "no_comparisons"}


def test_integers_are_no_logits():
    found = guards(GOOD, GOOD.astype(np.int8))
    assert "int8" in found["dtype_differs"]


def test_too_few_positions_for_the_profile():
    accumulator = ParityAccumulator(against="float", kind="modelled")
    accumulator.add(GOOD, GOOD)
    (verdict,) = judge_parity(accumulator.result(), ANY, min_positions=512)
    assert (verdict.outcome, verdict.name) == ("fail", "too_few_positions")
    assert verdict.reason == "10 positions compared, 512 needed"


def test_a_simulation_is_not_presented_as_a_device():
    assert check_origin("modelled", device_is_simulated=False).name == "simulated_as_device"
    assert check_origin("modelled", device_is_simulated=True) is None
    assert check_origin("measured", device_is_simulated=False) is None
