"""Where short-lived copies of packages are made: on the package's own file system, so that they can be links."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_cannlm.agent.lifeline import exists
from pytest_cannlm.models.hashing import MEMO, still_known

PREFIX = ".cannlm-relabelled-"
_ABANDONED_S = 24 * 3600.0
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def place_for_a_copy(scratch: Path, package: Path) -> Iterator[Path]:
    """A folder that is removed with its context: below ``scratch``, or beside ``package`` if only that can have links.

    Where neither can be written it is in the system's own place for such; links may then become copies. What runs that
    were killed left in the same place is removed. ``scratch`` is a folder of the cache: hashes of the package's files
    that are remembered there stay known, although links change the files' status.
    """
    files = [path for path in package.rglob("*") if path.is_file()]
    with still_known(files, memo=scratch.with_name(MEMO)), _folder(scratch, package) as folder:
        yield Path(folder)


def _folder(scratch: Path, package: Path) -> tempfile.TemporaryDirectory[str]:
    own, prefix = _file_system(package), f"{PREFIX}{_host()}-{os.getpid()}-"
    for place in sorted((scratch, package.parent), key=lambda folder: _file_system(folder) != own):
        try:
            place.mkdir(parents=True, exist_ok=True)
            _remove_what_killed_runs_left(place)
            return tempfile.TemporaryDirectory(prefix=prefix, dir=place)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
    return tempfile.TemporaryDirectory(prefix=prefix)


def _host() -> str:
    return re.sub(r"\W", "_", platform.node())


def _file_system(path: Path) -> int:
    """The file system of ``path``, or, if it is not there yet, of the folder that it would be made in."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists()).stat().st_dev


def _remove_what_killed_runs_left(place: Path) -> None:
    for left in place.glob(f"{PREFIX}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether the process that made it is gone. Of another machine's that is not known: copies live for seconds."""
    host, _, rest = folder.name.removeprefix(PREFIX).partition("-")
    pid = rest.partition("-")[0]
    if os.name == "posix" and host == _host() and pid.isdecimal() and not exists(int(pid)):
        return True
    return time.time() - folder.stat().st_mtime > _ABANDONED_S
