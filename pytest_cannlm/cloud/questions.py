"""Requests for a text, checked as OpenAI's API checks them (its reference of chat completions and completions).

What would change the form of the answer and is not served here is refused, never ignored, and so is a name that the API
does not know. What only steers how a model chooses its words (a temperature, a seed, an effort) is checked, and changes
nothing: the words are scripted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MOST_STOPS = 4


def _between(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: _is(int | float)(value) and math.isfinite(value) and least <= value <= most


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_STEERING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_between(0, 2), "a number from 0 to 2"),
    "top_p": (_between(0, 1), "a number from 0 to 1"),
    "presence_penalty": (_between(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_between(-2, 2), "a number from -2 to 2"),
    "seed": (_is(int), "a whole number"),
    "logit_bias": (_is(Mapping), "an object"),
    "metadata": (_is(Mapping), "an object"),
    "store": (_is(bool), "true or false"),
    **dict.fromkeys(
        (
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "service_tier",
            "reasoning_effort",
            "verbosity",
        ),
        (_is(str), "a text"),
    ),
}
"""What is checked and changes nothing: how a value is right, and how that is said."""
_UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (),
    "functions": ([],),
    "function_call": ("none",),
    "logprobs": (False,),
    "top_logprobs": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "n": (1,),
    "response_format": ({"type": "text"},),
}
"""What would change the form of the answer, with the values beside null that ask for no such change."""
_READ = frozenset({"model", "stream", "stream_options", "stop", "max_tokens"})
_READ_OF_CHAT = frozenset({"messages", "max_completion_tokens"})
_READ_OF_TEXT = frozenset({"prompt"})


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
    stop: tuple[str, ...] = ()
    """Where one of these texts begins, the answer ends."""


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
    _check_names(body, read=_READ | (_READ_OF_CHAT if chat else _READ_OF_TEXT))
    stream = False if body.get("stream") is None else body["stream"]
    if not isinstance(stream, bool):
        raise ApiError(400, "stream must be true or false.", param="stream")
    return Question(
        chat=chat,
        model=asked,
        texts=texts,
        stream=stream,
        include_usage=_include_usage(body.get("stream_options"), stream=stream),
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
    )


def texts_in(body: Any) -> tuple[str, ...]:
    """What a request asks, as far as it can be understood."""
    asked = body if isinstance(body, Mapping) else {}
    try:
        return _messages(asked["messages"]) if "messages" in asked else _prompt(asked.get("prompt"))
    except ApiError:
        return ()


def _check_names(body: Mapping[str, Any], *, read: frozenset[str]) -> None:
    """Refuse what is not served or not known, and what steers with a wrong value."""
    for name, value in body.items():
        if name in read:
            continue
        if name in _STEERING:
            is_right, form = _STEERING[name]
            if value is not None and not is_right(value):
                raise ApiError(400, f"{name} must be {form}.", code="invalid_value", param=name)
        elif name not in _UNSERVED:
            raise ApiError(400, f"Unrecognized request argument: {name}", code="unknown_parameter", param=name)
        elif value is not None and not any(value == plain and type(value) is type(plain) for plain in _UNSERVED[name]):
            raise ApiError(400, f"This {name} is not served here.", code="unsupported_value", param=name)


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


def _stop(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    few = isinstance(texts, list) and 1 <= len(texts) <= _MOST_STOPS
    if not few or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, f"stop must be a text, or a list of 1 to {_MOST_STOPS} texts.", param="stop")
    return tuple(texts)
