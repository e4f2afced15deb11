"""Run the app under test: as a process that is ended with its children, or as a callable in this process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from pytest_cannlm.errors import UsageError

PYTHON = "python"
"""As the first word of an app: the interpreter that runs the tests."""


@dataclass(frozen=True)
class Ended:
    """How an app ended and what it wrote."""

    status: int | None
    """Exit status; None: it was still running at its time limit and was ended."""
    stdout: str
    stderr: str
    seconds: float


def run_process(arguments: Sequence[str], environment: Mapping[str, str], *, timeout_s: float) -> Ended:
    """Run a program in the current directory, with ``environment`` added to this one's.

    Children that it leaves behind are ended with it; on Windows only those of an app that is ended for its time.

    :raises UsageError: it cannot be started.
    """
    program = sys.executable if arguments[0] == PYTHON else arguments[0]
    started = time.monotonic()
    # Files, not pipes: a child that keeps a pipe open would keep its reader waiting.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                [program, *arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **environment},
                **_own_group(),
            )
        except OSError as error:
            raise UsageError(
                f"the app cannot be started: {error.strerror or error}", field="app", found=arguments[0]
            ) from None
        with _ended_with_children(process):
            try:
                status: int | None = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
        return Ended(status, _content(stdout), _content(stderr), time.monotonic() - started)


def run_callable(
    app: Callable[..., object], arguments: Sequence[str], environment: Mapping[str, str], *, timeout_s: float
) -> Ended:
    """Call ``app(*arguments)`` with ``environment`` added to this process's, which is restored afterwards.

    A whole number that it returns is its status, anything else is 0; an exception is 1 with its traceback on standard
    error. It cannot be ended from outside: one that took longer than ``timeout_s`` is noticed when it returns.
    """
    started, status = time.monotonic(), 0
    stdout, stderr = io.StringIO(), io.StringIO()
    with _environment(environment), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            returned = app(*arguments)
            status = returned if isinstance(returned, int) and not isinstance(returned, bool) else 0
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else int(left.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
    seconds = time.monotonic() - started
    return Ended(status if seconds <= timeout_s else None, stdout.getvalue(), stderr.getvalue(), seconds)


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _ended_with_children(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the process and its group when the block is left, also by Ctrl-C, which reaches this process only."""
    try:
        yield
    finally:
        if sys.platform == "win32":
            if process.poll() is None:
                subprocess.run(
                    ["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, timeout=10, check=False
                )
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
                os.killpg(process.pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
        process.wait()


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
