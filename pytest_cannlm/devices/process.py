"""An agent on this machine, as a process that this one started and ends."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest_cannlm
from pytest_cannlm.agent.exits import describe_exit
from pytest_cannlm.agent.logtail import LogTail
from pytest_cannlm.errors import DeviceError

_START_S = 60.0
_STOP_S = 5.0


class AgentProcess:
    """A supervisor on a free port of the loopback interface. It ends when this process does, however that ends."""

    def __init__(self, *, chip: str, cann: str, engine: str, engine_options: Mapping[str, Any]) -> None:
        """Start it and wait until it serves; :class:`DeviceError` with its last lines if it does not."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest_cannlm.agent"),
                *("--chip", chip, "--cann", cann, "--engine", engine),
                *("--engine-options", json.dumps(dict(engine_options)), "--parent-pid", str(os.getpid())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            **_own_group(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._lifeline, self._stdout = self._process.stdin, self._process.stdout
        self._log = LogTail(self._process.stderr, name=f"agent {self._process.pid}")
        try:
            address = self._read_address()
        except BaseException:
            self.close()
            raise
        self.port: int = address["port"]
        self.token: str = address["token"]

    def why_lost(self) -> str | None:
        """How the process ended, with its last lines; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            # A connection breaks a moment before the process can be waited for.
            returncode = self._process.wait(0.5)
            return "; ".join([describe_exit(returncode), *self._log.lines(wait_s=0.5)])
        return None

    def close(self) -> None:
        """Close its lifeline and wait; if it does not end by itself, end it."""
        with suppress(OSError):
            self._lifeline.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._log.lines(wait_s=_STOP_S)  # its pipe is closed by the thread that reads it

    def _read_address(self) -> dict[str, Any]:
        timer = threading.Timer(_START_S, self._process.kill)
        timer.daemon = True
        timer.start()
        line = self._stdout.readline()
        timer.cancel()
        try:
            address: dict[str, Any] = json.loads(line)
        except ValueError:
            raise DeviceError(
                "the agent did not start", found=self.why_lost(), expected=f"its address within {_START_S:g} s"
            ) from None
        return address


def _own_group() -> dict[str, Any]:
    """Ctrl-C in a terminal reaches the whole group; it is this process's to handle, which then ends the agent."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _environment() -> dict[str, str]:
    """The environment in which the agent imports this very package, and nothing from the working directory."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    root = str(Path(pytest_cannlm.__file__).parents[1])
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [path for path in (environment.get("PYTHONPATH"), root) if path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
