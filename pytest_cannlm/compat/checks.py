"""One question of the gate and its outcome, and the questions about the package as such. Valid for Python 3.10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.compat import chips
from pytest_cannlm.compat.package import PackageFolder, ReadCount
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.source import ReadLimitError
from pytest_cannlm.errors import CannlmError

DEVICE_CHIP, FILES, CONTAINER, ENGINE, CHIP, CANN, OPERATORS, HOST, ORIGIN, MANIFEST, SIZES, CACHE = (
    "device chip",
    "package files",
    "container",
    "engine",
    "chip",
    "cann",
    "operator package",
    "host",
    "origin",
    "manifest",
    "sizes",
    "cache",
)

Outcome = Literal["ok", "mismatch", "unknown", "off"]

REBUILD = "Build the package again, or copy it again and compare sizes"
_OTHER_CASE = "there is {}, which is another name on a device"
_LONGEST_TEXT = 400


@dataclass(frozen=True)
class Check:
    """One question of the gate and its outcome: ok, mismatch, unknown (cannot be told), or off (not judged)."""

    name: str
    outcome: Outcome
    code: str | None
    found: str
    found_in: str
    expected: str
    expected_from: str
    rule: str
    remedy: str

    def __post_init__(self) -> None:
        for name in ("found", "found_in", "expected", "expected_from", "rule", "remedy"):
            object.__setattr__(self, name, one_line(getattr(self, name)))

    def line(self) -> str:
        """Everything about this check on one line."""
        head = f"{self.name} {self.outcome}" + (f" ({self.code})" if self.code else "")
        text = (
            f"{head}: found {self.found} ({self.found_in}), expected {self.expected} ({self.expected_from});"
            f" rule: {self.rule}"
        )
        return f"{text}; remedy: {self.remedy}" if self.remedy else text


def chip_allowed(target: Target) -> Check:
    """Whether the device's chip is one that may be used at all."""
    allowed = any(chips.same_chip(target.chip, name) for name in target.chips)
    return Check(
        name=DEVICE_CHIP,
        outcome="ok" if allowed else "mismatch",
        code=None if allowed else "CHIP_NOT_ALLOWED",
        found=chips.shown(target.chip) or "no chip",
        found_in=f"reported by {target.device}",
        expected=" or ".join(map(chips.shown, target.chips)),
        expected_from="list of allowed chips",
        rule="on a chip outside the list the model is not even opened",
        remedy="" if allowed else "Use a device of the list, or add the chip to chips= of the marker",
    )


def complete(folder: PackageFolder, count: ReadCount) -> Check:
    """Whether all files that ``executor.json`` names are there, and hold more than nothing. May raise ``OSError``."""
    missing = folder.missing()
    hollow = () if missing else folder.hollow(count)
    found, code, remedy = f"{len(folder.required)} files", None, REBUILD
    if missing:
        names = [name if there is None else f"{name} ({_OTHER_CASE.format(there)})" for name, there in missing.items()]
        found, code = "missing: " + ", ".join(names), "PACKAGE_INCOMPLETE"
        if None not in missing.values():
            remedy = "Rename " + ", ".join(f"{there} to {name}" for name, there in missing.items())
    elif hollow:
        found, code = ", ".join(hollow), "PACKAGE_DAMAGED"
    return Check(
        name=FILES,
        outcome="mismatch" if code else "ok",
        code=code,
        found=found,
        found_in=str(folder.folder),
        expected=", ".join(file.name for file in folder.required),
        expected_from="executor.json",
        rule="every file that executor.json names is in the package with its content, spelled as it is named",
        remedy=remedy if code else "",
    )


def container_ok(container: Container) -> Check:
    """The container was opened without an error."""
    return Check(
        name=CONTAINER,
        outcome="ok",
        code=None,
        found=f"a {container.dialect} container of {container.size} bytes, layout {container.layout}",
        found_in=container.path.name,
        expected="a sound container",
        expected_from="header and partition table",
        rule="header, lengths and partition table agree with each other and with the file",
        remedy="",
    )


def from_error(name: str, error: CannlmError) -> Check:
    """An exception of reading as the outcome of a check; what lies beyond the read limit is unknown, not wrong."""
    return Check(
        name=name,
        outcome="unknown" if isinstance(error, ReadLimitError) else "mismatch",
        code=error.code,
        found="a broken file" if error.found is None else str(error.found),
        found_in=error.file or "the package",
        expected="a sound file" if error.expected is None else str(error.expected),
        expected_from=error.field or "its format",
        rule=error.message,
        remedy=error.remedy or REBUILD,
    )


def right_engine(container: Container, target: Target) -> Check:
    """Simulated packages go to the simulator and real ones to a device."""
    mark = f"userdefineinfo of {container.path.name}"
    good = container.simulated == target.simulated
    if container.simulated:
        code = "SIMULATED_PACKAGE_ON_DEVICE"
        remedy = "Build it with a real converter: cannlm build MODEL --converter omg"
    else:
        code = "REAL_PACKAGE_ON_SIMULATOR"
        remedy = "Build a package for the simulator from the checkpoint: cannlm build MODEL"
    return Check(
        name=ENGINE,
        outcome="ok" if good else "mismatch",
        code=None if good else code,
        found="a simulated package" if container.simulated else "a package for a real NPU",
        found_in=mark,
        expected="a simulated package" if target.simulated else "a package for a real NPU",
        expected_from=target.device,
        rule="what the simulated converter wrote runs on the simulator only, and nothing else does",
        remedy="" if good else remedy,
    )


def one_line(text: str) -> str:
    """Text from files on one line: what does not print is shown as an escape, what is long is cut."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
