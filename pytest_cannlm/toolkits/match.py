"""Whether what a toolkit builds would be loaded on a device: the gate's rule for versions, and the chip."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cannlm.compat.chips import normalize, same_chip
from pytest_cannlm.compat.versions import Comparison, Pair, Policy, Version, compare
from pytest_cannlm.toolkits.model import Toolkit


def match(
    toolkit: Toolkit, *, chip: str, version: Version | None, policy: Policy, pairs: Sequence[Pair] = ()
) -> Comparison:
    """Ok, mismatch, unknown, or off, with the rule.

    :param chip: the device's.
    :param version: the CANN version that the device corresponds to, or what it reports; None: not known.
    :param pairs: join number spaces, in addition to the bundled list and to what the toolkit says of itself, which
        comes first.
    """
    wanted = normalize(chip)
    if toolkit.platforms and not any(same_chip(platform.chip, wanted) for platform in toolkit.platforms):
        there = ", ".join(platform.chip for platform in toolkit.platforms)
        return Comparison("mismatch", f"it builds for {there}, not for {wanted}")
    if not toolkit.platforms:
        if toolkit.kind == "ddk":
            return Comparison("mismatch", f"it has no platform plugin, so none for {wanted}")
        if wanted.startswith("Kirin"):
            return Comparison("unknown", f"no platform file says whether it builds for {wanted}")
    if toolkit.version is None or version is None:
        side = "toolkit" if toolkit.version is None else "device"
        return Comparison("unknown", f"the version of the {side} is not known, and a missing version is never equal")
    return compare(toolkit.version.version, version, policy=policy, extra=(*toolkit.pairs, *pairs))
