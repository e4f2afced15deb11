"""Sizes as people write them. A unit is never guessed: MB and MiB are different units."""

from __future__ import annotations

import re
from fractions import Fraction

from pytest_cannlm.errors import UsageError

_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", re.ASCII)

SIZE_FORMS = '"400MiB" or "1.5GiB" (1024), "400MB" or "1.5GB" (1000)'
"""What a size looks like, for messages."""


def parse_size(text: object, *, field: str | None = None) -> int:
    """The number of bytes that a size such as ``"1.5GiB"`` names, rounded to whole bytes.

    A bare number, a decimal comma, a sign and an unknown unit are a :class:`UsageError`: MB (1000²) and MiB (1024²)
    differ by 5 %, so the unit has to be said.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _BYTES:
        raise UsageError("not a size with a unit", field=field, found=repr(text), expected=SIZE_FORMS)
    return round(Fraction(match[1]) * _BYTES[match[2]])
