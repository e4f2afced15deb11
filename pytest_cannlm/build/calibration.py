"""The text that calibrating quantizers watch the model read: bundled, or the user's, cut into windows of tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.tokenizer import Tokenizer

WINDOW = 256
"""Positions of a window; each is read on its own, from position 0."""
WINDOWS = 32
"""At most so many, taken evenly from a longer text."""
LEAST_TOKENS = 512


def calibration_sha256(file: Path | None) -> str:
    """Identity of the text: of ``file``, or of the bundled one. UsageError if the file cannot be read."""
    with resources.as_file(_bundled()) as bundled:
        try:
            return file_sha256(file or bundled)
        except OSError as error:
            raise _unreadable(file or bundled, error) from error


def holds_json_lines(file: Path | None) -> bool:
    """Whether the text is read as JSON lines: its name decides, so equal bytes may be two different texts."""
    return file is not None and file.suffix == ".jsonl"


def calibration_windows(file: Path | None, tokenizer: Tokenizer, *, length: int = WINDOW) -> list[list[int]]:
    """Windows of token ids from ``file``, or from the bundled text: prose, code, tables and chats in some languages.

    Args:
        file: plain text, or (``.jsonl``) one JSON object per line with ``text`` or ``messages``; UTF-8.
        tokenizer: the model's own. Where the model wants BOS, every window starts with it.
        length: tokens per window, BOS not counted.

    Raises:
        BadInputError: the file is not what its name says.
        UsageError: there is no such file, or it has fewer than :data:`LEAST_TOKENS` tokens.
    """
    bos = [tokenizer.bos_token_id] if tokenizer.spec.add_bos and tokenizer.bos_token_id is not None else []
    ids: list[int] = []
    for text in _texts(file, tokenizer):
        ids += tokenizer.encode(text)[len(bos) :]
    if len(ids) < LEAST_TOKENS:
        raise UsageError(
            "the calibration text is too short",
            field="calibration",
            found=f"{len(ids)} tokens",
            expected=f"at least {LEAST_TOKENS}; {WINDOW * WINDOWS} are used",
            remedy="Give a longer text, or leave it out to use the bundled one",
        )
    windows = [ids[start : start + length] for start in range(0, len(ids), length)]
    if len(windows) > WINDOWS:
        windows = [windows[number * len(windows) // WINDOWS] for number in range(WINDOWS)]
    return [[*bos, *window] for window in windows]


def _bundled() -> resources.abc.Traversable:
    return resources.files(__package__).joinpath("texts", "calibration.txt")


def _texts(file: Path | None, tokenizer: Tokenizer) -> Iterator[str]:
    if file is None:
        yield _bundled().read_text(encoding="utf-8")
        return
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError("the calibration text is not UTF-8", file=file, found=f"byte {error.start}") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    if not holds_json_lines(file):
        yield text
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _text_of(line, tokenizer, file=file, number=number)


def _text_of(line: str, tokenizer: Tokenizer, *, file: Path, number: int) -> str:
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
    except (ValueError, RecursionError):
        entry = None
    text = entry.get("text") if isinstance(entry, dict) else None
    messages = entry.get("messages") if isinstance(entry, dict) else None
    if isinstance(text, str):
        return text
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return tokenizer.render_chat(messages, add_generation_prompt=False)
    raise BadInputError(
        "not a line of calibration text",
        file=file,
        field=f"line {number}",
        found=line[:60],
        expected='{"text": "…"} or {"messages": [{"role": "user", "content": "…"}, …]}',
    )


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _unreadable(file: Path, error: OSError) -> UsageError:
    return UsageError("cannot read the calibration text", file=file, found=error.strerror)
