"""Sizes, percentages and how values are written. A unit is never guessed: MB and MiB are different units."""

from __future__ import annotations

import math
import re

from pytest_cannlm.errors import UsageError

_NUMBER = r"(\d+(?:\.\d+)?)"
_PERCENT = re.compile(rf"{_NUMBER}\s*%", re.ASCII)

BYTES_UNITS = ("bytes", "bytes/token")
"""Units whose values are shown as KiB, MiB or GiB."""


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
    """A number for a reader: four significant digits, never an exponent between 0.0001 and a million.

    Close below 1, where a share or a cosine lives, as many digits as it takes to tell it from 1.
    """
    if 0.999 < abs(value) < 1:
        decimals = 1 - math.floor(math.log10(1 - abs(value)))
        return f"{value:.{decimals}f}".rstrip("0")
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def format_value(value: float, unit: str) -> str:
    """A value with its unit for a reader. Rounding happens here and nowhere else."""
    if unit in BYTES_UNITS:
        return format_bytes(value) + unit.removeprefix("bytes")
    return f"{format_number(value)} {unit}".rstrip()
