"""Locks between processes: files that the operating system releases with the process, and a word to whoever waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.progress import Progress

LIMIT_S = 3600.0


@contextmanager
def locked(path: Path, waiting: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path``; where another process has it, say ``waiting`` and wait.

    Raises:
        EnvironmentFailure: the other process held it for an hour.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.say(waiting)
        try:
            lock.acquire(timeout=LIMIT_S)
        except Timeout:
            raise EnvironmentFailure(
                f"another process held a lock for {LIMIT_S:.0f} s",
                file=path,
                remedy="end that process; its lock goes with it",
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file ``path`` if nobody has it; gives whether it is held. Never waits."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
