"""What a scripted endpoint does with the next request, and what it remembers of one."""

from __future__ import annotations

import datetime
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

DEFAULT_REPLY = "This is the cloud's answer."


@dataclass(frozen=True, kw_only=True)
class CloudRequest:
    """One request that reached the endpoint.

    No part of what came holds the endpoint's key: neither plain nor quoted for a URL, in hexadecimal, in base64 or with
    JSON's escapes. A key that the client changed in another way is not noticed.
    """

    method: str
    path: str
    """From ``/v1`` on, with the query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name; what authorizes is ``***``."""
    body: Any = None
    """The JSON that came, else the text; None without a body."""
    texts: tuple[str, ...] = ()
    """What was asked: the content of every message, or the prompt; empty where nothing could be understood."""
    at: datetime.datetime
    """When it came, UTC."""
    is_right: bool = False
    """Whether it asked for a text, well formed and with the right key, whatever the script made of that."""
    status: int | None = None
    """The HTTP status that it got, None as long as the answer is being made; a stream that is cut has had its 200."""
    answer: str | None = None
    """The text that it got, or would have got if the answer was not cut or came too late."""
    model: str | None = None
    """The model name under which that text was answered."""
    script_error: str | None = None
    """What the test's own ``reply`` raised for it; the client got status 500."""
    spoiled: Literal["failed", "cut", "renamed"] | None = None
    """What the script really did to the answer of a request that was right; None: it was answered, or was wrong."""
    takes_s: float = 0.0
    """Seconds that the script kept the answer back."""

    @property
    def asks(self) -> bool:
        """Whether it asked for a text, well or badly."""
        return self.method == "POST" and self.path.partition("?")[0].rstrip("/").endswith("/completions")


Reply = str | Callable[[CloudRequest], str]
"""A text, or what makes one of the request."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """How the endpoint answers."""

    reply: Reply = DEFAULT_REPLY
    fail: tuple[int, str] | None = None
    """HTTP status and message instead of an answer."""
    delay_s: float = 0.0
    """Before the first byte."""
    chunk_delay_s: float = 0.0
    """Before each piece of a stream."""
    cut_after: int | None = None
    """Pieces of a stream after which the connection ends; an answer that is not streamed ends in its middle."""
    answer_as: str | None = None
    """Another model's name for the answer."""


class Scripts:
    """What was scripted: for good, and for the next requests only."""

    def __init__(self) -> None:
        self._lasting = Script()
        self._next: dict[tuple[str, ...], deque[Mapping[str, Any]]] = {}
        self._lock = threading.Lock()

    def add(self, times: int | None, **what: Any) -> None:
        """Answer like this: ``times`` requests, behind those that were scripted so before; None: all that follow."""
        with self._lock:
            if times is None:
                self._lasting = replace(self._lasting, **what)
            else:
                self._next.setdefault(tuple(what), deque()).extend([what] * times)

    @property
    def now(self) -> Script:
        """How the next request is going to be answered."""
        script = self._lasting
        for waiting in self._next.values():
            script = replace(script, **(waiting[0] if waiting else {}))
        return script

    def take(self) -> Script:
        """How a request that came is answered."""
        with self._lock:
            script = self.now
            for waiting in self._next.values():
                if waiting:
                    waiting.popleft()
            return script
