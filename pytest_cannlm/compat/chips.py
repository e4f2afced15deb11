"""Names of chips: one spelling for each, and look-alikes kept apart. Valid for Python 3.10.

Devices, converters and people spell the same chip differently ("KirinX90", "kirinx90", "Kirin X90",
"NPU_ohos.boot.hardware.KirinX90_v2_0"); a sibling ("KirinX90A") or a family ("Kirin") is another chip. Case and blanks
are those of ASCII: a name with a letter of another script is another name, however alike the two look.
"""

from __future__ import annotations

import json
import re
import string
from functools import lru_cache
from pathlib import Path

from pytest_cannlm.container.taskinfo import DEFAULT_PLATFORM, PLATFORM_CODES

MAX_TEXT = 128
"""No name is longer; longer texts are left as they are."""

_DEVICE_NAME = re.compile(
    r"^(?:NPU_)?ohos\.boot\.hardware\.(?P<chip>.+?)(?:_v\d+(?:_\d+)*)?$", re.IGNORECASE | re.ASCII | re.DOTALL
)
_BLANKS = re.compile(r"\s+", re.ASCII)
_SEPARATORS = re.compile(r"[_\-]+")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)


def normalize(text: str) -> str:
    """The one spelling of a chip's name; an unknown Kirin gets the same form, any other name only loses its blanks.

    >>> normalize("kirin x90")
    'KirinX90'
    """
    bare = _bare(text)
    key = _key(bare)
    known = _aliases().get(key)
    if known is not None:
        return known
    return "Kirin" + key[5:].translate(_UPPER) if key.startswith("kirin") else bare


def same_chip(one: str, other: str) -> bool:
    """Whether two spellings mean the same chip; a family name never equals one of its chips."""
    return _key(_bare(one)) == _key(_bare(other))


def shown(text: str) -> str:
    """The name as a message shows it: its one spelling, letters that only look right as escapes."""
    return normalize(text).encode("ascii", "backslashreplace").decode("ascii")


def _bare(text: str) -> str:
    """``text`` without blanks and without what a device's runtime puts around the chip."""
    bare = _BLANKS.sub("", text)
    while len(bare) <= MAX_TEXT and (device := _DEVICE_NAME.match(bare)):
        bare = device["chip"]
    return bare


def _key(bare: str) -> str:
    return _SEPARATORS.sub("", bare).translate(_LOWER) if len(bare) <= MAX_TEXT else bare


def chip_of_platform(code: int) -> str | None:
    """The chip behind a platform code of a compiled Kirin model; None for a code without a known name."""
    return next((name for name, number in PLATFORM_CODES.items() if number == code), None)


DEFAULT_PLATFORM_CHIP = chip_of_platform(DEFAULT_PLATFORM)
"""What a platform code reads as when its writer did not know the chip; weak evidence."""


def known_chips() -> tuple[str, ...]:
    """Names of the chips that the data file lists."""
    return tuple(entry["name"] for entry in _data())


@lru_cache(maxsize=1)
def _data() -> tuple[dict[str, str], ...]:
    text = Path(__file__).with_name("chips.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["chips"])


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    return {alias: entry["name"] for entry in _data() for alias in entry["aliases"]}
