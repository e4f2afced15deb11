"""The calibration text: bundled or the user's, plain or JSON lines, in windows of the model's tokens."""

import json

import pytest
from tiny import tiny_llama

from pytest_cannlm.build.calibration import LEAST_TOKENS, WINDOW, WINDOWS, calibration_sha256, calibration_windows
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.parity.text import standard_text


@pytest.fixture(scope="module")
def tokenizer():
    with open_checkpoint(tiny_llama()) as checkpoint:
        return Tokenizer(checkpoint.tokenizer())


def test_bundled_text_is_cut_into_windows(tokenizer):
    windows = calibration_windows(None, tokenizer)
    assert 1 < len(windows) <= WINDOWS
    assert {len(window) for window in windows[:-1]} == {WINDOW}


def test_bundled_text_is_not_the_one_that_parity_is_judged_on(tokenizer):
    shown = {line for window in calibration_windows(None, tokenizer) for line in tokenizer.decode(window).split("\n")}
    assert not {line for line in shown if len(line) > 40} & set(standard_text().split("\n"))


def test_long_text_is_sampled_evenly_and_not_only_at_its_beginning(tokenizer, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("one two three four five. " * 4000 + "the very last words " * 200)
    windows = calibration_windows(file, tokenizer)
    assert len(windows) == WINDOWS
    assert "very last" in tokenizer.decode(windows[-1])


def test_json_lines_hold_texts_and_chats(tokenizer, tmp_path):
    file = tmp_path / "some.jsonl"
    chat = [{"role": "user", "content": "Which words?"}, {"role": "assistant", "content": "These words."}]
    lines = [json.dumps({"text": "plain words " * 300}), "", json.dumps({"messages": chat})]
    file.write_text("\n".join(lines))
    ids = [token for window in calibration_windows(file, tokenizer) for token in window]
    rendered = tokenizer.render_chat(chat, add_generation_prompt=False)
    assert ids == tokenizer.encode("plain words " * 300) + tokenizer.encode(rendered)


def test_every_window_starts_with_bos_where_the_model_wants_it(tokenizer):
    spec = tokenizer.spec
    wants = Tokenizer.from_json(spec.json_text, bos_token=tokenizer.token_text(1), add_bos=True)
    plain, marked = calibration_windows(None, tokenizer), calibration_windows(None, wants)
    assert [[1, *window] for window in plain] == marked


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        "[" * 100_000,
        '{"prompt": "x"}',
        '{"messages": []}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"text": 5}',
        '{"text": "\\ud800"}',
    ],
)
def test_a_line_that_is_no_text_is_named(tokenizer, tmp_path, line):
    file = tmp_path / "some.jsonl"
    file.write_text(json.dumps({"text": "words"}) + "\n" + line)
    with pytest.raises(BadInputError, match="line 2") as caught:
        calibration_windows(file, tokenizer)
    assert caught.value.found == line[:60]


def test_text_that_is_missing_short_or_binary_is_refused(tokenizer, tmp_path):
    with pytest.raises(UsageError, match=r"none\.txt"):
        calibration_windows(tmp_path / "none.txt", tokenizer)
    (tmp_path / "short.txt").write_text("a few words")
    with pytest.raises(UsageError, match=f"at least {LEAST_TOKENS}"):
        calibration_windows(tmp_path / "short.txt", tokenizer)
    (tmp_path / "binary.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(BadInputError, match="byte 3"):
        calibration_windows(tmp_path / "binary.txt", tokenizer)


def test_the_identity_is_that_of_the_content(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("words")
    two.write_text("words")
    assert calibration_sha256(one) == calibration_sha256(two) != calibration_sha256(None)
    with pytest.raises(UsageError, match=r"none\.txt"):
        calibration_sha256(tmp_path / "none.txt")


def test_equal_bytes_read_in_two_ways_are_two_texts(tmp_path):
    plain, lines = tmp_path / "same.txt", tmp_path / "same.jsonl"
    for file in (plain, lines):
        file.write_text('{"text": "words"}')
    one, two = (Recipe("tiny", tiny_llama(), quantizer="gptq", calibration=file) for file in (plain, lines))
    assert one.facts("quantize") != two.facts("quantize")


def test_only_a_line_feed_ends_a_json_line_and_a_byte_order_mark_is_no_text(tokenizer, tmp_path):
    text = "words\u2028more\u0085words " * 300
    file = tmp_path / "some.jsonl"
    file.write_text("\ufeff" + json.dumps({"text": text}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    ids = [token for window in calibration_windows(file, tokenizer) for token in window]
    assert ids == tokenizer.encode(text)
