"""What a crash is told with beside its log: which package it was, and whether it fits this device at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.compat import checks
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.errors import EngineCrash


@dataclass(frozen=True)
class Offer:
    """A package that was handed to an engine."""

    package: str
    manifest: str | None
    vouched: bool
    """Whether a gate had compared chip and versions before."""


def add_evidence(crash: EngineCrash, offer: Offer, *, chip: str, cann: str) -> None:
    """Name the version that built the package; where no gate had compared, a mismatch is the likely cause.

    The gate is asked after the fact, with its strictest policy, of a package that it may have been told to let through.
    """
    target = Target(chip=chip, cann=cann, chips=(chip,), simulated=None)
    manifest = None if offer.manifest is None else Path(offer.manifest)
    found = {check.name: check for check in decide(Path(offer.package), target, manifest=manifest).checks}
    compared = [found[name] for name in (checks.CHIP, checks.CANN) if name in found]
    if checks.CANN in found:
        crash.versions["CANN of the package"] = found[checks.CANN].found
    mismatch = next((check for check in compared if check.outcome == "mismatch"), None)
    if mismatch is not None and not offer.vouched:
        made = "compiled for" if mismatch.name == checks.CHIP else "built with CANN"
        crash.cause = f"The package was {made} {mismatch.found}, and the device has {mismatch.expected}"
        crash.remedy = mismatch.remedy
