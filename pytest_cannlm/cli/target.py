"""The target that ``cannlm check`` is given: a chip and a version that can exist, or wrong use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_cannlm.compat import versions
from pytest_cannlm.compat.chips import known_chips, normalize
from pytest_cannlm.compat.gate import Target
from pytest_cannlm.compat.pairs import read_pairs
from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import Settings

_ASCEND = re.compile(r"Ascend\d\w+", re.ASCII | re.IGNORECASE)
"""Chips of this family are not listed: there are dozens, and their files name them in full."""
_KIRIN = re.compile(r"Kirin[A-Za-z]{0,2}\d\w+", re.ASCII)
"""Variants (KirinX90A) are not all listed either, and each is a chip of its own."""


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
        cann=known_version(cann, chip=name, policy=settings.cann_policy),
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
    """The chip by its one spelling; :class:`UsageError` for what is none.

    No nearest name is offered: an edit away from a chip is its sibling, which is another chip.
    """
    chip = normalize(text)
    if _ASCEND.fullmatch(chip) or _KIRIN.fullmatch(chip):
        return chip
    raise UsageError(
        f"unknown chip {text!r}",
        field="--chip",
        found=text,
        expected=f"a Kirin or Ascend chip by its full name: {', '.join(known_chips())}, Ascend310B4, …",
    )


def known_version(text: str | None, *, chip: str, policy: str) -> str | None:
    """The version as given; :class:`UsageError` for what is none, and without one unless the policy needs none.

    A toolkit's version of a Kirin chip that lacks its last number would be read as a public release, which counts
    something else.
    """
    complaint = None if text is None else versions.parse(text).complaint
    if text is not None and chip.startswith("Kirin") and versions.is_release("build", f"{text}.0"):
        raise UsageError(
            f"{text!r} is no version of a toolkit for {chip}",
            field="--cann",
            found=text,
            expected="four numbers",
            remedy=f"Did you mean {text}.0?",
        )
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
