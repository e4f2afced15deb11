"""JSON of a package without a doubt about what it says, and the start of one that is too large to be read.

Two readers can take two things from a text that repeats a name, holds a ``NaN`` or is not UTF-8; here it is an error.
Valid for Python 3.10.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

_LONGEST_TOKEN = len("-Infinity")


def parse(raw: bytes) -> Any:
    """The value of a whole text; :class:`ValueError` if it is none, ``RecursionError`` if it is nested too deeply."""
    return _JSON.decode(_utf8(raw, whole=True))


def parse_start(raw: bytes) -> dict[str, Any]:
    """The members of an object whose end is cut off, as far as they are whole; errors as :func:`parse`."""
    return _unique(list(_members(_utf8(raw, whole=False))))


def _utf8(raw: bytes, *, whole: bool) -> str:
    encoding = json.detect_encoding(raw)
    if not encoding.startswith("utf-8"):
        raise ValueError(f"it is {encoding.upper()}, and must be UTF-8")
    return codecs.getincrementaldecoder("utf-8-sig")().decode(raw, whole)


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(members)
    if len(data) < len(members):
        counts = Counter(name for name, _ in members)
        raise ValueError(f"it has {next(name for name, count in counts.items() if count > 1)!r} twice")
    return data


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)


def _members(text: str) -> Iterator[tuple[str, Any]]:
    position = _after(text, 0, "{")
    while position < len(text):
        try:
            key, position = _JSON.raw_decode(text, position)
            value, position = _JSON.raw_decode(text, _after(text, position, ":"))
        except json.JSONDecodeError as error:
            # The cut is inside a string, or so near that a number, a word or an escape could go on behind it.
            if error.msg.startswith("Unterminated string") or error.pos >= len(text) - _LONGEST_TOKEN:
                return
            raise
        if not isinstance(key, str):
            raise ValueError("a member without a name")
        position = _after(text, position, ",")
        if position < len(text):  # else the value may be a number that goes on
            yield key, value


def _after(text: str, position: int, mark: str) -> int:
    """The position behind ``mark`` and the blanks around it; the end if the text ends before."""
    start = _blanks(text, position)
    if start < len(text) and text[start] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, start)
    return _blanks(text, start + 1)


def _blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return min(position, len(text))
