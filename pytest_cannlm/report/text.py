"""Texts in cells: control characters made visible, widths as a terminal counts them, long ones shortened."""

from __future__ import annotations

import unicodedata
from itertools import accumulate

_NAMED = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
"""Format characters that scripts and emoji need; they have no width and do no harm."""
_ELLIPSIS = "…"


def visible(text: str) -> str:
    r"""``text`` on one line, with every control, direction and surrogate character as an escape such as ``\x00``.

    Letters, CJK characters and emoji stay as they are.
    """
    return "".join(_escape(character) for character in text)


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal: 2 for wide East Asian characters and emoji, 0 for combining marks."""
    return sum(_columns(character) for character in text)


def shorten(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns, cut in the middle: both ends of a test's id matter."""
    if width(text) <= columns:
        return text
    head_room = (columns - 1) // 2
    head = _fitting(text, head_room)
    tail = _fitting(text[::-1], columns - 1 - width(head))[::-1]
    return head + _ELLIPSIS + tail if columns > 0 else ""


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """``text`` filled with blanks to ``columns`` columns; ``right`` aligns it to the right."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


def _escape(character: str) -> str:
    code = ord(character)
    is_noncharacter = code & 0xFFFE == 0xFFFE  # which XML cannot hold
    if character in _JOINERS or not (is_noncharacter or unicodedata.category(character) in _INVISIBLE):
        return character
    if character in _NAMED:
        return _NAMED[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _fitting(text: str, columns: int) -> str:
    """The longest beginning of ``text`` within ``columns``."""
    ends = accumulate(_columns(character) for character in text)
    return text[: sum(end <= columns for end in ends)]
