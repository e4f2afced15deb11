import pytest

from pytest_cannlm.agent.protocol import Memory
from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.measure.judging import judge_memory
from pytest_cannlm.measure.memory import kv_bytes_per_token, memory_sample, slope_per_step

MIB = 2**20


def memory(**fields):
    defaults = {
        "kind": "modelled",
        "base": 80 * MIB,
        "load": 300 * MIB,
        "peak": 380 * MIB,
        "current": 350 * MIB,
        "kv_per_token": 23040.0,
    }
    return Memory(**{**defaults, **fields})


def outcome(found, **limits):
    (only,) = judge_memory(found, {name: Limit(value, "marker") for name, value in limits.items()})
    return only.outcome


def test_each_ceiling_passes_and_fires():
    found = memory_sample(memory(), unloaded=memory(current=2 * MIB))
    for name, value in (("load", 300 * MIB), ("peak", 380 * MIB), ("retained", 2 * MIB), ("kv_per_token", 23040)):
        assert outcome(found, **{name: value}) == "pass"
        assert outcome(found, **{name: value - 1}) == "fail"
    assert {figure.kind for figure in found.figures.values()} == {"modelled"}


@pytest.mark.parametrize(("limit", "field"), [("load", "load"), ("peak", "peak"), ("kv_per_token", "kv_per_token")])
def test_what_is_not_observable_fails_and_is_never_zero(limit, field):
    found = memory_sample(memory(**{field: None}))
    assert outcome(found, **{limit: 10**12}) == "fail"


def test_memory_that_was_never_read_fails_every_ceiling():
    found = memory_sample(None)
    assert all(outcome(found, **{name: 10**12}) == "fail" for name in ("load", "peak", "retained", "kv_per_token"))


def test_retained_memory_needs_an_unload():
    assert outcome(memory_sample(memory()), retained=10**12) == "fail"
    assert outcome(memory_sample(memory(), unloaded=memory(current=None)), retained=10**12) == "fail"


def test_a_peak_below_the_weights_means_that_the_accounting_is_blind():
    found = memory_sample(memory(), resident_weight_bytes=381 * MIB)
    (judged,) = judge_memory(found, {"peak": Limit(10**12, "marker")})
    assert judged.outcome == "fail"
    assert "does not see them" in judged.reason
    assert "mem_peak" in memory_sample(memory(), resident_weight_bytes=380 * MIB).figures


def test_a_cache_reserved_at_load_has_no_slope_to_pass_with():
    found = memory_sample(memory(kv_per_token=0.0))
    assert outcome(found, kv_per_token=10**9) == "fail"
    assert "reserved at load" in found.missing["kv_slope"]


def test_a_leak_shows_as_growth_per_cycle():
    assert slope_per_step([10 * MIB + 196 * MIB * cycle for cycle in range(5)]) == pytest.approx(196 * MIB)
    assert slope_per_step([7, 7, 7]) == 0
    assert slope_per_step([0, 23040 * 64], [0, 64]) == pytest.approx(23040)


def test_the_theory_of_a_kv_cache():
    assert kv_bytes_per_token(layers=30, kv_heads=3, head_dim=64, bytes_per_element=2) == 23040


def test_an_unknown_ceiling_is_a_usage_error():
    with pytest.raises(UsageError):
        outcome(memory_sample(memory()), peek=1)
