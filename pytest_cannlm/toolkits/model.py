"""What is known of a toolkit, as plain facts with the file that each was read from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_cannlm.compat.versions import Pair, Version

Kind = Literal["ddk", "mobile-station", "ascend"]
"""The Kirin DDK with ``omg``; CANN whose ``atc`` builds for Kirin only; CANN for servers, which may know Kirin too."""


@dataclass(frozen=True)
class ReadVersion:
    """A version and where it was read."""

    part: str
    """What it is the version of: ``ddk``, ``compiler``, ``toolkit``, ``runtime``, ``opp``, ``release``, ``folder``,
    ``driver``."""
    version: Version
    file: Path
    key: str

    @property
    def where(self) -> str:
        """The place for a reader: "Version of /…/version.info"."""
        return f"{self.key} of {self.file}"


@dataclass(frozen=True)
class Problem:
    """Something about a toolkit that will not work, or that contradicts itself."""

    what: str
    file: Path
    found: str
    expected: str
    remedy: str


@dataclass(frozen=True)
class Platform:
    """A chip that the toolkit builds for. A DDK's plugin has a version of its own where a name tells it."""

    chip: str
    path: Path
    version: ReadVersion | None = None


@dataclass(frozen=True)
class Tool:
    """A program of the toolkit. ``executable`` is None where the system has no such bit."""

    name: str
    path: Path
    executable: bool | None
    interpreter: Path | None = None
    """The loader that an ELF program asks for; None for a script and for what cannot be read."""


@dataclass(frozen=True)
class Archive:
    """A download of the vendor that lies beside an unpacked DDK."""

    path: Path
    named: Version
    """By its file name."""
    sha256: str | None = None
    """None: not computed."""
    identified: Version | None = None
    """By its hash; None for a hash that is not listed, and if none was computed."""


@dataclass(frozen=True)
class Toolkit:
    """One installation."""

    kind: Kind
    root: Path
    """The folder that holds ``tools_omg`` (DDK) or ``compiler`` and ``opp`` (CANN), links followed."""
    versions: tuple[ReadVersion, ...] = ()
    """The first known one counts: it is what the converter writes into a model."""
    platforms: tuple[Platform, ...] = ()
    """Kirin chips only."""
    tools: tuple[Tool, ...] = ()
    problems: tuple[Problem, ...] = ()
    archives: tuple[Archive, ...] = ()
    pairs: tuple[Pair, ...] = ()
    """Versions that this installation itself says are the same release."""
    host: str = ""
    """Operating system and processor that it is made for, by ``scene.info``."""
    driver: ReadVersion | None = None
    """Of the driver beside CANN, in numbers of its own; None where there is none."""
    found_by: tuple[str, ...] = ()
    """Variables, programs on PATH and folders that led here."""
    selected_by: tuple[str, ...] = ()
    """Those of them that make shells and scripts use this one: variables, and the first such program on PATH."""

    @property
    def version(self) -> ReadVersion | None:
        """The version that counts; None: unknown."""
        return next((read for read in self.versions if read.version.known), None)
