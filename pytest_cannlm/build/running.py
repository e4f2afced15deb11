"""Run one of the vendor's tools: its output kept as it comes, its last line shown, and no process of it left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.progress import Progress

_SILENCE_S = 5.0
_GRACE_S = 5.0
_POLL_S = 0.2
_SHOWN = 120
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class ToolRun:
    """How a tool ended. ``began`` is wall clock time, to be held against the times of files."""

    status: int
    began: float
    seconds: float
    log: Path


def run_tool(
    arguments: Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    label: str,
    progress: Progress,
    time_limit_s: float,
) -> ToolRun:
    """Run a program in ``folder`` and wait for it; everything that it prints goes into ``log``.

    A line of its output is shown every few seconds. Whatever ends the wait (an interrupt, the limit, the program's own
    end) ends its whole process group. What it started and left running gets a few seconds to end by itself.

    Raises:
        EnvironmentFailure: it cannot be started, or ran longer than ``time_limit_s`` seconds (code TOOL_TIMEOUT).
    """
    began, clock, stop = time.time(), time.monotonic(), threading.Event()
    try:
        # An interrupt hits the main thread only, between any two instructions of it. So another one owns the process.
        with log.open("wb") as kept, progress.task(label) as task:
            run: Future[int | None] = Future()

            def own() -> None:
                try:
                    run.set_result(_run(arguments, folder, environment, kept, stop, time_limit_s))
                except BaseException as error:
                    run.set_exception(error)

            owner = threading.Thread(target=own)
            try:
                owner.start()
                _show_lines_until(run, log, label=label, progress=progress)
                status = run.result()
            finally:
                stop.set()
                if owner.ident is not None:  # an interrupt inside of start() leaves open whether it was started
                    wait([run])
            if status is None:
                raise EnvironmentFailure(
                    "the tool was ended because it took too long",
                    file=log,
                    found=f"no end after {time_limit_s:g} s",
                    remedy="Look at the end of its log; a larger machine or a smaller model may be needed",
                    code="TOOL_TIMEOUT",
                )
            task.note(f"ended with status {status}")
    except OSError as error:
        raise EnvironmentFailure(
            "the tool cannot be started",
            file=arguments[0],
            found=error.strerror or error,
            remedy="The vendor's tools are for 64-bit Linux",
            code="TOOL_NOT_STARTED",
        ) from error
    return ToolRun(status, began, time.monotonic() - clock, log)


def _run(
    arguments: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str],
    output: BinaryIO,
    stop: threading.Event,
    time_limit_s: float,
) -> int | None:
    """The program's exit status; None if it was ended. Its output is a file: a pipe would end with its last child."""
    if stop.is_set():
        return None
    process = subprocess.Popen(
        [str(argument) for argument in arguments],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        **_own_group(),
    )
    limit = time.monotonic() + time_limit_s
    try:
        while not stop.is_set() and (left := limit - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(min(_POLL_S, left))
                _group_ends(process)
                return status
        return None
    finally:
        _end(process)


def _show_lines_until(run: Future[Any], log: Path, *, label: str, progress: Progress) -> None:
    """Show the last line of the log now and then, if there are new ones, until the run ends."""
    size = 0
    while wait([run], timeout=_SILENCE_S).not_done:
        if (now := log.stat().st_size) != size:
            size = now
            if line := _last_line(log, size):
                progress.say(f"{label}: {line}")


def _last_line(log: Path, size: int) -> str:
    """The last whole line that is not empty; tools that draw bars end their lines with a return."""
    with log.open("rb") as stream:
        stream.seek(max(0, size - _TAIL_BYTES))
        *lines, _ = re.split(rb"[\r\n]", stream.read(_TAIL_BYTES))
    said = next((line for line in reversed(lines) if line.strip()), b"")
    return said.decode("utf-8", "replace").strip()[:_SHOWN]


def _own_group() -> dict[str, Any]:
    """An interrupt in a terminal reaches the whole group; it is this process's to handle, which then ends the tool."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, gently first."""
    if sys.platform == "win32":
        process.kill()
    else:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            if _group_ends(process):
                break
    process.wait()


def _group_ends(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process and what it started end within the grace period."""
    limit = time.monotonic() + _GRACE_S
    while (alive := _group_lives(process)) and time.monotonic() < limit:
        time.sleep(0.02)
    return not alive


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is None:
        return True
    if sys.platform == "win32":
        return False
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
