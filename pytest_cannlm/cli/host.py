"""What the doctor says of the host's toolkits: which, which version, read where, and whether it fits the devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_cannlm.cli.answers import ENVIRONMENT, GOOD, UNKNOWN, Answer
from pytest_cannlm.compat.pairs import read_pairs
from pytest_cannlm.compat.versions import Comparison, parse
from pytest_cannlm.devices import open_device, parse_device
from pytest_cannlm.devices.base import DeviceInfo
from pytest_cannlm.errors import CannlmError
from pytest_cannlm.settings import Settings
from pytest_cannlm.toolkits import Problem, ReadVersion, Toolkit, environment_problems, find_toolkits, match
from pytest_cannlm.toolkits.names import shown

_KINDS = {"ddk": "DDK", "mobile-station": "CANN mobile-station", "ascend": "CANN"}
_INDENT = " " * 10


@dataclass(frozen=True)
class _Named:
    """A device of the settings: its facts, or why there are none."""

    name: str
    info: DeviceInfo | None
    problem: str | None = None

    @property
    def version(self) -> str | None:
        """What a build version is compared with."""
        return (self.info.cann or self.info.device_version) if self.info else None


def look_at_host(settings: Settings, *, environment: Mapping[str, str], hash_archives: bool) -> Answer:
    """Toolkits, what is wrong with them and with the environment, and how each fits the devices.

    :raises UsageError: a device or the list of version pairs is not what it should be.
    """
    toolkits = find_toolkits(environment, hash_archives=hash_archives)
    problems = environment_problems(environment, toolkits)
    devices = [_named(text) for text in dict.fromkeys(settings.npu)]
    matches = [_matches(toolkit, devices, settings) for toolkit in toolkits]
    data = {
        "toolkits": [_facts(toolkit, fits) for toolkit, fits in zip(toolkits, matches, strict=True)],
        "problems": [asdict(problem) for problem in problems],
        "devices": [_device_facts(device) for device in devices],
    }
    lines = [
        *(line for toolkit, fits in zip(toolkits, matches, strict=True) for line in _lines(toolkit, devices, fits)),
        *([] if toolkits else ["optional  CANN toolkit: none found (building for real devices)"]),
        *(line for problem in problems for line in _problem_lines(problem, "problem   ")),
        *(f"MISSING   {device.name}: {device.problem}" for device in devices if device.problem),
    ]
    codes = {_exit_code(device, toolkits, [fits[device.name] for fits in matches]) for device in devices}
    return Answer(data, lines, next((code for code in (ENVIRONMENT, UNKNOWN) if code in codes), GOOD))


def _named(text: str) -> _Named:
    spec = parse_device(text)
    try:
        device = open_device(spec)
    except CannlmError as error:
        return _Named(text, None, str(error))
    try:
        return _Named(text, device.info)
    finally:
        device.close()


def _matches(toolkit: Toolkit, devices: Sequence[_Named], settings: Settings) -> dict[str, Comparison]:
    pairs = read_pairs(settings.version_pairs)
    found = {}
    for device in devices:
        if device.info is None:
            found[device.name] = Comparison("unknown", "the device does not answer, so its version is not known")
            continue
        version = parse(device.version) if device.version else None
        found[device.name] = match(
            toolkit, chip=device.info.chip, version=version, policy=settings.cann_policy, pairs=pairs
        )
    return found


def _exit_code(device: _Named, toolkits: Sequence[Toolkit], fits: Sequence[Comparison]) -> int:
    """A simulated device needs no toolkit; a real one needs one that fits, of those that are selected if any are."""
    if device.info is None:
        return ENVIRONMENT
    if device.info.simulated:
        return GOOD
    selected = [bool(toolkit.selected_by) for toolkit in toolkits]
    outcomes = {fit.outcome for fit, chosen in zip(fits, selected, strict=True) if chosen or not any(selected)}
    if outcomes & {"ok", "off"}:
        return GOOD
    return UNKNOWN if "unknown" in outcomes else ENVIRONMENT


def _facts(toolkit: Toolkit, fits: Mapping[str, Comparison]) -> dict[str, Any]:
    read = toolkit.version
    return {
        "kind": toolkit.kind,
        "root": str(toolkit.root),
        "version": str(read.version) if read else None,
        "read_from": read.where if read else None,
        "versions": [_version_facts(one) for one in toolkit.versions],
        "platforms": [
            {
                "chip": platform.chip,
                "path": str(platform.path),
                "version": str(platform.version.version) if platform.version else None,
            }
            for platform in toolkit.platforms
        ],
        "tools": [asdict(tool) for tool in toolkit.tools],
        "archives": [
            {
                "path": str(archive.path),
                "version": str(archive.named),
                "sha256": archive.sha256,
                "identified": str(archive.identified) if archive.identified else None,
            }
            for archive in toolkit.archives
        ],
        "host": toolkit.host or None,
        "driver": _version_facts(toolkit.driver) if toolkit.driver else None,
        "found_by": list(toolkit.found_by),
        "selected_by": list(toolkit.selected_by),
        "problems": [asdict(problem) for problem in toolkit.problems],
        "matches": [{"device": name, "outcome": fit.outcome, "rule": fit.rule} for name, fit in fits.items()],
    }


def _version_facts(read: ReadVersion) -> dict[str, Any]:
    return {
        "part": read.part,
        "version": str(read.version),
        "space": read.version.space,
        "file": str(read.file),
        "key": read.key,
    }


def _device_facts(device: _Named) -> dict[str, Any]:
    info = device.info
    return {
        "name": device.name,
        "chip": info.chip if info else None,
        "version": device.version,
        "simulated": info.simulated if info else None,
        "problem": device.problem,
    }


def _lines(toolkit: Toolkit, devices: Sequence[_Named], fits: Mapping[str, Comparison]) -> Iterator[str]:
    read = toolkit.version
    version = shown(read.version, toolkit.pairs) if read else "of unknown version"
    head = f"toolkit   {_KINDS[toolkit.kind]} {version}: {toolkit.root}"
    yield head + (f" (selected by {', '.join(toolkit.selected_by)})" if toolkit.selected_by else "")
    if read:
        yield f"{_INDENT}version read in: {read.where}"
    if toolkit.driver:
        yield f"{_INDENT}driver beside it: {toolkit.driver.version} ({toolkit.driver.where})"
    if toolkit.platforms:
        yield f"{_INDENT}builds for: {', '.join(platform.chip for platform in toolkit.platforms)}"
    for device in devices:
        fit = fits[device.name]
        known = f" ({device.info.chip}, {device.version or 'version unknown'})" if device.info else ""
        yield f"{_INDENT}against {device.name}{known}: {fit.outcome} ({fit.rule})"
    for problem in toolkit.problems:
        yield from _problem_lines(problem, f"{_INDENT}problem: ")


def _problem_lines(problem: Problem, head: str) -> Iterator[str]:
    yield f"{head}{problem.what} ({problem.file}: found {problem.found}; expected {problem.expected})"
    yield f"{_INDENT}fix: {problem.remedy}"
