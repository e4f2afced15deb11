"""Which chip this is, asked before anything is loaded: a load is never the test of the chip.

The order is that of the device's own sources: the boot parameter that the NPU runtime reads, the system capability of
the LLM engine, the kernel's command line. The first one that names a chip counts. Any other answer, such as the
capability's ``true``, is shown as evidence and taken for no chip. The NPU runtime's own list of devices needs native
code: an app that has it passes a probe of its own.
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
_MOST_SAID = 40
_KIRIN = re.compile(r"\bkirin[ _-]?[a-z]*[0-9][a-z0-9]*", re.IGNORECASE | re.ASCII)
"""A chip's name has a number; ``kirin`` alone is a family."""
_HARDWARE = "ohos.boot.hardware"
_CAPABILITY = "const.SystemCapability.AI.CANN.LLMEngine"


@dataclass(frozen=True)
class Probe:
    """One place that may know the chip."""

    name: str
    ask: Callable[[], str | None]
    """The chip in any spelling; None, or a text that names no chip, where this place does not know."""


@dataclass(frozen=True)
class Detected:
    """What was found, and where."""

    chip: str | None
    """In its one spelling; None where no place knew."""
    where: str
    """The place that knew; where none did, every place that was asked and what it said instead."""

    def __str__(self) -> str:
        return f"the chip is {self.chip} ({self.where})" if self.chip else f"the chip is not known ({self.where})"


def detect_chip(probes: Sequence[Probe] | None = None, *, environment: Mapping[str, str] | None = None) -> Detected:
    """The chip that ``CANNLM_CHIP`` names, else the one that the first probe names.

    :param probes: in their order; None: those of the device that this runs on.
    :param environment: None: that of this process.
    """
    named = (os.environ if environment is None else environment).get(OVERRIDE, "").strip()
    if named:
        return Detected(chips.normalize(named), OVERRIDE)
    asked: list[str] = []
    for probe in device_probes() if probes is None else probes:
        said = (probe.ask() or "").strip()
        chip = chips.normalize(said)
        if _KIRIN.fullmatch(chip):
            return Detected(chip, probe.name)
        asked.append(f"{probe.name} (said {said[:_MOST_SAID]!r})" if said else probe.name)
    return Detected(None, "asked: " + (", ".join(asked) or "nothing"))


def device_probes(
    *, param: Callable[[str], str | None] | None = None, command_line: Path = Path("/proc/cmdline")
) -> tuple[Probe, ...]:
    """The probes of a device: its parameters, then the kernel's command line.

    That a system has the LLM engine does not say which chip it is: that parameter is asked to be shown.

    :param param: the value of a system parameter, or None; None: the system's ``param get``.
    """
    get = param or read_parameter

    return (
        Probe(f"param get {_HARDWARE}", lambda: get(_HARDWARE)),
        Probe(f"param get {_CAPABILITY}", lambda: get(_CAPABILITY)),
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
