"""Copies of a package that claim something else or are damaged, made of links so that they cost next to nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_cannlm.build.cache import link_or_copy
from pytest_cannlm.build.folder import MANIFEST, PACKAGE_DIR, PackageFolder
from pytest_cannlm.build.package import facts_of
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.container.kirin import relabel_omc
from pytest_cannlm.errors import UsageError

_KEPT_BYTES = 1 << 20
"""How much of a damaged file is copied at most: what comes behind it is not looked at."""
_HEADER_BYTES = 16


def relabel(
    source: PackageFolder, dest: Path, *, cann: str | None = None, chip: str | None = None, damage: str | None = None
) -> PackageFolder:
    """A copy of a package that claims to be built for another CANN or chip, or is damaged, and is otherwise the same.

    Files that do not change are links where the file system has them; the source stays as it is.

    Args:
        source: the package to copy.
        dest: folder to create; it must not exist.
        cann: CANN version that the copy claims.
        chip: chip that the copy claims.
        damage: a name of :data:`~pytest_cannlm.compat.damage.DAMAGES`.

    Raises:
        UsageError: an unknown damage, or one of something that the package does not have.
        PackageError: the source's ``executor.json`` cannot be used.
    """
    if damage is not None and damage not in DAMAGES:
        raise UsageError("unknown damage", field="damage", found=damage, expected="one of " + ", ".join(DAMAGES))
    package = dest / PACKAGE_DIR
    package.mkdir(parents=True)
    for name in _files_of(source.package):
        target = package / name
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy((source.package / name).resolve(), target)
    model = source.model.relative_to(source.package)
    if cann or chip:
        relabel_omc(source.package / model, package / model, build_version=cann, chip=chip)
    if damage is not None and damage in _BROKEN:
        _break(source, package, damage)
    if source.manifest is None:
        if damage == "stale-manifest":
            raise _nothing_to_break(source, damage, "a manifest.json beside the package")
        return PackageFolder(package, None, {})
    data = json.loads(source.manifest.read_text(encoding="utf-8"))
    if damage == "stale-manifest":
        _make_stale(data, source)
    elif damage is None:
        _let_agree(data, package / model, {"cann": cann, "chip": chip})
    manifest = dest / MANIFEST
    manifest.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return PackageFolder(package, manifest, data)


def _files_of(folder: Path) -> list[Path]:
    return [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]


def _let_agree(data: dict[str, Any], model: Path, claimed: Mapping[str, str | None]) -> None:
    """Let a manifest say what the relabelled model says, as far as it said anything of it."""
    build, files = data.get("build", {}), data.get("files", {})
    build.update({key: value for key, value in claimed.items() if value and key in build})
    if model.name in files:
        files[model.name] = facts_of(model)


def _make_stale(data: dict[str, Any], source: PackageFolder) -> None:
    """Let a manifest name other sizes than those of the files."""
    if not data.get("files"):
        raise _nothing_to_break(source, "stale-manifest", "sizes of files in manifest.json")
    for facts in data["files"].values():
        facts["bytes"] += 1


def _break(source: PackageFolder, package: Path, damage: str) -> None:
    original, break_file = (source.weights if damage in _OF_WEIGHTS else source.model), _BROKEN[damage]
    if not original.is_file():
        raise _nothing_to_break(source, damage, f"a file {original.name}")
    copy = package / original.relative_to(source.package)
    copy.unlink()  # never through the link: the original must stay whole
    break_file(original, copy)


def _nothing_to_break(source: PackageFolder, damage: str, needed: str) -> UsageError:
    return UsageError(
        "the package has nothing that could be damaged so",
        file=source.package,
        field="damage",
        found=damage,
        expected=needed,
        remedy="Choose another damage",
    )


def _cut(original: Path, copy: Path) -> None:
    copy.write_bytes(_beginning(original, original.stat().st_size // 2))


def _without_header(original: Path, copy: Path) -> None:
    copy.write_bytes(bytes(_HEADER_BYTES) + _beginning(original, _KEPT_BYTES)[_HEADER_BYTES:])
    os.truncate(copy, original.stat().st_size)


def _pointer(original: Path, copy: Path) -> None:
    lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{'0' * 64}", f"size {original.stat().st_size}")
    copy.write_bytes("".join(f"{line}\n" for line in lines).encode())


def _longer(original: Path, copy: Path) -> None:
    shutil.copyfile(original, copy)
    with copy.open("ab") as file:
        file.write(_beginning(original, 64))


def _beginning(file: Path, length: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(min(length, _KEPT_BYTES))


_OF_WEIGHTS = ("truncate", "missing-weights")
_BROKEN: Mapping[str, Callable[[Path, Path], None]] = {
    "truncate": _cut,
    "missing-weights": lambda original, copy: None,
    "header": _without_header,
    "empty": lambda original, copy: copy.touch(),
    "pointer": _pointer,
    "trailing": _longer,
}
