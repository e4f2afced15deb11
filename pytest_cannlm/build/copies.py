"""Copies of a package: some that claim something else or are damaged, and some to give away. They cost next to nothing.

What an engine or the gate gets is made of links, because they only read. What a program of somebody else gets, which
may write, is no link anywhere: nothing that it does there reaches the package.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_cannlm.build.cache import link_or_copy
from pytest_cannlm.build.folder import MANIFEST, PACKAGE_DIR, PackageFolder, read_object
from pytest_cannlm.build.package import facts_of
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.container.kirin import relabel_omc
from pytest_cannlm.errors import UsageError

_WHOLE_BYTES = 32 << 20
"""Files up to this size are copied whole into a stand-in: every text, vocabulary and graph, and no real weights."""


def relabel(
    source: PackageFolder, dest: Path, *, cann: str | None = None, chip: str | None = None, damage: str | None = None
) -> PackageFolder:
    """A copy of a package that claims to be built for another CANN or chip, or is damaged, and is otherwise the same.

    Files that do not change are links where the file system has them, so the copy is for readers only. What changes is
    written to files of its own: making the copy never writes through a link.

    Args:
        source: the package to copy.
        dest: folder to create; it must not exist.
        cann: CANN version that the copy claims.
        chip: chip that the copy claims.
        damage: a name of :data:`~pytest_cannlm.compat.damage.DAMAGES`.

    Raises:
        UsageError: an unknown damage, or one of something that the package does not have.
        PackageError: the source's ``executor.json`` or manifest cannot be used.
    """
    if damage is not None and damage not in DAMAGES:
        raise UsageError("unknown damage", field="damage", found=damage, expected="one of " + ", ".join(DAMAGES))
    copy = _copied(source, dest, link_or_copy)
    if cann or chip:
        relabel_omc(source.model, copy.model, build_version=cann, chip=chip)
    if damage is not None:
        _spoil(source, copy, damage)
    elif copy.manifest is not None:
        _let_agree(copy.manifest, copy.model, {"cann": cann, "chip": chip})
    return _as_it_says(copy)


def stand_in(source: PackageFolder, dest: Path) -> PackageFolder:
    """A copy of a package for a program that may do anything with it: every file is the copy's own.

    Files up to 32 MiB are whole. Of a larger one only the size and the first bytes are the original's, the rest is a
    hole, which takes no space where the file system has holes.

    Args:
        source: the package to copy; it may be broken.
        dest: folder to create; it must not exist.
    """
    return _copied(source, dest, _stand_in)


def _copied(source: PackageFolder, dest: Path, copy_file: Callable[[Path, Path], object]) -> PackageFolder:
    copy = PackageFolder(dest / PACKAGE_DIR, dest / MANIFEST if source.manifest else None, source.data)
    copy.package.mkdir(parents=True)
    for path in sorted(source.package.rglob("*")):
        if path.is_file():
            target = copy.package / path.relative_to(source.package)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path.resolve(), target)
    if source.manifest and copy.manifest:
        shutil.copyfile(source.manifest, copy.manifest)
    return copy


def _stand_in(original: Path, copy: Path) -> None:
    size = original.stat().st_size
    if size <= _WHOLE_BYTES:
        shutil.copyfile(original, copy)
        return
    with original.open("rb") as file:
        copy.write_bytes(file.read(1 << 16))
    os.truncate(copy, size)


def _as_it_says(copy: PackageFolder) -> PackageFolder:
    return copy if copy.manifest is None else PackageFolder(copy.package, copy.manifest, read_object(copy.manifest))


def _let_agree(manifest: Path, model: Path, claimed: Mapping[str, str | None]) -> None:
    """Let a manifest say what the relabelled model says, as far as it said anything of it."""
    data = read_object(manifest)
    build, files = (part if isinstance(part, dict) else {} for part in (data.get("build"), data.get("files")))
    build.update({key: value for key, value in claimed.items() if value and key in build})
    if model.name in files:
        files[model.name] = facts_of(model)
    manifest.write_text(json.dumps(data, indent=1), encoding="utf-8")


def _spoil(source: PackageFolder, copy: PackageFolder, damage: str) -> None:
    kind = DAMAGES[damage]
    original: Path | None = getattr(source, kind.part)
    damaged: Path | None = getattr(copy, kind.part)
    if original is None or damaged is None or not original.is_file():
        needed = f"a {MANIFEST} beside the package" if original is None else f"a file {original.name}"
        raise _nothing_to_break(source, damage, needed)
    damaged.unlink()  # never through the link: the original must stay whole
    try:
        kind.spoil(original, damaged)
    except ValueError as error:
        raise _nothing_to_break(source, damage, f"another {original.name} ({error})") from error


def _nothing_to_break(source: PackageFolder, damage: str, needed: str) -> UsageError:
    return UsageError(
        "the package has nothing that could be damaged so",
        file=source.package,
        field="damage",
        found=damage,
        expected=needed,
        remedy="Choose another damage",
    )
