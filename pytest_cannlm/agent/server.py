"""The agent's wire: HTTP on the loopback interface, one secret per run, JSON in, JSON or a stream out.

The header ``X-Cannlm-Timeout`` carries the time limit of a call in seconds. An error is a JSON object whose ``error``
names the class (see ``wire``); within a stream it is the last line or frame. Every request gets an answer: what nobody
foresaw is an error of status 500, and its traceback goes to the agent's log.
"""

from __future__ import annotations

import hmac
import json
import math
import socket
import socketserver
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Union, cast

from pytest_cannlm.agent.frames import Frame, encode
from pytest_cannlm.agent.host import ListenerGoneError
from pytest_cannlm.agent.protocol import TIMEOUT_HEADER, GenerateRequest, TimingRequest, from_wire, to_wire
from pytest_cannlm.agent.supervisor import Supervisor
from pytest_cannlm.agent.wire import error_to_wire
from pytest_cannlm.errors import CannlmError, DeviceError, EngineError, GateRefusal, UsageError

_DEFAULT_TIMEOUT_S = 60.0
_LARGEST_BODY = 64 * 1024 * 1024
_STRANGER_S = 10.0
"""How long a connection that has not shown the secret may keep a thread waiting."""
_MOST_STRANGERS = 16
"""How many such connections there may be; one more ends the oldest, so that they cannot lock anybody out."""

Body = dict[str, Any]


class AgentServer(ThreadingHTTPServer):
    """Serves one supervisor on a free port of 127.0.0.1 to whoever knows the secret."""

    daemon_threads = True

    def __init__(self, supervisor: Supervisor, *, secret: str) -> None:
        self.supervisor = supervisor
        self.secret = secret
        self._strangers: dict[Any, None] = {}
        self._strangers_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without asking the name service who 127.0.0.1 is, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, and end the one that has waited longest if too many are strangers."""
        with self._strangers_lock:
            self._strangers[request] = None
            oldest = next(iter(self._strangers)) if len(self._strangers) > _MOST_STRANGERS else None
            self._strangers.pop(oldest, None)
        if oldest is not None:
            with suppress(OSError):  # it has just gone by itself
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        self.trust(request)
        super().shutdown_request(request)

    def trust(self, request: Any) -> None:
        """Take the connection off the list of strangers."""
        with self._strangers_lock:
            self._strangers.pop(request, None)

    def stop(self) -> None:
        """Make ``serve_forever`` return; from any thread."""
        threading.Thread(target=self.shutdown, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _STRANGER_S
    disable_nagle_algorithm = True
    wbufsize = 0

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is for failures."""

    @property
    def _supervisor(self) -> Supervisor:
        return cast("AgentServer", self.server).supervisor

    def _serve(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # a client that left needs no answer
            try:
                if not self._authorized():
                    self.close_connection = True  # the body stays unread
                    self._answer({"error": "Unauthorized"}, status=HTTPStatus.UNAUTHORIZED)
                    return
                cast("AgentServer", self.server).trust(self.connection)
                self.connection.settimeout(None)
                if "Transfer-Encoding" in self.headers:
                    self.close_connection = True
                    refused = UsageError("the agent reads a request by its Content-Length only")
                    self._answer(error_to_wire(refused), status=HTTPStatus.LENGTH_REQUIRED)
                    return
                route, body, timeout_s = self._read_request()
                result = route(self, body, timeout_s)
                if result is not _STREAMED:
                    self._answer(result)
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                ours = _as_ours(error)
                self._answer(error_to_wire(ours), status=_status_of(ours))

    def _authorized(self) -> bool:
        expected = f"Bearer {cast('AgentServer', self.server).secret}"
        return hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected.encode())

    def _read_request(self) -> tuple[_Route, Body, float]:
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= _LARGEST_BODY:
                raise ValueError(f"a body of {length} bytes; at most {_LARGEST_BODY} are read")
            body = json.loads(self.rfile.read(length)) if length else {}
            if not isinstance(body, dict):
                raise ValueError("the body must be a JSON object")
            timeout_s = float(self.headers.get(TIMEOUT_HEADER, _DEFAULT_TIMEOUT_S))
            if not 0 < timeout_s < math.inf:
                raise ValueError(f"{TIMEOUT_HEADER} must be positive and finite, not {timeout_s}")
        except (ValueError, RecursionError) as error:
            self.close_connection = True  # what is left of the body stays unread
            raise UsageError(f"the agent cannot read this request: {error}") from error
        route = _ROUTES.get((self.command, self.path))
        if route is None:
            served = ", ".join(f"{method} {path}" for method, path in _ROUTES)
            raise UsageError(f"the agent does not serve {self.command} {self.path}", expected=served)
        return route, body, timeout_s

    def _answer(self, data: Any, *, status: HTTPStatus = HTTPStatus.OK) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)

    def _stream(
        self,
        op: str,
        args: Body,
        timeout_s: float,
        *,
        content_type: str,
        line: Callable[[Frame], bytes],
        final: str,
    ) -> object:
        """Answer with every event of an operation as it comes, then its result as ``final`` or its error."""
        started = False

        def send(event: Frame) -> None:
            nonlocal started
            if not started:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", content_type)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                started = True
            data = line(event)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        try:
            send({final: self._supervisor.call(op, args, timeout_s=timeout_s, on_event=send)})
        except ListenerGoneError:
            self.close_connection = True
            return _STREAMED
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            if not started:
                raise
            send(error_to_wire(_as_ours(error)))
        self.wfile.write(b"0\r\n\r\n")
        return _STREAMED

    def _load(self, body: Body, timeout_s: float) -> Any:
        gate = _member(body, "gate", (dict, str))
        if isinstance(gate, str) and gate != "off":
            raise UsageError("the gate is off or has a target", field="gate", found=gate, expected='an object or "off"')
        return self._supervisor.load(
            _member(body, "package", str),
            manifest=_member(body, "manifest", (str, type(None)), otherwise=None),
            gate=None if gate == "off" else gate,
            options=_member(body, "options", dict, otherwise={}),
            timeout_s=timeout_s,
        )

    def _generate(self, body: Body, timeout_s: float) -> Any:
        return self._stream(
            "generate",
            _checked(GenerateRequest, body),
            timeout_s,
            content_type="application/x-ndjson",
            line=lambda event: json.dumps(event).encode() + b"\n",
            final="generation",
        )

    def _logits(self, body: Body, timeout_s: float) -> Any:
        args = {
            "tokens": _member(body, "tokens", list),
            "first": _member(body, "first", int, otherwise=0),
            "step": _member(body, "step", (int, type(None)), otherwise=None),
        }
        return self._stream(
            "logits", args, timeout_s, content_type="application/x-cannlm-frames", line=encode, final="end"
        )

    def _tokenize(self, body: Body, timeout_s: float) -> Any:
        args = {"text": _member(body, "text", str)}
        return {"tokens": self._supervisor.call("tokenize", args, timeout_s=timeout_s)}

    def _sample_times(self, body: Body, timeout_s: float) -> Any:
        return {"times": self._supervisor.call("sample_times", _checked(TimingRequest, body), timeout_s=timeout_s)}

    def _memory(self, body: Body, timeout_s: float) -> Any:
        return self._supervisor.call("memory", {}, timeout_s=timeout_s)

    def _reset(self, body: Body, timeout_s: float) -> Any:
        self._supervisor.call("reset", {}, timeout_s=timeout_s)
        return {}

    def _unload(self, body: Body, timeout_s: float) -> Any:
        return self._supervisor.unload(timeout_s=timeout_s)

    def _capabilities(self, body: Body, timeout_s: float) -> Any:
        return self._supervisor.capabilities(timeout_s=timeout_s)

    def _status(self, body: Body, timeout_s: float) -> Any:
        return to_wire(self._supervisor.status())

    def _shutdown(self, body: Body, timeout_s: float) -> Any:
        cast("AgentServer", self.server).stop()
        return {}


