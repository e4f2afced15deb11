"""A scripted cloud endpoint: OpenAI's API on the loopback interface, with a key of its own and a memory of requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_cannlm.cloud.backend import ScriptedBackend
from pytest_cannlm.cloud.script import CloudRequest, Reply, Script
from pytest_cannlm.cloud.secret import Secret
from pytest_cannlm.cloud.server import CloudServer
from pytest_cannlm.errors import UsageError

MODEL = "cloud-test-model"


class CloudEndpoint:
    """An endpoint that answers as it was told and remembers what reached it.

    It listens on a free port from the start until :meth:`close`. Several scripts add up: ``slow`` and ``answer_as``
    hold at the same time; :meth:`reset` forgets scripts and requests.
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
        """What reached the endpoint since the test began, in order."""
        return tuple(self._backend.requests)

    @property
    def script(self) -> Script:
        """How the endpoint answers now."""
        return self._backend.script

    def _add(self, **what: Any) -> None:
        self._backend.script = replace(self._backend.script, **what)

    def environment(self) -> dict[str, str]:
        """The variables from which an app knows the endpoint. The key is among them, in the clear."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": str(self.api_key), "OPENAI_MODEL": self.model}

    def reply(self, reply: Reply) -> None:
        """Answer with this text, or with what this callable makes of the request."""
        if not isinstance(reply, str) and not callable(reply):
            raise UsageError("reply takes a text or a callable", found=repr(reply))
        self._add(reply=reply)

    def fail(self, status: int, message: str | None = None) -> None:
        """Answer with this HTTP status, 400 to 599, and an error in OpenAI's form: 401, 404, 429, 500, 503, …"""
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise UsageError("fail takes an HTTP status of an error", found=repr(status), expected="400 to 599")
        self._add(fail=(status, message or f"Scripted failure {status}."))

    def slow(self, seconds: float = 0.0, *, per_chunk: float = 0.0) -> None:
        """Wait before the first byte, and before each piece of a stream."""
        if seconds < 0 or per_chunk < 0 or seconds + per_chunk == 0:
            raise UsageError("slow takes seconds above 0", found=f"seconds={seconds}, per_chunk={per_chunk}")
        self._add(delay_s=seconds, chunk_delay_s=per_chunk)

    def cut(self, after_chunks: int = 1) -> None:
        """End the connection after so many pieces of a stream, or in the middle of an answer that is not streamed."""
        if isinstance(after_chunks, bool) or not isinstance(after_chunks, int) or after_chunks < 0:
            raise UsageError("cut takes a whole number of pieces", found=repr(after_chunks))
        self._add(cut_after=after_chunks)

    def answer_as(self, model: str) -> None:
        """Answer under another model's name, whatever was asked for."""
        self._add(answer_as=model)

    def reset(self) -> None:
        """Forget every script and every request."""
        self._backend.script = Script()
        self._backend.requests.clear()

    def close(self) -> None:
        """Stop; safe to call twice."""
        self._server.close()
