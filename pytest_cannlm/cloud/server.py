"""HTTP on the loopback interface: every request gets an answer in the API's own form, malformed ones too."""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, cast

from pytest_cannlm.cloud.answers import Completion
from pytest_cannlm.cloud.questions import ApiError
from pytest_cannlm.cloud.script import Script

LARGEST_BODY = 4 * 1024 * 1024
"""Bytes of a request's body that are read at most."""
_SILENCE_S = 30.0
"""How long a connection may keep a thread waiting."""
_POLL_S = 0.1
"""How long closing may wait for the thread that accepts connections."""


class Backend(Protocol):
    """What is behind the server."""

    def authorize(self, authorization: str) -> None:
        """Raise :class:`ApiError` unless the header holds the key."""

    def answer(self, path: str, body: Any) -> Completion | dict[str, Any]:
        """What a request whose key is right gets; raises :class:`ApiError`."""

    def record(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, status: int, answer: Completion | None
    ) -> None:
        """Remember a request, before its answer goes out."""

    @property
    def script(self) -> Script:
        """How to answer now."""


class CloudServer(ThreadingHTTPServer):
    """Serves one backend on a free port of 127.0.0.1; :meth:`close` leaves no thread behind."""

    daemon_threads = True
    routes: Mapping[str, str] = {
        "/v1/chat/completions": "POST",
        "/v1/completions": "POST",
        "/v1/models": "GET",
    }

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.closing = threading.Event()
        self._connections: dict[threading.Thread, Any] = {}
        super().__init__(("127.0.0.1", 0), _Handler)
        self._accepting = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name="cloud_llm", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind without asking the name service who 127.0.0.1 is, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread that is remembered, so that both can be ended."""
        self._connections = {thread: open_ for thread, open_ in self._connections.items() if thread.is_alive()}
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="cloud_llm request", daemon=True
        )
        self._connections[thread] = request
        thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left in the middle is no news; every other failure has been answered."""

    def close(self) -> None:
        """End every connection and wait for their threads; safe to call twice."""
        if self.closing.is_set():
            return
        self.closing.set()
        self.shutdown()
        self._accepting.join()
        for thread, connection in self._connections.items():
            with suppress(OSError):  # it has gone by itself
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "cloud_llm"
    sys_version = ""
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = 0

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: requests are recorded."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no HTTP is answered with 400 in JSON; there is no telling where a next request would begin."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or ""
        self.request_version = "HTTP/1.1"  # whatever it said it was, it gets headers
        refused = ApiError(400, f"This is no HTTP request that is served: {message or code}")
        self._cloud.backend.record(self.command, getattr(self, "path", self.requestline), {}, b"", refused.status, None)
        with suppress(ConnectionError, TimeoutError):
            self._send_json(refused.status, refused.as_dict())

    @property
    def _cloud(self) -> CloudServer:
        return cast("CloudServer", self.server)

    def _serve(self) -> None:
        """Answer one request, recorded before the first byte goes out: no client is ahead of the record."""
        backend, body = self._cloud.backend, b""
        script = backend.script
        completion: Completion | None = None
        try:
            body = self._read_body()
            found = self._answer(body)
            completion, status, data = (
                (found, 200, found.whole()) if isinstance(found, Completion) else (None, 200, found)
            )
        except ApiError as error:
            status, data = error.status, error.as_dict()
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # nobody is there any more
            return
        backend.record(self.command, self.path, dict(self.headers.items()), body, status, completion)
        with suppress(ConnectionError, TimeoutError):
            if not self._pause(script.delay_s):
                return
            if completion is not None and completion.question.stream:
                self._stream(completion, script)
            else:
                self._send_json(status, data, cut=completion is not None and script.cut_after is not None)

    def _answer(self, body: bytes) -> Completion | dict[str, Any]:
        path = self.path.partition("?")[0].rstrip("/")
        method = self._cloud.routes.get(path)
        if method is None:
            raise ApiError(404, f"Unknown request URL: {self.command} {path}", code="unknown_url")
        if method != self.command:
            raise ApiError(405, f"Not allowed to {self.command} on {path}.", code="method_not_supported")
        self._cloud.backend.authorize(self.headers.get("Authorization", ""))
        if method == "GET":
            return self._cloud.backend.answer(path, None)
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise ApiError(400, "The body of your request is not valid JSON.") from None
        return self._cloud.backend.answer(path, parsed)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise ApiError(411, "A request is read by its Content-Length only.")
        said = self.headers.get("Content-Length", "0")
        if not (said.isascii() and said.isdecimal()):
            self.close_connection = True
            raise ApiError(400, "Content-Length is not a number.")
        if len(said) > 12 or int(said) > LARGEST_BODY:
            self.close_connection = True  # the body stays unread
            raise ApiError(413, f"The body is larger than {LARGEST_BODY} bytes.")
        body = self.rfile.read(int(said))
        if len(body) < int(said):
            raise ConnectionAbortedError("the client left before its request was whole")
        return body

    def _pause(self, seconds: float) -> bool:
        """Wait; False if the server closes meanwhile."""
        closing = bool(seconds) and self._cloud.closing.wait(seconds)
        self.close_connection |= closing
        return not closing

    def _send_json(self, status: int, data: Any, *, cut: bool = False) -> None:
        payload = json.dumps(data).encode()
        self._head(status, "application/json", {"Content-Length": str(len(payload))}, last=cut)
        if self.command != "HEAD":
            self.wfile.write(payload[: len(payload) // 2] if cut else payload)

    def _stream(self, completion: Completion, script: Script) -> None:
        """Server-sent events, in chunks of HTTP/1.1; an older client reads until the connection ends."""
        chunked = self.request_version != "HTTP/1.0"
        form = {"Transfer-Encoding": "chunked"} if chunked else {}
        self._head(200, "text/event-stream", form, last=not chunked or script.cut_after is not None)
        lines = [json.dumps(event) for event in completion.events()]
        for place, line in enumerate([*lines, "[DONE]"]):
            if place == script.cut_after or not self._pause(script.chunk_delay_s):
                return
            data = f"data: {line}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, form: str, headers: Mapping[str, str], *, last: bool) -> None:
        self.close_connection |= last
        self.send_response(status)
        for name, value in {"Content-Type": form, **headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()


def same_key(authorization: str, key: str) -> bool:
    """Whether an ``Authorization`` header holds the key."""
    return hmac.compare_digest(authorization.encode("utf-8", "replace"), f"Bearer {key}".encode())
