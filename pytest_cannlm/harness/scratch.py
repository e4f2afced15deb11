"""Where short-lived copies of packages are made: on the package's own file system, so that they can be links."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = ".cannlm-relabelled-"
_ABANDONED_S = 24 * 3600.0
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


def place_for_a_copy(scratch: Path, package: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed with its context: below ``scratch``, or beside ``package`` if only that can have links.

    Where neither can be written it is in the system's own place for such; links may then become copies. What runs that
    were killed left in the same place is removed.
    """
    own = _file_system(package)
    for place in sorted((scratch, package.parent), key=lambda folder: _file_system(folder) != own):
        try:
            place.mkdir(parents=True, exist_ok=True)
            _remove_what_killed_runs_left(place)
            return tempfile.TemporaryDirectory(prefix=PREFIX, dir=place)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
    return tempfile.TemporaryDirectory(prefix=PREFIX)


def _file_system(path: Path) -> int:
    """The file system of ``path``, or, if it is not there yet, of the folder that it would be made in."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists()).stat().st_dev


def _remove_what_killed_runs_left(place: Path) -> None:
    """Copies live for seconds; one that is a day old has nobody any more."""
    for left in place.glob(f"{PREFIX}*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
