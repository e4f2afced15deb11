"""Which chip this is, asked before anything is loaded: a load is never the test of the chip.

The order is that of the device's own sources: the boot parameter that the NPU runtime reads, the system capability of
the LLM engine, the kernel's command line. The first one that gives a definite answer counts. The NPU runtime's own list
of devices needs native code: an app that has it passes a probe of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.compat import chips

OVERRIDE = "CANNLM_CHIP"

_PARAM_S = 5.0
_KIRIN = re.compile(r"\bkirin[ _-]?[a-z0-9]+", re.IGNORECASE)
_HARDWARE = "ohos.boot.hardware"
_CAPABILITY = "const.SystemCapability.AI.CANN.LLMEngine"
_CAPABLE_CHIP = "KirinX90"
"""The one chip whose system has the LLM engine."""


@dataclass(frozen=True)
class Probe:
    """One place that may know the chip."""

    name: str
    ask: Callable[[], str | None]
    """The chip in any spelling, or None where this place does not know."""


@dataclass(frozen=True)
class Detected:
    """What was found, and where."""

    chip: str | None
    """In its one spelling; None where no place knew."""
    where: str

    def __str__(self) -> str:
        return f"the chip is {self.chip} ({self.where})" if self.chip else f"the chip is not known ({self.where})"


def detect_chip(probes: Sequence[Probe] | None = None, *, environment: Mapping[str, str] | None = None) -> Detected:
    """The chip that ``CANNLM_CHIP`` names, else what the first probe with an answer says.

    :param probes: in their order; None: those of the device that this runs on.
    :param environment: None: that of this process.
    """
    named = (os.environ if environment is None else environment).get(OVERRIDE, "").strip()
    if named:
        return Detected(chips.normalize(named), OVERRIDE)
    asked = device_probes() if probes is None else probes
    for probe in asked:
        found = probe.ask()
        if found and found.strip():
            return Detected(chips.normalize(found), probe.name)
    return Detected(None, "asked: " + (", ".join(probe.name for probe in asked) or "nothing"))


def device_probes(
    *, param: Callable[[str], str | None] | None = None, command_line: Path = Path("/proc/cmdline")
) -> tuple[Probe, ...]:
    """The probes of a device: its parameters, then the kernel's command line.

    :param param: the value of a system parameter, or None; None: the system's ``param get``.
    """
    get = param or read_parameter

    def capable() -> str | None:
        return _CAPABLE_CHIP if (get(_CAPABILITY) or "").strip().casefold() == "true" else None

    return (
        Probe(f"param get {_HARDWARE}", lambda: get(_HARDWARE)),
        Probe(f"param get {_CAPABILITY}", capable),
        Probe(str(command_line), lambda: _chip_in(command_line)),
    )


def read_parameter(name: str) -> str | None:
    """What ``param get`` prints for ``name``; None where there is no such program or parameter."""
    program = shutil.which("param")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "get", name], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PARAM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout.decode("utf-8", "replace").strip()
    # A missing parameter is a sentence about a failure, with a good exit status on some systems.
    return said if done.returncode == 0 and said and "fail" not in said.casefold() else None


def _chip_in(command_line: Path) -> str | None:
    try:
        found = _KIRIN.search(command_line.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[0] if found else None
