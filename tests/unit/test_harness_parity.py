"""Which tokens a parity test compares."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import tiny_llama

from pytest_cannlm.agent.protocol import Generation, Times
from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness.parity import _different_ids
from pytest_cannlm.harness.run import Asked
from pytest_cannlm.harness.windows import plan
from pytest_cannlm.markers import Parity
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.parity.text import standard_text

PROMPT = "<|im_start|>user\nThe quick brown fox<|im_end|>\n<|im_start|>assistant\n"
REPLY = (40, 41, 42)


@pytest.fixture(scope="module")
def tokenizer():
    with open_checkpoint(tiny_llama()) as checkpoint:
        return Tokenizer(checkpoint.tokenizer())


def run(asked=(), tokenize=None):
    times = Times(0, 1, (1, 2, 3), 3)
    generations = [Asked(text, Generation("", 1, REPLY, "stop", times, "modelled", "double")) for text in asked]
    client = SimpleNamespace(tokenize=tokenize)
    return SimpleNamespace(asked=generations, context=256, client=client, can=lambda name: tokenize is not None)


def test_what_the_body_asked_and_got_comes_first_and_standard_text_fills_up(tokenizer):
    found = plan(run([PROMPT]), Parity(tokens=300), tokenizer)
    own = [*tokenizer.encode(PROMPT), *REPLY]
    first = found.pieces[0].window
    assert [*first.tokens, first.targets[-1]] == own
    assert found.positions == 300


@pytest.mark.parametrize("tokens", [1, 3, 5, 16, 200, 512, 900])
@pytest.mark.parametrize("asked", [(), (PROMPT,), (PROMPT * 20,)])
def test_exactly_so_many_positions_are_compared(tokenizer, tokens, asked):
    assert plan(run(asked), Parity(tokens=tokens), tokenizer).positions == tokens


@pytest.mark.parametrize("asked", [(), (PROMPT,), (PROMPT * 20,)])
def test_the_end_of_the_cache_and_decoding_are_among_them_whatever_the_body_asked(tokenizer, asked):
    found = plan(run(asked), Parity(), tokenizer)
    assert (found.depth, found.decoded) == (256, 32)
    (decoded,) = [piece.window for piece in found.pieces if piece.decoded]
    assert (len(decoded.tokens), decoded.first) == (256, 224)
    assert "compared 512 positions down to depth 256, 32 of them decoded" in str(found)


def test_every_target_is_the_id_that_follows(tokenizer):
    ids = tokenizer.encode(standard_text(), special=False)
    for piece in plan(run(), Parity(), tokenizer).pieces:
        window = piece.window
        start = next(n for n in range(len(ids)) if tuple(ids[n : n + len(window.tokens)]) == window.tokens)
        first = start + window.first + 1
        assert window.targets == tuple(ids[first : first + len(window.targets)])
        assert len(window.tokens) - window.first == len(window.targets)


def test_without_anything_asked_only_standard_text_is_compared(tokenizer):
    found = plan(run(), Parity(tokens=200), tokenizer)
    assert tokenizer.decode(found.pieces[0].window.tokens)[:1].isalpha()
    assert (found.texts, found.cut) == (0, 0)


def test_the_markers_prompts_are_compared_alone(tokenizer):
    found = plan(run([PROMPT]), Parity(tokens=300, prompts=("One two", "three")), tokenizer)
    assert len(found.pieces) == 2
    assert "One two" in tokenizer.decode(found.pieces[0].window.tokens)
    assert "cut" not in str(found)


def test_every_prompt_is_compared_and_a_cut_one_is_named(tokenizer):
    found = plan(run(), Parity(tokens=6, prompts=("One two", "three", "four")), tokenizer)
    assert [piece.positions for piece in found.pieces] == [2, 2, 2]
    assert "3 of 3 texts were cut" in str(found)


def test_a_prompt_with_nothing_to_compare_is_an_error(tokenizer):
    plain = Tokenizer(replace(tokenizer.spec, chat_template=None))
    with pytest.raises(UsageError, match="a prompt has no position to compare"):
        plan(run(), Parity(prompts=("One two", "a")), plain)


def test_the_last_prompts_end_is_decoded(tokenizer):
    found = plan(run(), Parity(tokens=300, prompts=("One two", "three " * 40)), tokenizer)
    *_, beginning, end = found.pieces
    assert (beginning.decoded, end.decoded) == (False, True)
    assert (end.positions, end.window.first) == (32, beginning.positions)
    assert end.window.tokens[: end.window.first] == beginning.window.tokens


def test_more_tokens_than_the_standard_text_has_are_refused_by_their_number(tokenizer):
    with pytest.raises(UsageError, match="100000"):
        plan(run(), Parity(tokens=100_000), tokenizer)


def test_few_tokens_cut_the_bodys_own_text(tokenizer):
    found = plan(run([PROMPT, PROMPT]), Parity(tokens=3), tokenizer)
    assert list(found.pieces[0].window.tokens) == tokenizer.encode(PROMPT)[:3]
    assert "2 of 2 texts were cut" in str(found)


def test_ids_are_compared_with_the_checkpoints_own_tokenizer(tokenizer):
    """An engine that doubles the first id of a text is caught before any logits are looked at."""
    assert _different_ids(run([PROMPT], tokenizer.encode), tokenizer) is None
    verdict = _different_ids(run([PROMPT], lambda text: tokenizer.encode(text)[:1] + tokenizer.encode(text)), tokenizer)
    assert verdict.outcome == "fail"
    assert verdict.name == "prompt_ids"
    assert "position" in verdict.reason
