"""What a scripted endpoint does with the next request, and what it remembers of one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_REPLY = "This is the cloud's answer."


@dataclass(frozen=True, kw_only=True)
class CloudRequest:
    """One request that reached the endpoint. No key is part of it, wherever the client put it."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name; what authorizes is ``***``."""
    body: Any = None
    """The JSON that came, else the text; None without a body."""
    texts: tuple[str, ...] = ()
    """What was asked: the content of every message, or the prompt; empty where nothing could be understood."""
    at: datetime.datetime
    """When it came, UTC."""
    status: int
    """The HTTP status that it got; a stream that is cut off later has had its 200."""
    answer: str | None = None
    """The text that it got, or would have got if the answer was not cut or came too late."""
    model: str | None = None
    """The model name under which that text was answered."""

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

    @property
    def disturbs(self) -> bool:
        """Whether an app that does everything right may fail with this."""
        return self != Script(reply=self.reply)
