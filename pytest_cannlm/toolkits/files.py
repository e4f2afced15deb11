"""Looking at files that may be missing, locked, huge, or links in a circle. Nothing here raises for any of that."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

MAX_BYTES = 64 * 1024
"""Of a version file. The vendor's have a few hundred bytes."""
MAX_NAMES = 1024
"""Of a folder's entries."""


def is_dir(path: Path) -> bool:
    """Whether ``path`` is a folder that can be seen."""
    return _asked(path.is_dir)


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file that can be seen."""
    return _asked(path.is_file)


def real(path: Path) -> Path:
    """``path`` with links followed as far as they lead; ``Path.resolve`` raises for circles on some Pythons."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return path


def broken_link(path: Path) -> str | None:
    """What ``path`` links to, if it is a link that leads to nothing."""
    try:
        return str(path.readlink()) if path.is_symlink() and not path.exists() else None
    except (OSError, RuntimeError, ValueError):  # a circle is a RuntimeError on some Pythons
        return None


def entries(folder: Path) -> tuple[Path, ...]:
    """The first :data:`MAX_NAMES` entries of a folder in alphabetical order; none of what is no readable folder."""
    try:
        return tuple(sorted(islice(folder.iterdir(), MAX_NAMES)))
    except (OSError, ValueError):
        return ()


def read_start(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes.

    :raises OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(limit)


def executable(path: Path) -> bool | None:
    """Whether the execute bit lets us run ``path``; None where there is no such bit."""
    return os.access(path, os.X_OK) if os.name == "posix" else None


def _asked(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        return False
