"""What this machine can do: each check with its state, what was found, and the command that fixes it.

Toolkits are told of apart, in :mod:`pytest_cannlm.cli.host`: the simulated NPU needs none.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pytest_cannlm.cli.answers import ENVIRONMENT, GOOD, Answer
from pytest_cannlm.cli.host import look_at_host
from pytest_cannlm.settings import Settings

State = Literal["ok", "missing", "optional"]
"""``missing`` keeps the simulated NPU from working; ``optional`` is needed only for what ``needed_for`` says."""

_FREE_BYTES = 3 * 10**9
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRAS = (
    ("huggingface_hub", "hub", "fetching models from the Hugging Face hub"),
    ("xdist", "test", "running tests in parallel"),
)
_PROGRAMS = ("hdc", "adb")
"""Found or not, they change nothing yet: this version drives the simulated NPU only."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    needed_for: str
    fix: str | None = None

    def facts(self) -> dict[str, str | None]:
        """JSON-ready; what is ok needs no fix."""
        return {**asdict(self), "fix": None if self.state == "ok" else self.fix}


def examine(settings: Settings, *, environment: Mapping[str, str], hash_archives: bool = False) -> Answer:
    """All checks, and the host's toolkits held against the devices of the settings.

    The exit code is 3 if anything is missing that the simulated NPU needs, or that a real device of the settings does;
    4 if it cannot be told whether what a toolkit builds runs on that device.
    """
    checks = list(_checks(settings.cache_folder))
    host = look_at_host(settings, environment=environment, hash_archives=hash_archives)
    healthy = all(check.state != "missing" for check in checks)
    exit_code = host.exit_code if healthy else ENVIRONMENT
    data = {"ok": exit_code == GOOD, "checks": [check.facts() for check in checks], **host.data}
    lines = []
    for check in checks:
        mark = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional"}[check.state]
        lines.append(f"{mark}  {check.name}: {check.found}" + ("" if check.state == "ok" else f" ({check.needed_for})"))
        if check.fix and check.state != "ok":
            lines.append(f"          fix: {check.fix}")
    lines += host.lines
    lines.append("The simulated NPU can be used." if healthy else "The simulated NPU cannot be used yet.")
    return Answer(data, lines, exit_code)


def _checks(cache: Path) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(
        "Python", "ok" if sys.version_info >= (3, 11) else "missing", version, "everything", "install Python 3.11"
    )
    for name in _requirements():
        yield _distribution(name, "missing", "building and the simulated NPU", f"pip install {name}")
    yield _pip()
    yield _cache_folder(cache)
    yield _free_space(cache)
    for name, extra, purpose in _EXTRAS:
        distribution = "pytest-xdist" if name == "xdist" else name
        yield _distribution(distribution, "optional", purpose, f'pip install "pytest-cannlm[{extra}]"')
    for program in _PROGRAMS:
        found = shutil.which(program) or "not on PATH"
        yield Check(program, "optional", found, "real devices, which this version does not drive")


def _requirements() -> Iterator[str]:
    """What the installed project says that it needs, extras aside."""
    for line in importlib.metadata.requires("pytest-cannlm") or ():
        name = _REQUIREMENT.match(line)
        if name and "extra ==" not in line:
            yield name[0]


def _distribution(name: str, otherwise: State, purpose: str, fix: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name), purpose, fix)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, otherwise, "not installed", purpose, fix)


def _pip() -> Check:
    """pip fetches the demo model. Its index is not contacted: that would be the network."""
    purpose, fix = "fetching the demo model", f"{sys.executable} -m ensurepip"
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return Check("pip", "optional", "not installed", purpose, fix)
    if os.environ.get("PIP_NO_INDEX"):
        return Check("pip", "optional", f"{version}, without an index", purpose, "unset PIP_NO_INDEX")
    return Check("pip", "ok", f"{version}, index not contacted", purpose)


def _cache_folder(cache: Path) -> Check:
    purpose = "models and built packages"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return Check("cache folder", "ok", str(cache), purpose)
    except OSError as error:
        reason = f"{cache}: {error.strerror or error}"
        return Check("cache folder", "missing", reason, purpose, "set CANNLM_CACHE to a folder that can be written")


def _free_space(cache: Path) -> Check:
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    state: State = "ok" if free >= _FREE_BYTES else "missing"
    found = f"{free / 1e9:.1f} GB free"
    purpose = f"models and built packages; {_FREE_BYTES / 1e9:.0f} GB for the demo model in all schemes"
    return Check("disk space", state, found, purpose, f"free some space, or set CANNLM_CACHE (now below {existing})")
