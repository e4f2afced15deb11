"""Where the files of a package lie, by the names that it gives them: never outside it. Valid for Python 3.10."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

PACKAGE_DIR, MANIFEST, EXECUTOR, CONTEXT = "package", "manifest.json", "executor.json", "context.json"
"""The folder that an engine loads, the manifest beside it, and the two files in the folder with fixed names."""

_MOST_NAMES = 4096
"""Folders with more entries are not listed to compare spellings."""


def folder_and_manifest(path: Path) -> tuple[Path, Path | None]:
    """The folder that the engine loads, at ``path`` or in it, and the manifest beside it if there is one.

    Looks at names only: what it finds may be broken, or no package at all. A manifest that is a link to another folder
    is none.
    """
    inner = path / PACKAGE_DIR
    package = inner if inner.is_dir() and not (path / EXECUTOR).exists() else path
    manifest = package.absolute().parent / MANIFEST
    beside = package.absolute().name == PACKAGE_DIR and package.is_dir() and manifest.is_file()
    return package, manifest if beside and inside(manifest.parent, MANIFEST) else None


def in_package(executor: Mapping[str, Any], name: str) -> str:
    """``name``, a path in ``executor.json``, as seen from the package folder.

    Inside an app the engine wants absolute paths. Where model, tokenizer and weights are all named so, in one folder,
    that folder is the package's place on the device, and names lose it; every other name stays as it is.
    """
    place = _place_on_device(executor)
    if place is None or not posixpath.isabs(name):
        return name
    path = PurePosixPath(posixpath.normpath(name))
    return str(path.relative_to(place)) if path.is_relative_to(place) else name


def inside(folder: Path, name: str) -> Path | None:
    """The real path of ``name`` if it lies in ``folder`` after all links are followed, else None."""
    try:
        root = os.path.realpath(folder)
        target = os.path.realpath(folder / name)
        return Path(target) if os.path.commonpath([root, target]) == root else None
    except ValueError:  # another drive, or a NUL in the name
        return None


def spellings(folder: Path) -> Callable[[str], str | None]:
    """A function from a name to how the package spells it, where only upper and lower case differ; else to None.

    Some hosts take the two for the same, a device does not.
    """
    return partial(_other_case, names_in=lru_cache(maxsize=None)(partial(_names_in, folder)))


def _place_on_device(executor: Mapping[str, Any]) -> PurePosixPath | None:
    paths, tokenizer = executor.get("autoregressive"), executor.get("tokenizer")
    if not isinstance(paths, Mapping) or not isinstance(tokenizer, Mapping):
        return None
    names = []
    for name in (paths.get("model_path"), paths.get("weight_path"), tokenizer.get("path")):
        if not isinstance(name, str) or not posixpath.isabs(name):
            return None
        names.append(PurePosixPath(posixpath.normpath(name)))
    place = names[0].parent
    return place if place.name and all(name.is_relative_to(place) for name in names) else None


def _other_case(name: str, *, names_in: Callable[[str], frozenset[str]]) -> str | None:
    place = PurePosixPath()
    for part in PurePosixPath(name).parts:
        names = names_in(str(place))
        if part not in names:
            other = next((each for each in sorted(names) if each.casefold() == part.casefold()), None)
            return None if other is None else str(place / other)
        place /= part
    return None


def _names_in(folder: Path, place: str) -> frozenset[str]:
    """What lies at ``place`` in the folder; nothing where that is outside, cannot be listed, or is too much to list."""
    below = inside(folder, place)
    if below is None:
        return frozenset()
    try:
        with os.scandir(below) as entries:
            names = frozenset(entry.name for entry in islice(entries, _MOST_NAMES + 1))
    except OSError:
        return frozenset()
    return names if len(names) <= _MOST_NAMES else frozenset()
