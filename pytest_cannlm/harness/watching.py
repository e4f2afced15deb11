"""Whether anything below a folder was opened or changed while an app ran.

On Linux the kernel tells of every opening and change, by whatever process and through whatever link (inotify).
Elsewhere the times of last access tell of everything that was read or listed, the other times of what was changed, and
Python's own audit events of what a callable opened in this process. A watcher first proves on something of its own that
it can see; where it cannot, that is :class:`~pytest_cannlm.errors.NotObservable`, never "nothing was opened". The
files must be nobody else's: whoever opens another link to one of them counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pytest_cannlm.errors import NotObservable

_LONG_AGO_NS = 48 * 3600 * 10**9
"""How far back access times are set: file systems that save writes renew times that are older than a day."""
CHANGED = " (changed)"
"""Behind the name of what was written to, moved, deleted, linked, or given other rights or times."""


class Watcher(Protocol):
    """Notices openings and changes between its start and its end. The harness itself opens nothing there meanwhile."""

    def __enter__(self) -> Self:
        """Start; raises :class:`NotObservable` where openings cannot be seen."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop."""

    def opened(self) -> set[str]:
        """What was opened or, with :data:`CHANGED`, changed so far, relative to the folder, which itself is "."."""


def watchers_of(folder: Path, *, in_process: bool, platform: str = sys.platform) -> tuple[Watcher, ...]:
    """The watchers that this platform needs; what any of them sees counts.

    :param in_process: the app runs inside this process.
    """
    if platform == "linux":
        return (InotifyWatcher(folder),)
    return (AccessTimeWatcher(folder), *([AuditWatcher(folder)] if in_process else []))


@contextmanager
def watching(*watchers: Watcher) -> Iterator[set[str]]:
    """A set that holds, after the block, everything that was opened or changed during it."""
    opened: set[str] = set()
    with ExitStack() as started:
        for watcher in watchers:
            started.enter_context(watcher)
        yield opened
        for watcher in watchers:
            opened |= watcher.opened()


class InotifyWatcher:
    """The Linux kernel's own events about folders and files, also for mapping, also by children.

    Each file is watched itself, not only by its folder: so are openings through another link, and the making of one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[int, Path] = {}
        self._notify: Any = None

    def __enter__(self) -> Self:
        from inotify_simple import INotify, flags

        new = flags.CREATE | flags.MOVED_TO  # in a folder; what was there before tells itself of all that befalls it
        wanted = flags.OPEN | flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF | flags.DELETE_SELF | new
        try:
            self._notify = INotify()
            for place in (self._folder, *_below(self._folder)):
                self._places[self._notify.add_watch(place, wanted)] = place.relative_to(self._folder)
            os.listdir(self._folder)  # noqa: PTH208 - the opening that has to be seen
            seen = self.opened()
        except OSError as error:
            self.__exit__(None, None, None)
            raise _not_observable(f"inotify: {error.strerror or error}") from error
        if "." not in seen:
            self.__exit__(None, None, None)
            raise _not_observable("inotify is silent on this file system")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._notify is not None:
            self._notify.close()

    def opened(self) -> set[str]:
        """What was opened or changed since the last call."""
        from inotify_simple import flags

        found = set()
        for event in self._notify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                found.add("more than could be counted")
            elif not event.mask & (flags.IGNORED | flags.UNMOUNT):  # about the watch, not about what is watched
                name = (self._places[event.wd] / event.name).as_posix()
                found.add(name if event.mask & flags.OPEN else name + CHANGED)
        return found


class AccessTimeWatcher:
    """Times of last access, set far into the past: what is read, mapped or listed gets a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[Path, os.stat_result] = {}

    def __enter__(self) -> Self:
        self._prove()
        self._before = {path: _aged(path) for path in (*_below(self._folder), self._folder)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is held."""

    def opened(self) -> set[str]:
        """What has another time of access than it was given, and what is another file or gone."""
        return {name for path, before in self._before.items() for name in self._touched(path, before)}

    def _touched(self, path: Path, before: os.stat_result) -> Iterator[str]:
        name = path.relative_to(self._folder).as_posix()
        try:
            now = path.stat()
        except OSError:
            yield name + CHANGED
            return
        if now.st_atime_ns != before.st_atime_ns:
            yield name
        if _state(now) != _state(before):
            yield name + CHANGED

    def _prove(self) -> None:
        """Read a file and list a folder on the same file system, and see both."""
        with tempfile.TemporaryDirectory(dir=self._folder.parent) as place:
            folder = Path(place)
            file = folder / "probe"
            file.write_bytes(b"probe")
            aged = {path: _aged(path) for path in (file, folder)}
            os.listdir(folder)  # noqa: PTH208 - read on purpose
            file.read_bytes()
            if any(path.stat().st_atime_ns == before.st_atime_ns for path, before in aged.items()):
                raise _not_observable("this file system keeps no times of access")


class AuditWatcher:
    """Python's own events in this process: every file that is opened, every folder that is listed.

    An audit hook cannot be taken away again, so there is one for all watchers, which does nothing while none is active.
    """

    _active: set[AuditWatcher] = set()  # noqa: RUF012 - shared on purpose
    _hooked = threading.Event()

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        self._opened: set[str] = set()

    def __enter__(self) -> Self:
        if not AuditWatcher._hooked.is_set():
            AuditWatcher._hooked.set()
            sys.addaudithook(_audit)
        AuditWatcher._active.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        AuditWatcher._active.discard(self)

    def opened(self) -> set[str]:
        """What was opened or listed since the start."""
        return set(self._opened)

    def notice(self, path: object) -> None:
        """Remember ``path`` if it lies in the folder."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        full = os.path.realpath(os.fsdecode(path))
        if full == self._folder or full.startswith(self._folder + os.sep):
            self._opened.add(Path(os.path.relpath(full, self._folder)).as_posix())


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and arguments:
        for watcher in tuple(AuditWatcher._active):
            watcher.notice(arguments[0])


def _below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def _aged(path: Path) -> os.stat_result:
    """Set the time of access far into the past; returns what the file system then says."""
    modified = path.stat().st_mtime_ns
    os.utime(path, ns=(modified - _LONG_AGO_NS, modified))
    return path.stat()


def _state(status: os.stat_result) -> tuple[int, ...]:
    """What no reader changes."""
    return (status.st_ino, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _not_observable(why: str) -> NotObservable:
    return NotObservable(
        f"not observable: whether the app opens the package ({why})",
        remedy="Keep the cache on a file system that tells of openings (--npu-cache)",
    )
