"""The supervisor's side of a worker process: start it, call it, and turn its death or silence into errors."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from pytest_cannlm.agent.exits import describe_exit
from pytest_cannlm.agent.frames import Frame, encode, read_frame
from pytest_cannlm.agent.logtail import LogTail, without_stack
from pytest_cannlm.agent.wire import error_from_wire
from pytest_cannlm.agent.worker import DUMP_SIGNAL
from pytest_cannlm.errors import EngineCrash, EngineHang
from pytest_cannlm.explain import likely_cause

# How long a worker gets to clean up after a failed load, and to stop a generation that nobody listens to.
GRACE_S = 5.0
# How long the last lines of a dead process may take to arrive.
_LOG_WAIT_S = 2.0
_DUMP_WAIT_S = 0.3


class ListenerGoneError(Exception):
    """Whoever listened to a stream went away before its end; the engine was stopped."""


class WorkerProcess:
    """One worker with one engine. Calls must not overlap; :meth:`kill` may come from any thread."""

    def __init__(self, engine: str, *, versions: Mapping[str, str]) -> None:
        self._versions = versions
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest_cannlm.agent.worker", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._log = LogTail(self._process.stderr, name=f"worker {self._process.pid}")
        self.called = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def call(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float,
        on_event: Callable[[Frame], None] | None = None,
    ) -> Any:
        """Run one operation of the engine and return its result; ``on_event`` gets every frame before it.

        Raises what the engine raised, :class:`EngineCrash` if the process died, :class:`EngineHang` if it took longer
        than ``timeout_s`` (it is dead then), and :class:`ListenerGoneError` if ``on_event`` raised OSError.
        """
        self.called = True
        gone = False
        with _Deadline(timeout_s, self._end_hanging) as deadline:
            answered, result = False, None
            self._send({"op": op, "args": dict(args)})
            while not answered and (frame := read_frame(self._replies)) is not None:
                if isinstance(frame, dict) and ("result" in frame or "error" in frame):
                    answered, result = True, frame
                elif on_event is not None and not gone:
                    try:
                        on_event(frame)
                    except OSError:
                        gone = True
                        deadline.shorten(GRACE_S)
                        self._send({"op": "cancel"})
        if deadline.passed or not answered:
            raise self._death(op, hung_s=timeout_s if deadline.passed else None)
        if gone:
            raise ListenerGoneError(op)
        assert isinstance(result, dict)
        if "error" in result:
            raise error_from_wire(result["error"])
        return result["result"]

    def notes_after_failed_load(self) -> list[str]:
        """What went wrong in the clean-up that a worker does after a failed load; the process has ended afterwards."""
        notes: list[str] = []
        with _Deadline(GRACE_S, self.kill) as deadline:
            while (frame := read_frame(self._replies)) is not None:
                if isinstance(frame, dict) and "note" in frame:
                    notes.append(str(frame["note"]))
        returncode = self._wait()
        if deadline.passed:
            notes.append(f"cleaning up after the failed load did not end within {GRACE_S:g} s")
        elif returncode != 0:
            notes.append(f"cleaning up after the failed load crashed: {describe_exit(returncode)}")
        return notes

    def death_before(self, op: str) -> EngineCrash:
        """The error for a worker that was found dead although nothing was asked of it."""
        return self._death(op, hung_s=None)

    def kill(self) -> None:
        """End the process now, if it still runs."""
        self._process.kill()

    def close(self) -> None:
        """End the process and give back what it held."""
        self.kill()
        self._wait()

    def _send(self, request: Mapping[str, Any]) -> None:
        with suppress(OSError):  # a dead worker shows at the end of its replies, with its exit status and its log
            self._requests.write(encode(dict(request)))
            self._requests.flush()

    def _end_hanging(self) -> None:
        if DUMP_SIGNAL is not None:
            self._process.send_signal(DUMP_SIGNAL)
            time.sleep(_DUMP_WAIT_S)
        self.kill()

    def _wait(self) -> int:
        try:
            returncode = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            returncode = self._process.wait()
        self._replies.close()
        with suppress(OSError):  # what was still buffered for a dead process
            self._requests.close()
        return returncode

    def _death(self, op: str, *, hung_s: float | None) -> EngineCrash:
        exit_text = describe_exit(self._wait())
        log = self._log.lines(wait_s=_LOG_WAIT_S)
        why = likely_cause(log, ended_by="no answer" if hung_s is not None else exit_text)
        cause = ": ".join([why.cause, *why.items[:1]]) if why and why.cause else None
        if hung_s is not None:
            return EngineHang(
                f"the engine hung during {op}: it did not finish within {hung_s:g} s and was ended",
                found="no answer",
                expected=f"an answer within {hung_s:g} s",
                cause=cause,
                remedy=why.next if why else "See below where it was" if log else None,
                log=log,
                versions=self._versions,
            )
        return EngineCrash(
            f"the engine crashed during {op}",
            found=exit_text,
            cause=cause,
            remedy=why.next if why else None,
            log=without_stack(log),
            versions=self._versions,
        )


class _Deadline:
    """Runs ``act`` on a thread if the block takes longer than ``seconds``; ``passed`` says whether it did."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.passed = False
        self._act = act
        self._over = False
        self._lock = threading.Lock()
        self._timer = self._make(seconds)

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()

    def shorten(self, seconds: float) -> None:
        """Allow only ``seconds`` from now on."""
        self._timer.cancel()
        self._timer = self._make(seconds)
        self._timer.start()

    def _make(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._expire)
        timer.daemon = True
        return timer

    def _expire(self) -> None:
        with self._lock:
            if not self._over:
                self.passed = True
                self._act()
