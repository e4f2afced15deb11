"""The target that ``cannlm check`` is given: a chip and a version that can exist, or wrong use."""

from __future__ import annotations

from pytest_cannlm.compat import versions
from pytest_cannlm.compat.chips import known_chips, normalize
from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import nearest

_ASCEND = "ascend"
"""Chips of this family are not listed: there are dozens, and their files name them in full."""


def known_chip(text: str) -> str:
    """The chip by its one spelling; :class:`UsageError` with the nearest name for what is none."""
    chip = normalize(text)
    family, rest = chip[: len(_ASCEND)].casefold(), chip[len(_ASCEND) :]
    if chip in known_chips() or (family == _ASCEND and rest.isalnum()):
        return chip
    hint = nearest(chip, known_chips())
    raise UsageError(
        f"unknown chip {text!r}" + (f"; did you mean {hint!r}?" if hint else ""),
        field="--chip",
        found=text,
        expected=f"{', '.join(known_chips())}, or an Ascend chip by its full name, such as Ascend310B4",
    )


def known_version(text: str | None, *, policy: str) -> str | None:
    """The version as given; :class:`UsageError` for what is none, and without one unless the policy needs none."""
    if (text is None and policy == "off") or (text is not None and versions.parse(text).known):
        return text
    raise UsageError(
        "the version of the target is missing" if text is None else f"{text!r} is no version",
        field="--cann",
        found=text,
        expected="a CANN version such as 6.1.1.0, or --policy off",
    )
