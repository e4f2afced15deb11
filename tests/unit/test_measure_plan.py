import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.plan import SamplingPlan, Warmup, combine, looks_for, next_step


def test_the_default_plan_is_just_enough_for_a_median():
    plan = SamplingPlan()
    assert (plan.rounds, plan.rounds_at(1), plan.look_confidence) == (5, 5, 0.95)


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"rounds": 4}, ">= 5"),
        ({"confidence": 0.99}, ">= 7"),
        ({"p": 90}, ">= 29 generations"),
        ({"p": 99}, ">= 299 generations"),
        ({"p": 95, "rounds": 14}, ">= 59 generations"),
        ({"new_tokens": 1}, ">= 2"),
        ({"rounds": 0}, ">= 1"),
        ({"generations_per_round": 0}, ">= 1"),
        ({"looks": 0}, ">= 1"),
        ({"max_void_rounds": -1}, ">= 0"),
        ({"p": 0}, "between 0 and 100"),
        ({"confidence": 95}, "0.5 to below 1"),
    ],
)
def test_an_impossible_plan_is_a_usage_error_naming_what_is_needed(fields, needed):
    with pytest.raises(UsageError) as error:
        SamplingPlan(**fields)
    assert needed in str(error.value)


def test_a_percentile_that_the_sample_proves_is_accepted():
    assert SamplingPlan(p=90, rounds=8).rounds_at(1) == 8
    assert SamplingPlan(p=95, rounds=15).p == 95


def test_looking_more_than_once_costs_confidence_and_rounds():
    plan = SamplingPlan(looks=3)
    assert plan.look_confidence == pytest.approx(1 - 0.05 / 3)
    assert [plan.rounds_at(look) for look in (1, 2, 3)] == [6, 11, 16]
    assert [plan.look_after(rounds) for rounds in (0, 6, 7, 11, 12, 16, 20)] == [1, 1, 2, 2, 3, 3, 3]
    assert SamplingPlan(p=90, rounds=8, looks=3).rounds_at(1) == 10  # 39 generations prove p90 at 98.3 %


def test_only_extend_looks_more_than_once():
    assert [looks_for(policy) for policy in ("extend", "fail", "skip", "xfail")] == [3, 1, 1, 1]


def test_the_first_step_measures_the_first_look():
    step = next_step(SamplingPlan(), good_rounds=0)
    assert (step.rounds, step.done) == (5, False)


@pytest.mark.parametrize("outcome", ["pass", "fail"])
def test_a_decided_look_ends_the_measurement(outcome):
    step = next_step(SamplingPlan(looks=3), good_rounds=6, outcome=outcome)
    assert (step.rounds, step.outcome) == (0, outcome)


def test_looks_end_undecided():
    plan = SamplingPlan(looks=3)
    first = next_step(plan, good_rounds=6, outcome="inconclusive")
    second = next_step(plan, good_rounds=11, outcome="inconclusive")
    last = next_step(plan, good_rounds=16, outcome="inconclusive")
    assert (first.rounds, second.rounds) == (5, 5)
    assert (last.done, last.outcome) == (True, "inconclusive")


def test_void_rounds_are_replaced_up_to_the_maximum():
    plan = SamplingPlan()
    assert next_step(plan, good_rounds=3, void_rounds=2).rounds == 2
    given_up = next_step(plan, good_rounds=2, void_rounds=3)
    assert given_up.outcome == "inconclusive"
    assert "3 void rounds" in given_up.reason


def test_a_look_needs_its_verdict():
    with pytest.raises(ValueError, match="verdict"):
        next_step(SamplingPlan(), good_rounds=5)


@pytest.mark.parametrize(
    ("outcomes", "combined"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "inconclusive"], "inconclusive"),
        (["inconclusive", "fail"], "fail"),
        ([], "fail"),
    ],
)
def test_outcomes_combine_to_the_worst_and_nothing_is_a_failure(outcomes, combined):
    assert combine(outcomes) == combined


def test_warm_up_goes_on_until_steady():
    warmup = Warmup()
    drifting = [30 - n for n in range(8)]
    assert warmup.state([20.0] * 4, 5) == "continue"
    assert warmup.state([20.0] * 5, 1.9) == "continue"
    assert warmup.state([20.0] * 5, 2.0) == "steady"
    assert warmup.state(drifting, 5) == "continue"
    assert warmup.state([*drifting, *[22.0] * 5], 5) == "steady"
    assert warmup.state([20.0 + n for n in range(30)], 60) == "never steady"
    assert warmup.state([], 0) == "continue"
