import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.parity.judging import judge_parity
from pytest_cannlm.parity.result import ParityResult
from pytest_cannlm.parity.tokens import compare_greedy, compare_prompt_ids, prefix_figures

WORDS = {0: "<bos>", 1: "What", 2: " is", 3: " are", 4: "<think>"}


def decode(ids):
    return "".join(WORDS[token] for token in ids)


def test_equal_prompts_have_no_difference():
    assert compare_prompt_ids([0, 1, 2], (0, 1, 2), decode) is None
    assert compare_prompt_ids([], [], decode) is None


def test_the_first_difference_is_named_with_both_pieces():
    found = compare_prompt_ids([0, 1, 2], [0, 1, 3], decode)
    assert (found.position, found.reference_text, found.engine_text) == (2, " is", " are")
    assert str(found) == "prompt ids differ at position 2: reference 2 ' is', engine 3 ' are'"


@pytest.mark.parametrize(
    ("reference", "engine", "hint"),
    [
        ([0, 1, 2], [0, 0, 1, 2], "the engine adds the first token (BOS) again"),
        ([0, 0, 1, 2], [0, 1, 2], "the reference has the first token (BOS) twice"),
        ([1, 2], [0, 1, 2], "the engine adds a token in front (BOS)"),
        ([0, 1, 2], [1, 2], "the engine leaves out the first token (BOS)"),
        ([1, 2], [1, 3], ""),
    ],
)
def test_a_doubled_or_lost_bos_is_recognised(reference, engine, hint):
    assert compare_prompt_ids(reference, engine, decode).hint == hint


def test_one_side_may_end_first():
    longer = compare_prompt_ids([0, 1], [0, 1, 4], decode)
    assert (longer.position, longer.reference_id, longer.engine_id, longer.engine_text) == (2, None, 4, "<think>")
    assert "reference has ended, engine 4 '<think>'" in str(longer)
    assert compare_prompt_ids([0, 1, 4], [0, 1], decode).engine_id is None


def logits(**values):
    row = [0.0] * 12
    for name, value in values.items():
        row[int(name[1:])] = value
    return lambda position: row


def test_leading_equal_tokens_are_counted():
    assert compare_greedy([7, 8, 9], [7, 8, 9]).prefix_tokens == 3
    assert compare_greedy([7, 8, 9], [7, 8, 9, 10]).parting is None
    parted = compare_greedy([7, 8, 9], [7, 5, 9])
    assert (parted.prefix_tokens, parted.reference_tokens, parted.first_token_match) == (1, 3, True)
    assert (parted.parting.judged, parted.parting.margin) == ("different", None)
    short = compare_greedy([7, 8, 9], [7])
    assert (short.prefix_tokens, short.parting.device_token) == (1, None)
    assert not compare_greedy([7], [8]).first_token_match
    with pytest.raises(UsageError):
        compare_greedy([], [1])


def test_an_exact_tie_is_accepted_and_still_shown():
    """The reference holds 5 and 9 for equal; the device takes 9, or 7."""
    tied = logits(_5=3.0, _9=3.0)
    other = compare_greedy([5, 1, 1], [9, 2, 2], reference_logits=tied)
    assert (other.parting.judged, other.parting.margin) == ("tie", 0)
    assert (other.prefix_tokens, other.raw_prefix_tokens, other.first_token_match) == (3, 0, True)
    wrong = compare_greedy([5, 1, 1], [7, 2, 2], reference_logits=tied)
    assert (wrong.parting.judged, wrong.parting.margin, wrong.prefix_tokens) == ("different", 3.0, 0)


def test_a_tie_on_the_device_alone_is_decided_by_the_near_tie_rule():
    one_fp16_step = 2.0**-9  # between 2 and 4
    gap = logits(_5=3.0, _9=3.0 - one_fp16_step)
    assert compare_greedy([5], [9], reference_logits=gap).parting.judged == "different"
    excused = compare_greedy([5], [9], reference_logits=gap, near_tie=2 * one_fp16_step)
    assert (excused.parting.judged, excused.parting.margin) == ("near tie", pytest.approx(one_fp16_step))


def test_figures_of_the_worst_prompt_fail_their_limit():
    comparisons = [compare_greedy([1] * 20, [1] * 20), compare_greedy([1] * 20, [1] * 12 + [2] * 8)]
    figures = prefix_figures(comparisons, kind="measured")
    assert (figures["prefix_tokens"].value, figures["first_token_match"].value) == (12, 1)
    assert figures["prefix_tokens"].kind == "measured"
    result = ParityResult(figures, 40, (), "quantized")
    for limit, outcome in ((12, "pass"), (13, "fail")):
        (verdict,) = judge_parity(result, {"prefix_tokens": Limit(limit, "marker")})
        assert verdict.outcome == outcome
    assert prefix_figures([], kind="measured") == {}
