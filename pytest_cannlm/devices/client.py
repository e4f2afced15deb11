"""The harness's side of the agent's wire: calls with deadlines, answers as dataclasses, failures as our errors."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cannlm.agent.frames import read_frame
from pytest_cannlm.agent.protocol import (
    TIMEOUT_HEADER,
    AgentStatus,
    Capabilities,
    GenerateRequest,
    Generation,
    LoadReport,
    Memory,
    Times,
    TimingRequest,
    TokenEvent,
    from_wire,
    to_wire,
)
from pytest_cannlm.agent.wire import error_from_wire
from pytest_cannlm.errors import CannlmError, DeviceError, GateRefusal, UsageError

if TYPE_CHECKING:
    import httpx
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.compat.gate import Target

LOAD_S = 600.0
"""Seconds that a load may take unless its caller says otherwise."""
_COMPUTE_S = 600.0
_QUICK_S = 60.0
_STATUS_S = 10.0
# The agent itself ends what takes too long; the client gives up only if the agent does not answer at all.
_MARGIN_S = 15.0


class AgentClient:
    """Talks to one agent. One call at a time reaches the engine; any number of clients may be open.

    Every method may raise :class:`DeviceError` (the agent is gone or does not answer), and those that reach the engine
    :class:`EngineError` with its subclasses :class:`EngineCrash` and :class:`EngineHang`. After a crash or a hang the
    next :meth:`load` starts a fresh engine. ``timeout_s`` limits the engine's work in seconds; waiting for another
    client's call to end may take as long again.
    """

    def __init__(self, *, port: int, token: str, why_lost: Callable[[], str | None] = lambda: None) -> None:
        """``why_lost`` says how the agent's process ended, where that can be known."""
        import httpx

        self._why_lost = why_lost
        # Proxies of the environment must never see the loopback interface.
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )

    def load(
        self,
        package: Path,
        *,
        manifest: Path | None = None,
        target: Target | None = None,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = LOAD_S,
    ) -> LoadReport:
        """Have the package judged against ``target`` and loaded; None switches the gate off.

        ``options`` go to the engine, over those of the device. ``details["gate"]`` of the report is the gate's decision
        as data, or ``"off"``. Raises :class:`GateRefusal` with its ``decision`` before any engine starts.
        """
        body = {
            "package": str(Path(package).resolve()),
            "manifest": None if manifest is None else str(Path(manifest).resolve()),
            "gate": "off" if target is None else asdict(target),
            "options": dict(options or {}),
        }
        try:
            return from_wire(LoadReport, self._call("POST", "/v1/load", body, timeout_s=timeout_s))
        except GateRefusal as refusal:
            refusal.decision = _rebuild_decision(refusal.decision)
            raise

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None] | None = None) -> Generation:
        """Run one generation within ``request.timeout_s``; ``on_token`` sees each token as it is produced.

        An exception of ``on_token`` goes through, and the engine is told to stop.
        """
        with self._stream("/v1/generate", to_wire(request), timeout_s=request.timeout_s) as response:
            for line in response.iter_lines():
                event = json.loads(line)
                if "error" in event:
                    raise error_from_wire(event)
                if "generation" in event:
                    return from_wire(Generation, event["generation"])
                if on_token is not None:
                    on_token(from_wire(TokenEvent, event["token"]))
        raise self._lost("the agent's answer ended in the middle of a generation")

    def tokenize(self, text: str, *, timeout_s: float = _QUICK_S) -> list[int]:
        """Ids that the engine would feed for ``text``."""
        tokens: list[int] = self._call("POST", "/v1/tokenize", {"text": text}, timeout_s=timeout_s)["tokens"]
        return tokens

    def logits(
        self, tokens: Sequence[int], first: int = 0, step: int | None = None, *, timeout_s: float = _COMPUTE_S
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits at positions ``first``.. of ``tokens``: float32 ``[len(tokens) - first, vocab]``.

        From ``first`` on ``step`` positions are fed at a time, by default those of a prefill step; 1 is decoding.
        :class:`UsageError` for what is no token id: nothing is rounded, and nothing counts from the end.
        """
        import numpy as np

        if not 0 <= first < len(tokens):
            raise UsageError("no such position", field="first", found=first, expected=f"0 to {len(tokens) - 1}")
        body = {"tokens": [_token_id(*each) for each in enumerate(tokens)], "first": first, "step": step}
        data = bytearray()
        with self._stream("/v1/logits", body, timeout_s=timeout_s) as response:
            frames = _Reader(response.iter_bytes())
            while (frame := read_frame(frames)) is not None:
                if isinstance(frame, bytes):
                    data += frame
                elif "error" in frame:
                    raise error_from_wire(frame)
                else:
                    rows = len(tokens) - first
                    if rows <= 0 or len(data) % (4 * rows) or not data:
                        raise DeviceError(
                            "the engine returned another amount of logits than was asked for",
                            found=f"{len(data)} bytes",
                            expected=f"{rows} rows of float32",
                        )
                    return np.frombuffer(data, dtype="<f4").reshape(rows, -1)
        raise self._lost("the agent's answer ended in the middle of the logits")

    def sample_times(self, request: TimingRequest, *, timeout_s: float = _QUICK_S) -> list[Times]:
        """Seeded times of ``request.repeats`` generations on a modelled engine; nothing is computed."""
        answer = self._call("POST", "/v1/sample_times", to_wire(request), timeout_s=timeout_s)
        return [from_wire(Times, times) for times in answer["times"]]

    def memory(self, *, timeout_s: float = _QUICK_S) -> Memory:
        """The engine's footprint now."""
        return from_wire(Memory, self._call("GET", "/v1/memory", timeout_s=timeout_s))

    def reset(self, *, timeout_s: float = _QUICK_S) -> None:
        """Forget contexts and cached prefixes, keep the model."""
        self._call("POST", "/v1/reset", {}, timeout_s=timeout_s)

    def unload(self, *, timeout_s: float = _QUICK_S) -> Memory:
        """Release the model; ``current`` of the answer is what is left over."""
        return from_wire(Memory, self._call("POST", "/v1/unload", {}, timeout_s=timeout_s))

    def capabilities(self, *, timeout_s: float = _QUICK_S) -> Capabilities:
        """What the engine can do; may be asked before anything is loaded (that starts its process)."""
        return from_wire(Capabilities, self._call("GET", "/v1/capabilities", timeout_s=timeout_s))

    def status(self, *, timeout_s: float = _STATUS_S) -> AgentStatus:
        """What the agent does; answered also while the engine is busy."""
        return from_wire(AgentStatus, self._call("GET", "/v1/status", timeout_s=timeout_s))

    def shutdown(self) -> None:
        """Ask the agent to end itself and its engine; an agent that is gone already is fine."""
        with suppress(DeviceError):
            self._call("POST", "/v1/shutdown", {}, timeout_s=_STATUS_S)
        self.close()

    def close(self) -> None:
        """Close the connection; the agent keeps running."""
        self._http.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> Any:
        with self._transport_errors(path):
            answer = self._http.request(method, path, json=body, **self._limits(timeout_s))
        return self._checked(answer.status_code, answer.content)

    @contextmanager
    def _stream(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Iterator[httpx.Response]:
        with (
            self._transport_errors(path),
            self._http.stream("POST", path, json=body, **self._limits(timeout_s)) as answer,
        ):
            if answer.status_code != 200:
                self._checked(answer.status_code, answer.read())
            yield answer

    def _limits(self, timeout_s: float) -> dict[str, Any]:
        return {"timeout": 2 * timeout_s + _MARGIN_S, "headers": {TIMEOUT_HEADER: repr(timeout_s)}}

    def _checked(self, status: int, content: bytes) -> Any:
        try:
            data = json.loads(content)
        except ValueError:
            raise DeviceError("the agent's answer is not JSON", found=content[:200], code=f"HTTP_{status}") from None
        if status == 401:
            raise DeviceError("the agent refused this client's secret", code="UNAUTHORIZED")
        if status != 200:
            raise error_from_wire(data)
        return data

    @contextmanager
    def _transport_errors(self, path: str) -> Iterator[None]:
        import httpx

        if self._http.is_closed:
            raise DeviceError("the connection to the agent was closed", remedy="Ask the device for its agent again")
        try:
            yield
        except httpx.TimeoutException as error:
            raise self._lost(f"the agent did not answer {path} within its time limit") from error
        except httpx.TransportError as error:
            raise self._lost(f"the connection to the agent broke during {path}") from error

    def _lost(self, message: str) -> CannlmError:
        ended = self._why_lost()
        return DeviceError(
            message,
            found=f"the agent ended: {ended}" if ended else None,
            code="AGENT_LOST",
            remedy="Open the device again" if ended else "The agent still runs; see what else uses the machine",
        )


def _token_id(position: int, token: Any) -> int:
    """A whole number of Python or numpy as a plain one."""
    try:
        number = -1 if isinstance(token, bool) else operator.index(token)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(
            "not the id of a token",
            field=f"tokens[{position}]",
            found=repr(token),
            expected="a whole number of at least 0",
        )
    return number


class _Reader:
    """``read(size)`` over an iterator of byte chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        """Exactly ``size`` bytes, fewer at the end."""
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0 and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            missing -= len(chunk)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


def _rebuild_decision(data: Any) -> Any:
    if data is None:
        return None
    from pytest_cannlm.compat.gate import Check, Decision

    return Decision(**{**data, "checks": tuple(Check(**check) for check in data["checks"])})
