"""A scripted cloud endpoint: OpenAI's API on the loopback interface, with a key of its own and a memory of requests."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from pytest_cannlm.cloud.backend import Memory, ScriptedBackend
from pytest_cannlm.cloud.script import CloudRequest, Reply, Script
from pytest_cannlm.cloud.secret import Secret
from pytest_cannlm.cloud.server import CloudServer
from pytest_cannlm.errors import UsageError

MODEL = "cloud-test-model"
_MOST_TIMES = 1000


class CloudRun:
    """One run of an app: an address of its own, so that what arrives there is known to be of this run."""

    def __init__(self, memory: Memory, environment: dict[str, str]) -> None:
        self._memory = memory
        self._environment = environment

    def environment(self) -> dict[str, str]:
        """The variables from which the app knows the endpoint. The key is among them, in the clear."""
        return dict(self._environment)

    @property
    def requests(self) -> tuple[CloudRequest, ...]:
        """What reached this run's address, in order; one that is not answered yet has no status."""
        return self._memory.requests

    def raise_script_error(self) -> None:
        """Raise what a callable of ``reply`` raised for this run; see :meth:`CloudEndpoint.raise_script_error`."""
        __tracebackhide__ = True
        self._memory.raise_script_error()


class CloudEndpoint:
    """An endpoint that answers as it was told and remembers what reached it.

    It listens on a free port from the start until :meth:`close`. Several scripts add up: ``slow`` and ``answer_as``
    hold at the same time, and each holds until :meth:`reset` unless it has ``times``.
    """

    def __init__(self, *, model: str = MODEL) -> None:
        self._backend = ScriptedBackend(model=model)
        self._server = CloudServer(self._backend)

    def __repr__(self) -> str:
        return f"<cloud endpoint {self.base_url}, {len(self.requests)} requests>"

    @property
    def model(self) -> str:
        """The one model that is served."""
        return self._backend.model

    @property
    def api_key(self) -> Secret:
        """Random for each endpoint; a text whose ``repr`` does not show it."""
        return self._backend.key

    @property
    def base_url(self) -> str:
        """What ``OPENAI_BASE_URL`` takes."""
        return f"http://127.0.0.1:{self._server.port}/v1"

    @property
    def requests(self) -> tuple[CloudRequest, ...]:
        """What reached the endpoint since the test began, in order, at whatever address."""
        return self._backend.memory.requests

    @property
    def script(self) -> Script:
        """How the endpoint is going to answer the next request."""
        return self._backend.scripts.now

    def environment(self) -> dict[str, str]:
        """The variables from which an app knows the endpoint. The key is among them, in the clear."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": str(self.api_key), "OPENAI_MODEL": self.model}

    @contextlib.contextmanager
    def run(self) -> Iterator[CloudRun]:
        """An address for one run of an app. What is asked there later is refused, and remembered nowhere."""
        prefix, memory = self._backend.begin_run()
        address = f"http://127.0.0.1:{self._server.port}{prefix}/v1"
        try:
            yield CloudRun(memory, {**self.environment(), "OPENAI_BASE_URL": address})
        finally:
            self._backend.end_run(prefix)

    def reply(self, reply: Reply, *, times: int | None = None) -> None:
        """Answer with this text, or with what this callable makes of the request.

        What the callable raises is answered with 500 and raised in the test: by the run of the app that asked, or
        at the end of the test's body. An assertion and an outcome of pytest come as they are.

        :param times: as many requests as this, then as scripted otherwise; None: all that follow. Scripts of one kind
            with ``times`` follow each other: ``fail(429, times=1)``, ``fail(500, times=1)``, then an answer.
        """
        if not isinstance(reply, str) and not callable(reply):
            raise UsageError("reply takes a text or a callable", found=repr(reply))
        self._add(times, reply=reply)

    def fail(self, status: int, message: str | None = None, *, times: int | None = None) -> None:
        """Answer with this HTTP status, 400 to 599, and an error in OpenAI's form: 401, 404, 429, 500, 503, …"""
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise UsageError("fail takes an HTTP status of an error", found=repr(status), expected="400 to 599")
        self._add(times, fail=(status, message or f"Scripted failure {status}."))

    def slow(self, seconds: float = 0.0, *, per_chunk: float = 0.0, times: int | None = None) -> None:
        """Wait before the first byte, and before each piece of a stream."""
        if not (_is_time(seconds) and _is_time(per_chunk)) or seconds + per_chunk == 0:
            raise UsageError("slow takes seconds above 0", found=f"seconds={seconds!r}, per_chunk={per_chunk!r}")
        self._add(times, delay_s=seconds, chunk_delay_s=per_chunk)

    def cut(self, after_chunks: int = 1, *, times: int | None = None) -> None:
        """End the connection after so many pieces of a stream, or in the middle of an answer that is not streamed.

        :param after_chunks: 0 ends a stream behind its headers.
        """
        if not _is_count(after_chunks, least=0):
            raise UsageError("cut takes a whole number of pieces", found=repr(after_chunks))
        self._add(times, cut_after=after_chunks)

    def answer_as(self, model: str, *, times: int | None = None) -> None:
        """Answer under another model's name, whatever was asked for."""
        if not isinstance(model, str) or not model.strip():
            raise UsageError("answer_as takes a model's name", found=repr(model))
        self._add(times, answer_as=model)

    def _add(self, times: int | None, **what: Any) -> None:
        if times is not None and not (_is_count(times) and times <= _MOST_TIMES):
            raise UsageError("times is a whole number of requests", found=repr(times), expected=f"1 to {_MOST_TIMES}")
        self._backend.scripts.add(times, **what)

    def reset(self) -> None:
        """Forget every script and every request."""
        self._backend.reset()

    def raise_script_error(self) -> None:
        """Raise what a callable of ``reply`` raised since the test began, unless it was raised already.

        :raises UsageError: it failed. Its assertions, and outcomes such as that of ``pytest.fail``, come as they are.
        """
        __tracebackhide__ = True
        self._backend.memory.raise_script_error()

    def close(self) -> None:
        """Stop; safe to call twice. A callable of ``reply`` that does not return is left behind with a warning."""
        self._server.close()
        for reply in self._backend.replying:
            warnings.warn(f"cloud_llm is closed, and {_named(reply)} is still making an answer", stacklevel=2)


def _named(reply: Callable[..., Any]) -> str:
    name, code = getattr(reply, "__qualname__", type(reply).__qualname__), getattr(reply, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _is_count(value: object, *, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
