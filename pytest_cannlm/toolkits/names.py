"""Versions that only a name tells: a DDK and its plugins carry no version file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pytest_cannlm.compat.versions import Pairs, Version, parse, translate

_DDK = re.compile(r"^(?:.*[-_. ])?ddk(?:[-_. ].*?)?[-_. ]v?(\d{1,2}(?:\.\d{1,3}){3})(?:[-_. (].*)?$", re.IGNORECASE)
_PLUGIN = re.compile(
    r"^(kirin[a-z]*\d+\w*?)[-_]plugin(?:[-_].*?)?[-_]v?(\d{1,2}(?:\.\d{1,3}){3})(?:[-_. (].*)?$", re.IGNORECASE
)
_RELEASE = re.compile(r"^(?:cann-)?(\d+\.\d+(?:\.\w+)*)$", re.IGNORECASE)


def ddk_version(name: str) -> Version | None:
    """The version in the name of a DDK's folder or archive, such as ``DDK-tools-next-6.1.1.0``."""
    match = _DDK.match(name)
    return parse(match[1]) if match else None


def plugin_version(name: str) -> tuple[str, Version] | None:
    """Platform (lower case) and version in the name of a plugin, such as ``kirinx90-plugin-next-6.1.1.0``."""
    match = _PLUGIN.match(name)
    return (match[1].lower(), parse(match[2])) if match else None


def release_version(name: str) -> Version | None:
    """The version in the name of a CANN folder, such as ``cann-9.0.0`` or ``8.0.RC2``."""
    match = _RELEASE.match(name)
    version = parse(match[1]) if match else None
    return version if version and version.known else None


def shown(version: Version, pairs: Pairs = ()) -> str:
    """A version with its public name where it is an internal one and ``pairs`` or the bundled list know that."""
    public = translate(version, "public", pairs) if version.space == "ascend-internal" else None
    return f"{version}, which is {public}" if public else str(version)


def upwards(paths: Iterable[Path], levels: int) -> list[Path]:
    """Each path and its next ``levels`` parents, without repetition."""
    return list(dict.fromkeys(folder for path in paths for folder in (path, *list(path.parents)[:levels])))
