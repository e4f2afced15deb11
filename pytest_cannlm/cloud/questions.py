"""Requests for a text, checked as OpenAI's API checks them (its reference of chat completions and completions).

What would change the form of the answer and is not served here is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_UNSERVED = ("tools", "functions", "logprobs", "audio", "echo", "suffix", "best_of")


class ApiError(Exception):
    """What the API answers instead of a text."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def as_dict(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = {429: "requests", 401: "authentication_error"}.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request that can be answered."""

    chat: bool
    """Whether it asks for a chat completion, else for a completion."""
    model: str
    texts: tuple[str, ...]
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None


def question_of(body: Any, *, chat: bool, model: str) -> Question:
    """The question in a request's JSON.

    :param model: the one model that is served.
    :raises ApiError: 400 for what is missing, wrong or not served; 404 for another model.
    """
    if not isinstance(body, Mapping):
        raise ApiError(400, "The body must be a JSON object.")
    asked = body.get("model")
    if not isinstance(asked, str) or not asked:
        raise ApiError(400, "You must provide a model parameter.", param="model")
    if asked != model:
        raise ApiError(404, f"The model {asked!r} does not exist.", code="model_not_found", param="model")
    texts = _messages(body.get("messages")) if chat else _prompt(body.get("prompt"))
    if body.get("n") not in (None, 1) or body.get("n") is True:
        raise ApiError(400, "Only n=1 is served here.", code="unsupported_value", param="n")
    for name in _UNSERVED:
        if body.get(name) not in (None, False, [], {}, ""):
            raise ApiError(400, f"{name} is not served here.", code="unsupported_parameter", param=name)
    form = body.get("response_format")
    if form is not None and form != {"type": "text"}:
        raise ApiError(400, "Only text is served here.", code="unsupported_value", param="response_format")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise ApiError(400, "stream must be true or false.", param="stream")
    return Question(
        chat=chat,
        model=asked,
        texts=texts,
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream=stream),
        max_tokens=_max_tokens(body),
    )


def texts_in(body: Any) -> tuple[str, ...]:
    """What a request asks, as far as it can be understood."""
    asked = body if isinstance(body, Mapping) else {}
    try:
        return _messages(asked["messages"]) if "messages" in asked else _prompt(asked.get("prompt"))
    except ApiError:
        return ()


def _messages(messages: Any) -> tuple[str, ...]:
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list that is not empty.", param="messages")
    texts: list[str] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            raise ApiError(400, f"{where} needs a role: {', '.join(_ROLES)}.", param=f"{where}.role")
        content = message.get("content")
        if content is None and message["role"] == "assistant":
            continue
        texts.append(_content(content, f"{where}.content"))
    return tuple(texts)


def _content(content: Any, where: str) -> str:
    """A text as it is, or the texts of a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise ApiError(400, f"{where} must be a text or a list of parts.", param=where)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{where} may have parts of type text only.", code="unsupported_value", param=where)
    return "".join(part["text"] for part in content)


def _prompt(prompt: Any) -> tuple[str, ...]:
    only = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    if not isinstance(only, str):
        raise ApiError(400, "prompt must be one text.", param="prompt")
    return (only,)


def _include_usage(options: Any, *, stream: bool) -> bool:
    if options is None:
        return False
    if not stream or not isinstance(options, Mapping):
        raise ApiError(400, "stream_options is an object, and goes with stream only.", param="stream_options")
    return options.get("include_usage") is True


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ApiError(400, f"{name} must be a whole number above 0.", param=name)
        return value
    return None
