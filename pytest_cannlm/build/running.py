"""Run one of the vendor's tools: its output kept as it comes, its last line shown, and no process of it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.progress import Progress

_SILENCE_S = 5.0
_GRACE_S = 5.0
_SHOWN = 120


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
    end) ends its whole process group.

    Raises:
        EnvironmentFailure: it cannot be started, or ran longer than ``time_limit_s`` seconds (code TOOL_TIMEOUT).
    """
    began, clock, expired = time.time(), time.monotonic(), threading.Event()
    try:
        with log.open("wb") as kept, progress.task(label) as task:
            process = subprocess.Popen(
                [str(argument) for argument in arguments],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **_own_group(),
            )

            def expire() -> None:
                expired.set()
                _end(process)

            timer = threading.Timer(time_limit_s, expire)
            timer.daemon = True
            timer.start()
            assert process.stdout is not None
            try:
                _keep(process.stdout, kept, label=label, progress=progress)
                status = process.wait()
                task.note(f"ended with status {status}")
            finally:
                timer.cancel()
                _end(process)
                process.stdout.close()
            if expired.is_set():
                raise EnvironmentFailure(
                    "the tool was ended because it took too long",
                    file=log,
                    found=f"no end after {time_limit_s:g} s",
                    remedy="Look at the end of its log; a larger machine or a smaller model may be needed",
                    code="TOOL_TIMEOUT",
                )
    except OSError as error:
        raise EnvironmentFailure(
            "the tool cannot be started",
            file=arguments[0],
            found=error.strerror or error,
            remedy="The vendor's tools are for 64-bit Linux",
            code="TOOL_NOT_STARTED",
        ) from error
    return ToolRun(status, began, time.monotonic() - clock, log)


def _keep(output: Any, kept: BinaryIO, *, label: str, progress: Progress) -> None:
    """Copy the output and show a line of it now and then; tools that draw bars end their lines with a return."""
    spoke, rest = time.monotonic(), b""
    while piece := output.read1(1 << 16):
        kept.write(piece)
        kept.flush()
        *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
        rest = rest[-_SHOWN:]
        said = next((line for line in reversed(lines) if line.strip()), b"")
        if said and time.monotonic() - spoke > _SILENCE_S:
            spoke = time.monotonic()
            progress.say(f"{label}: {said.decode('utf-8', 'replace').strip()[:_SHOWN]}")


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
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    process.wait()
