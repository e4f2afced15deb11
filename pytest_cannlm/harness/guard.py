"""Run one program, and end with it everything that it started: ``python -m pytest_cannlm.harness.guard TROUBLE APP…``.

It stands between the harness and an app, because only a parent can end what an app leaves behind, and because the
harness itself may be killed: when its end of standard input closes, however that comes, the app is ended. On Linux it
adopts orphans, so that a child in a session of its own is ended too; elsewhere the app's process group is.

It ends as the app did, with its exit status or by the same signal. An app that cannot be started is told in the file
``TROUBLE``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_cannlm.agent.lifeline import watch_parent

_PR_SET_CHILD_SUBREAPER = 36


def main(trouble: Path, app: Sequence[str]) -> None:
    """Run ``app`` and end this process as it ended."""
    _adopt_orphans()
    try:
        process = subprocess.Popen(app, stdin=subprocess.DEVNULL, **own_group())
    except OSError as error:
        trouble.write_text(str(error.strerror or error), encoding="utf-8")
        sys.exit(1)
    watch_parent(lambda: _end(process), parent_pid=os.getppid())
    status = process.wait()
    _end(process)
    _sweep()
    _leave(status)


def own_group() -> dict[str, Any]:
    """Arguments of ``Popen`` with which Ctrl-C does not reach the process, and its children can be ended with it."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the app if it still runs, and what is left of its group."""
    if sys.platform == "win32":
        if process.poll() is None:
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
    else:
        process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
            os.killpg(process.pid, signal.SIGKILL)


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _sweep() -> None:
    """End every descendant, those too that an ended one leaves behind."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            for child in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            os.wait()


def _children() -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # behind the name, which may hold anything: state, parent
            if int(status.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                yield int(status.parent.name)


def _leave(status: int) -> None:
    if status < 0:
        with contextlib.suppress(ImportError):  # only where signals end processes
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the app has left its own core already
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    # an NTSTATUS is larger than the signed number that is taken; the thread that reads standard input waits for ever
    os._exit(status if status < 1 << 31 else status - (1 << 32))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