_STREAMED = object()
_REQUIRED = object()
_Route = Callable[[_Handler, Body, float], Union[Any, object]]

_ROUTES: dict[tuple[str, str], _Route] = {
    ("POST", "/v1/load"): _Handler._load,
    ("POST", "/v1/generate"): _Handler._generate,
    ("POST", "/v1/tokenize"): _Handler._tokenize,
    ("POST", "/v1/logits"): _Handler._logits,
    ("POST", "/v1/sample_times"): _Handler._sample_times,
    ("GET", "/v1/memory"): _Handler._memory,
    ("GET", "/v1/status"): _Handler._status,
    ("GET", "/v1/capabilities"): _Handler._capabilities,
    ("POST", "/v1/reset"): _Handler._reset,
    ("POST", "/v1/unload"): _Handler._unload,
    ("POST", "/v1/shutdown"): _Handler._shutdown,
}


def _member(body: Body, key: str, kind: type | tuple[type, ...], *, otherwise: Any = _REQUIRED) -> Any:
    """A member of the request by its JSON type; without ``otherwise`` it must be there."""
    value = body.get(key, otherwise)
    if value is _REQUIRED:
        raise UsageError(f"the request lacks {key!r}", field=key)
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(_JSON_NAMES[each] for each in kinds)
        raise UsageError(
            f"{key!r} of the request has the wrong type", field=key, found=repr(value)[:80], expected=expected
        )
    return value


_JSON_NAMES = {dict: "an object", str: "a text", int: "a whole number", list: "a list", type(None): "null"}


def _checked(cls: type[GenerateRequest] | type[TimingRequest], body: Body) -> Body:
    """The request that ``body`` is, checked before any engine sees it."""
    try:
        return cast("Body", to_wire(from_wire(cls, body)))
    except TypeError as error:
        raise UsageError(f"the request is not complete: {error}") from error


def _as_ours(error: Exception) -> CannlmError:
    """Any exception as an error of the project; the traceback of a foreign one goes to the agent's log."""
    if isinstance(error, CannlmError):
        return error
    traceback.print_exception(error)
    return CannlmError(f"the agent itself failed: {type(error).__name__}: {error}", code="AGENT_EXCEPTION")


def _status_of(error: CannlmError) -> HTTPStatus:
    if isinstance(error, UsageError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, GateRefusal):
        return HTTPStatus.CONFLICT
    if isinstance(error, DeviceError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.UNPROCESSABLE_ENTITY if isinstance(error, EngineError) else HTTPStatus.INTERNAL_SERVER_ERROR
