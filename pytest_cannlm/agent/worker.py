"""The process that holds one engine: takes requests from its standard input one at a time and answers with frames.

Everything that an engine prints goes to standard error, which the supervisor keeps as the engine's log. The process
ends when its standard input ends, whatever the engine is doing: an engine never outlives its supervisor.
"""

from __future__ import annotations

import faulthandler
import io
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from pytest_cannlm.agent.codes import explained
from pytest_cannlm.agent.engines import create_engine
from pytest_cannlm.agent.frames import Frame, encode, read_frame
from pytest_cannlm.agent.protocol import Engine, GenerateRequest, TimingRequest, TokenEvent, from_wire, to_wire
from pytest_cannlm.agent.wire import add_note, error_to_wire
from pytest_cannlm.errors import CannlmError, EngineError

# Asks a worker that hangs to print where; its handler needs no interpreter, so it works inside a stuck native call too.
DUMP_SIGNAL: signal.Signals | None = getattr(signal, "SIGUSR1", None)


class Worker:
    """Serves one engine over a pair of byte streams."""

    def __init__(self, engine: str, *, requests: BinaryIO, replies: BinaryIO) -> None:
        self._engine_name = engine
        self._engine: Engine | None = None
        self._requests, self._replies = requests, replies
        self._waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._sending = threading.Lock()  # an engine may report tokens from a thread of its own
        self._operations: dict[str, Callable[[dict[str, Any]], Any]] = {
            "load": self._load,
            "generate": self._generate,
            "tokenize": lambda args: self._made().tokenize(args["text"]),
            "logits": self._logits,
            "sample_times": self._sample_times,
            "memory": lambda args: to_wire(self._made().memory()),
            "reset": lambda args: self._made().reset(),
            "unload": lambda args: to_wire(self._made().unload()),
            "capabilities": lambda args: to_wire(self._made().capabilities()),
        }

    def run(self) -> None:
        """Serve until the process ends."""
        threading.Thread(target=self._listen, name="requests", daemon=True).start()
        while True:
            self._answer(self._waiting.get())

    def _listen(self) -> None:
        while (frame := read_frame(self._requests)) is not None:
            request = cast("dict[str, Any]", frame)
            if request["op"] == "cancel":
                self._cancelled.set()
            else:
                self._waiting.put(request)
        # The supervisor closed its end or is gone. The engine may be busy, hang, or hold threads: do not wait for it.
        os._exit(0)

    def _answer(self, request: dict[str, Any]) -> None:
        op: str = request["op"]
        self._cancelled.clear()
        try:
            self._send({"result": self._operations[op](request["args"])})
        except Exception as error:
            self._send({"error": error_to_wire(_as_ours(error, op))})
            if op == "load":
                self._clean_up_after_failed_load()

    def _clean_up_after_failed_load(self) -> None:
        """Release what a failed load left. It comes after the load's error was sent, so that it cannot hide it."""
        try:
            if self._engine is not None:
                self._engine.unload()
        except Exception as error:
            self._send({"note": f"cleaning up after the failed load failed too: {type(error).__name__}: {error}"})
        sys.stderr.flush()
        os._exit(0)

    def _made(self) -> Engine:
        if self._engine is None:
            self._engine = create_engine(self._engine_name)
        return self._engine

    def _load(self, args: dict[str, Any]) -> Any:
        return to_wire(self._made().load(args["package"], args["options"]))

    def _generate(self, args: dict[str, Any]) -> Any:
        return to_wire(self._made().generate(from_wire(GenerateRequest, args), self._report_token))

    def _report_token(self, event: TokenEvent) -> None:
        if self._cancelled.is_set():
            raise EngineError("the generation was cancelled: nobody listens to it any more", code="CANCELLED")
        self._send({"token": to_wire(event)})

    def _logits(self, args: dict[str, Any]) -> Any:
        sent = 0
        for chunk in self._made().logits(args["tokens"], args["first"], args.get("step")):
            if self._cancelled.is_set():
                raise EngineError("the logits were cancelled: nobody listens to them any more", code="CANCELLED")
            self._send(bytes(chunk))
            sent += len(chunk)
        return {"bytes": sent}

    def _sample_times(self, args: dict[str, Any]) -> Any:
        return [to_wire(times) for times in self._made().sample_times(from_wire(TimingRequest, args))]

    def _send(self, frame: Frame) -> None:
        data = encode(frame)
        with self._sending:
            self._replies.write(data)


def _as_ours(error: Exception, op: str) -> CannlmError:
    """Any exception of an engine as an error of the project; a foreign one keeps its traceback as a note."""
    if isinstance(error, EngineError):
        return explained(error)
    if isinstance(error, CannlmError):
        return error
    if isinstance(error, MemoryError):
        ours = EngineError(
            f"the engine ran out of memory during {op}",
            code="OUT_OF_MEMORY",
            found=str(error) or None,
            remedy="Use a shorter context, a smaller scheme or a device with more memory",
        )
    else:
        ours = EngineError(f"the engine raised {type(error).__name__} during {op}: {error}", code="ENGINE_EXCEPTION")
    add_note(ours, "In the engine's process:\n" + "".join(traceback.format_exception(error)).rstrip())
    return ours


def _take_over_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep both pipes for frames; what the engine reads and prints must not touch them."""
    requests = os.fdopen(os.dup(0), "rb")
    # Unbuffered, because an engine's own threads may write while the process dies: a frame is sent whole or not at all.
    replies = cast("BinaryIO", _WholeWriter(os.dup(1)))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is all that is wanted
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


class _WholeWriter(io.RawIOBase):
    """A descriptor whose ``write`` writes everything."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any, /) -> int:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(data)


def main(engine: str) -> None:
    """Run the worker on the process's standard streams; it returns only by ending the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle; it ends the agent in order
    requests, replies = _take_over_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # it is the log now: what was printed must survive a crash
    faulthandler.enable(all_threads=False)
    if DUMP_SIGNAL is not None:
        faulthandler.register(DUMP_SIGNAL, all_threads=True)
    Worker(engine, requests=requests, replies=replies).run()


if __name__ == "__main__":
    main(sys.argv[1])
