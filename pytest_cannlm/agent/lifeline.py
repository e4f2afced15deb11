"""Notice that whoever started this process is gone, however it went: nothing of a run outlives it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

_POLL_S = 0.5


def watch_parent(on_gone: Callable[[], None], *, parent_pid: int | None) -> None:
    """Call ``on_gone`` when standard input ends or, on POSIX, when ``parent_pid`` is no longer there.

    The pipe is the fast way and works on every system; the poll covers a pipe that a forked sibling still holds open.
    """
    threading.Thread(target=_wait_for_end_of_input, args=(on_gone,), name="lifeline", daemon=True).start()
    if parent_pid is not None and os.name == "posix":
        threading.Thread(target=_poll, args=(on_gone, parent_pid), name="parent", daemon=True).start()


def _wait_for_end_of_input(on_gone: Callable[[], None]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    on_gone()


def _poll(on_gone: Callable[[], None], parent_pid: int) -> None:
    # A direct parent that ends is replaced at once, so its number cannot be taken by a stranger meanwhile.
    direct = os.getppid() == parent_pid
    tick = threading.Event()
    while os.getppid() == parent_pid if direct else exists(parent_pid):
        tick.wait(_POLL_S)
    on_gone()


def exists(pid: int) -> bool:
    """Whether there is a process with this number; POSIX only."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
