"""The target that ``cannlm check`` is given: a chip and a version that can exist, or wrong use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_cannlm.compat import versions
from pytest_cannlm.compat.chips import known_chips, normalize
from pytest_cannlm.compat.gate import Target
from pytest_cannlm.compat.pairs import read_pairs
from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import Settings, nearest

_ASCEND = re.compile(r"Ascend\d\w+", re.ASCII | re.IGNORECASE)
"""Chips of this family are not listed: there are dozens, and their files name them in full."""


def target_of(
    settings: Settings,
    *,
    chip: str,
    cann: str | None,
    simulated: bool | None,
    opp_version: str | None,
    host_os: str | None,
    host_cpu: str | None,
    same_architecture: Sequence[str],
) -> Target:
    """What the gate is to hold a package against; :class:`UsageError` for a target that cannot exist.

    :param simulated: None for whichever the package is for.
    :param same_architecture: groups of chips, the names in each separated by commas.
    """
    name = known_chip(chip)
    return Target(
        chip=name,
        cann=known_version(cann, policy=settings.cann_policy),
        version_from="no --cann on the command line" if cann is None else "--cann on the command line",
        simulated=simulated,
        policy=settings.cann_policy,
        on_unknown=settings.cann_unknown,
        chips=(name,),
        version_pairs=read_pairs(settings.version_pairs),
        opp_version=opp_version,
        host_os=host_os,
        host_cpu=host_cpu,
        same_architecture=tuple(_group(text) for text in same_architecture),
    )


def known_chip(text: str) -> str:
    """The chip by its one spelling; :class:`UsageError` with the nearest name for what is none."""
    chip = normalize(text)
    if chip in known_chips() or _ASCEND.fullmatch(chip):
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
    complaint = None if text is None else versions.parse(text).complaint
    if complaint is None and (text is not None or policy == "off"):
        return text
    raise UsageError(
        "the version of the target is missing" if text is None else f"{text!r} is no version of CANN: it {complaint}",
        field="--cann",
        found=text,
        expected="a CANN version such as 6.1.1.0, or --policy off",
    )


def _group(text: str) -> tuple[str, ...]:
    names = tuple(normalize(name) for name in text.split(",") if name.strip())
    if len(names) < 2 or not all(_ASCEND.fullmatch(name) for name in names):
        raise UsageError(
            f"{text!r} names no chips of one architecture",
            field="--same-architecture",
            found=text,
            expected="two or more Ascend chips by their full names, such as Ascend910B2,Ascend910B3",
        )
    return names
