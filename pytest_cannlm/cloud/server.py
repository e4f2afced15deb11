"""HTTP on the loopback interface: what is read is handed over whole, and the answer is sent as it comes back."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from typing import Any, NoReturn, Protocol, cast

from pytest_cannlm.cloud.questions import ApiError

LARGEST_BODY = 4 * 1024 * 1024
"""Bytes of a request's body that are read at most."""
_LONGEST_LINE = 65536
_MOST_TRAILERS = 100
_SILENCE_S = 30.0
"""How long a connection may keep a thread waiting."""
_POLL_S = 0.1
"""How long closing may wait for the thread that accepts connections."""
_END_S = 3.0
"""How long closing waits for all answers that are being made."""
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "POST", "PUT", "PATCH"})
_WITH_A_BODY = frozenset({"POST", "PUT", "PATCH"})
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,8}")


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request as it came."""

    method: str
    path: str
    """With its query; of what is no HTTP, the first line."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name; several of one name are joined by commas."""
    body: bytes = b""
    wrong: ApiError | None = None
    """Why it is not served as HTTP, whatever it asks."""


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """What goes back, and how."""

    status: int
    data: Any = None
    """The JSON; not of a stream."""
    events: Sequence[Any] | None = None
    """The JSON of every event of a stream, instead of ``data``."""
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    cut_after: int | None = None
    """Events after which the connection ends; ``data`` ends in its middle."""


class Backend(Protocol):
    """What is behind the server."""

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Called from the connection's own thread; what it remembers is remembered before the answer goes out."""


class CloudServer(ThreadingHTTPServer):
    """Serves one backend on a free port of 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 128

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
        """End every connection, and wait for their threads unless the backend keeps one; safe to call twice."""
        if self.closing.is_set():
            return
        self.closing.set()
        self.shutdown()
        self._accepting.join()
        for connection in self._connections.values():
            with suppress(OSError):  # it has gone by itself
                connection.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + _END_S
        for thread in self._connections:
            thread.join(max(0.0, until - time.monotonic()))
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = _SILENCE_S
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def handle_one_request(self) -> None:
        """Read a request, have it answered, send the answer."""
        try:
            request = self._read()
            if request is not None:
                self._send(cast("CloudServer", self.server).backend.answer(request))
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # nobody is there any more

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> NoReturn:
        """What the standard library calls where it finds no HTTP."""
        raise ApiError(400, f"This is no HTTP request that is served: {message or code}")

    def _read(self) -> HttpRequest | None:
        """The next request, with what is wrong with it; None where none comes."""
        self.command, self.path, self.requestline = "", "", ""
        self.headers = self.MessageClass()
        body, wrong = b"", None
        self.raw_requestline = self.rfile.readline(_LONGEST_LINE + 1)
        try:
            if len(self.raw_requestline) > _LONGEST_LINE:
                self.send_error(414, "the first line is too long")
            if not self.parse_request():
                self.close_connection = True
                return None
            if self.command not in _METHODS or not self.request_version.startswith("HTTP/1."):
                self.send_error(400, f"{self.command} in {self.request_version}")
            if self.headers.defects:
                self.send_error(400, "a header has no name")
            body = self._body()
        except ApiError as error:
            wrong = error
            self.close_connection = True  # there is no telling where a next request would begin
        return HttpRequest(
            method=self.command or "",
            path=self.path or self.requestline,
            headers={name.lower(): ", ".join(self.headers.get_all(name, ())) for name in self.headers},
            body=body,
            wrong=wrong,
        )

    def _body(self) -> bytes:
        lengths = self.headers.get_all("Content-Length", [])
        codings = self.headers.get_all("Transfer-Encoding", [])
        if len(lengths) + len(codings) > 1:
            raise ApiError(400, "There is more than one word on how long the body is.")
        if codings:
            if codings[0].strip().lower() != "chunked":
                raise ApiError(400, "Of all transfer encodings only chunked is served.")
            return self._chunks()
        if not lengths:
            if self.command in _WITH_A_BODY:
                raise ApiError(411, f"A {self.command} needs a Content-Length, or comes in chunks.")
            return b""
        length = lengths[0].strip()
        if not (length.isascii() and length.isdecimal()):
            raise ApiError(400, "Content-Length is not a number.")
        return self._exactly(int(length) if len(length) <= 12 else LARGEST_BODY + 1)

    def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = self._line().partition(b";")[0].strip()
            if _CHUNK_SIZE.fullmatch(size) is None:
                raise ApiError(400, "The size of a chunk is not a number.")
            if int(size, 16) == 0:
                break
            body += self._exactly(int(size, 16), before=len(body))
            if self._line():
                raise ApiError(400, "A chunk does not end where it says.")
        for _ in range(_MOST_TRAILERS):
            if not self._line():
                return bytes(body)
        raise ApiError(400, "There are too many trailers.")

    def _line(self) -> bytes:
        line = self.rfile.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise ApiError(400, "A line is too long.")
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the client left before its request was whole")
        return line.rstrip(b"\r\n")

    def _exactly(self, length: int, *, before: int = 0) -> bytes:
        if before + length > LARGEST_BODY:
            raise ApiError(413, f"The body is larger than {LARGEST_BODY} bytes.")
        data = self.rfile.read(length)
        if len(data) < length:
            raise ConnectionAbortedError("the client left before its request was whole")
        return data

    def _pause(self, seconds: float) -> bool:
        """Wait; False if the server closes meanwhile."""
        closing = bool(seconds) and cast("CloudServer", self.server).closing.wait(seconds)
        self.close_connection |= closing
        return not closing

    def _send(self, answer: HttpAnswer) -> None:
        if not self._pause(answer.delay_s):
            return
        if answer.events is not None:
            self._stream(answer, answer.events)
            return
        payload, cut = dumps(answer.data).encode(), answer.cut_after is not None
        self._head(answer.status, "application/json", {"Content-Length": str(len(payload))}, last=cut)
        if self.command != "HEAD":
            self.wfile.write(payload[: len(payload) // 2] if cut else payload)

    def _stream(self, answer: HttpAnswer, events: Sequence[Any]) -> None:
        """Server-sent events, in chunks of HTTP/1.1; an older client reads until the connection ends."""
        chunked = self.request_version != "HTTP/1.0"
        form = {"Transfer-Encoding": "chunked"} if chunked else {}
        self._head(answer.status, "text/event-stream", form, last=not chunked or answer.cut_after is not None)
        for place, line in enumerate([*map(dumps, events), "[DONE]"]):
            if place == answer.cut_after or not self._pause(answer.chunk_delay_s):
                return
            data = f"data: {line}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, form: str, headers: Mapping[str, str], *, last: bool) -> None:
        """Written here: the standard library leaves it out where it could not read the version of HTTP."""
        self.close_connection |= last
        ends = {"Connection": "close"} if self.close_connection else {}
        lines = [f"HTTP/1.1 {status} {responses.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in {"Content-Type": form, **headers, **ends}.items()]
        self.wfile.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
