"""Sizes, percentages and how values are written. A unit is never guessed: MB and MiB are different units."""

from __future__ import annotations

import math
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
_NUMBER = r"(\d+(?:\.\d+)?)"
_SIZE = re.compile(rf"{_NUMBER}\s*([A-Za-z]+)", re.ASCII)
_PERCENT = re.compile(rf"{_NUMBER}\s*%", re.ASCII)
_SIZE_FORMS = '"400MiB" or "1.5GiB" (1024), "400MB" or "1.5GB" (1000)'

BYTES_UNITS = ("bytes", "bytes/token")
"""Units whose values are shown as KiB, MiB or GiB."""


def parse_bytes(text: object, *, field: str | None = None) -> int:
    """The number of bytes that a size such as ``"1.5GiB"`` names, rounded to whole bytes.

    A bare number, a decimal comma, a sign and an unknown unit are a :class:`UsageError`: MB (1000²) and MiB (1024²)
    differ by 5 %, so the unit has to be said.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _BYTES:
        raise UsageError("not a size with a unit", field=field, found=repr(text), expected=_SIZE_FORMS)
    return round(Fraction(match[1]) * _BYTES[match[2]])


def parse_percent(text: object, *, field: str | None = None) -> float:
    """The number before the percent sign: ``"5%"`` gives 5.0. A number without the sign is a :class:`UsageError`."""
    match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UsageError("not a percentage", field=field, found=repr(text), expected='a number with its sign, "5%"')
    return float(match[1])


def format_bytes(count: float) -> str:
    """Bytes for a reader, in units of 1024: ``"381.5 MiB"``."""
    if not math.isfinite(count):
        return f"{count} B"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def format_number(value: float) -> str:
    """A number for a reader: four significant digits, never an exponent between 0.0001 and a million."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def format_value(value: float, unit: str) -> str:
    """A value with its unit for a reader. Rounding happens here and nowhere else."""
    if unit in BYTES_UNITS:
        return format_bytes(value) + unit.removeprefix("bytes")
    return f"{format_number(value)} {unit}".rstrip()
