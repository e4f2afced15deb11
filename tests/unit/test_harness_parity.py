"""Which tokens a parity test compares."""

from types import SimpleNamespace

import pytest
from tiny import tiny_llama

from pytest_cannlm.agent.protocol import Generation, Times
from pytest_cannlm.harness.parity import _different_ids, _windows
from pytest_cannlm.harness.run import Asked
from pytest_cannlm.markers import Parity
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tokenizer import Tokenizer

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


def compared(windows):
    return sum(len(window.targets) for window in windows)


def test_what_the_body_asked_and_got_comes_first_and_standard_text_fills_up(tokenizer):
    windows = _windows(run([PROMPT]), Parity(tokens=300), tokenizer)
    own = [*tokenizer.encode(PROMPT), *REPLY]
    assert [*windows[0].tokens, windows[0].targets[-1]] == own
    assert compared(windows) == 300
    assert len(windows) > 2


def test_without_anything_asked_only_standard_text_is_compared(tokenizer):
    windows = _windows(run(), Parity(tokens=200), tokenizer)
    assert compared(windows) == 200
    assert tokenizer.decode(windows[0].tokens)[:1].isalpha()


def test_the_markers_prompts_are_compared_alone(tokenizer):
    windows = _windows(run([PROMPT]), Parity(tokens=300, prompts=("One two", "three")), tokenizer)
    assert len(windows) == 2
    assert "One two" in tokenizer.decode(windows[0].tokens)


def test_few_tokens_cut_the_bodys_own_text(tokenizer):
    (window,) = _windows(run([PROMPT, PROMPT]), Parity(tokens=5), tokenizer)
    assert list(window.tokens) == tokenizer.encode(PROMPT)[:5]


def test_ids_are_compared_with_the_checkpoints_own_tokenizer(tokenizer):
    """An engine that doubles the first id of a text is caught before any logits are looked at."""
    assert _different_ids(run([PROMPT], tokenizer.encode), tokenizer) is None
    verdict = _different_ids(run([PROMPT], lambda text: tokenizer.encode(text)[:1] + tokenizer.encode(text)), tokenizer)
    assert verdict.outcome == "fail"
    assert verdict.name == "prompt_ids"
    assert "position" in verdict.reason
