"""Run the app under test: as a process that is ended with its children, or as a callable in this process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness.guard import own_group

PYTHON = "python"
"""As the first word of an app: the interpreter that runs the tests."""

_END_S = 10.0
"""How long ending an app and its children may take."""


@dataclass(frozen=True)
class Ended:
    """How an app ended and what it wrote."""

    status: int | None
    """Exit status, negative for a signal; None: it was still running at its time limit and was ended."""
    stdout: str
    stderr: str
    seconds: float
    logged: str = ""
    """What a callable logged, whatever handlers there are."""


def run_process(arguments: Sequence[str], environment: Mapping[str, str], *, timeout_s: float) -> Ended:
    """Run a program in the current directory, with ``environment`` added to this one's.

    What it started is ended with it, also when this process is killed: on Linux every descendant, on other POSIX
    systems those of its process group, on Windows those of an app that is ended for its time.

    :raises UsageError: it cannot be started.
    """
    program = sys.executable if arguments[0] == PYTHON else arguments[0]
    started = time.monotonic()
    # Files, not pipes: a child that keeps a pipe open would keep its reader waiting.
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        trouble = Path(place) / "trouble"
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest_cannlm.harness.guard", trouble, program, *arguments[1:]],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            **own_group(),  # Ctrl-C reaches this process only, which then ends the app
        )
        with _ended(guard):
            try:
                status: int | None = guard.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
        if trouble.exists():
            why = trouble.read_text(encoding="utf-8")
            raise UsageError(
                f"the app cannot be started: {why}",
                field="app",
                found=arguments[0],
                remedy=f'Name a program or its path in app=; "{PYTHON}" is the interpreter that runs the tests',
            )
        return Ended(status, _content(stdout), _content(stderr), time.monotonic() - started)


def run_callable(
    app: Callable[..., object], arguments: Sequence[str], environment: Mapping[str, str], *, timeout_s: float
) -> Ended:
    """Call ``app(*arguments)`` with ``environment`` added to this process's; it and the directory are restored.

    A whole number that it returns is its status, anything else is 0; an exception is 1 with its traceback on standard
    error. What it writes is taken from the file descriptors, so from its children too. It cannot be ended from outside:
    one that took longer than ``timeout_s`` is noticed when it returns.
    """
    started, status, logged = time.monotonic(), 0, io.StringIO()
    with (
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
        _environment(environment),
        contextlib.chdir(os.curdir),
        _log_to(logged),
        _written_to(stdout, "stdout"),
        _written_to(stderr, "stderr"),
    ):
        try:
            returned = app(*arguments)
            status = returned if isinstance(returned, int) and not isinstance(returned, bool) else 0
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else int(left.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
        seconds = time.monotonic() - started
        _flush()
        shown = (_content(stdout), _content(stderr))
    return Ended(status if seconds <= timeout_s else None, *shown, seconds, logged.getvalue())


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
def _log_to(text: io.StringIO) -> Iterator[None]:
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextlib.contextmanager
def _written_to(file: IO[bytes], name: str) -> Iterator[None]:
    """Send what is written to a standard stream to ``file``: by print, by its file descriptor, by children."""
    number = {"stdout": 1, "stderr": 2}[name]
    _flush()
    before, kept = getattr(sys, name), os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        with open(number, "w", encoding="utf-8", newline="", closefd=False) as stream:
            setattr(sys, name, stream)
            yield
    finally:
        _flush()
        setattr(sys, name, before)
        os.dup2(kept, number)
        os.close(kept)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()


@contextlib.contextmanager
def _ended(guard: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have the guard end the app when the block is left, also by Ctrl-C, and wait for both."""
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(_END_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
