"""The build cache: content-addressed folders, one per step and key, safe between processes.

A folder appears under its final name only when it is complete: it is written beside it and renamed. Whoever needs an
entry holds its lock meanwhile, so two processes never do the same work; the one that waits says so. An entry is sealed
with the sha256 of every file; one that was changed since is made again. What a killed process left half done goes when
the next entry of any step is made: nobody holds the lock of such a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.locking import locked, locked_if_free
from pytest_cannlm.models.hashing import MEMO, file_sha256
from pytest_cannlm.progress import Progress

_ENTRY = "entry.json"
_PARTIAL = ".partial"


@dataclass(frozen=True)
class CacheResult:
    """A complete entry: its folder, whether it was there already, and how long it took, lock wait included."""

    folder: Path
    cached: bool
    seconds: float


def key_of(facts: Mapping[str, Any]) -> str:
    """The key of an entry: the first 24 hex digits of the sha256 of ``facts`` as canonical JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


class BuildCache:
    """Entries under ``root / step / key``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._memo = root.parent / MEMO

    def find(self, step: str, key: str) -> Path | None:
        """The folder of a complete entry, or None. Takes no lock: a complete entry never changes."""
        folder = self.root / step / key
        return folder if self._intact(folder) else None

    def obtain(self, step: str, key: str, make: Callable[[Path], None], progress: Progress) -> CacheResult:
        """The entry, made by ``make(folder)`` if it is missing or damaged.

        Raises:
            EnvironmentFailure: the cache cannot be written, or another process holds the entry for an hour.
        """
        began = time.monotonic()
        ready = self.find(step, key)
        if ready is not None:
            return CacheResult(ready, True, time.monotonic() - began)
        try:
            made = self._make(step, key, make, progress)
        except OSError as error:
            raise self._failure(error) from error
        return CacheResult(self.root / step / key, not made, time.monotonic() - began)

    def _make(self, step: str, key: str, make: Callable[[Path], None], progress: Progress) -> bool:
        """Make the entry unless another process did so meanwhile; whether it was made."""
        folder = self.root / step / key
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        waiting = f"{step}: waiting for another process that makes the same entry ({folder})"
        with locked(folder.with_name(f"{key}.lock"), waiting, progress):
            if self._intact(folder):
                return False
            if folder.exists():
                progress.say(f"{step}: cache entry {key} is damaged and is made again")
                shutil.rmtree(folder)
            partial = folder.with_name(f"{key}{_PARTIAL}")
            shutil.rmtree(partial, ignore_errors=True)  # killed since the sweep; we hold its lock
            partial.mkdir()
            try:
                make(partial)
                _seal(partial, memo=self._memo)
                partial.replace(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        return True

    def _sweep(self) -> None:
        """Remove what processes that were killed left behind."""
        for partial in self.root.glob(f"*/*{_PARTIAL}"):
            with locked_if_free(partial.with_suffix(".lock")) as ours:
                if ours:
                    shutil.rmtree(partial, ignore_errors=True)

    def _intact(self, folder: Path) -> bool:
        """Whether every file is as it was sealed. An unchanged file (see ``file_sha256``) is not read again."""
        try:
            seals = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))["files"]
            return all(self._as_sealed(folder / name, *seal) for name, seal in seals.items())
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _as_sealed(self, file: Path, size: int, sha256: str) -> bool:
        return file.stat().st_size == size and file_sha256(file, memo=self._memo) == sha256

    def _failure(self, error: OSError) -> EnvironmentFailure:
        existing = next(folder for folder in (self.root, *self.root.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        return EnvironmentFailure(
            "a file of the build cannot be read or written",
            file=error.filename or self.root,
            found=f"{error.strerror or error}; {free / 1e9:.1f} GB free",
            remedy="free some space, or choose another folder with --npu-cache or CANNLM_CACHE",
        )


def link_or_copy(source: Path, target: Path) -> None:
    """Give ``target`` the content of ``source``: by a hard link where the file system has them, else by a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def files_below(folder: Path) -> list[Path]:
    """All files below ``folder``, relative and sorted; the cache's own record is left out."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path != Path(_ENTRY))


def _seal(folder: Path, *, memo: Path) -> None:
    def seal(file: Path) -> tuple[int, str]:
        return file.stat().st_size, file_sha256(file, memo=memo)

    seals = {path.as_posix(): seal(folder / path) for path in files_below(folder)}
    (folder / _ENTRY).write_text(json.dumps({"files": seals}, indent=1), encoding="utf-8")
