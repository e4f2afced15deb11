"""One question to an OpenAI-compatible endpoint, over a stream, so that an answer that was cut off is noticed."""

from __future__ import annotations

import ipaddress
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from pytest_cannlm.cloud.secret import Secret
from pytest_cannlm.errors import CloudError, UsageError

if TYPE_CHECKING:
    import httpx

_SNAPSHOT = re.compile(r"-\d{4}-?\d{2}-?\d{2}")
"""What an endpoint may add to the name that was asked for: the date of the model's snapshot."""
_MOST_SAID = 300
_LONGEST_S = 86400.0
_LARGEST_ANSWER = 16 * 1024 * 1024
"""Characters of an answer, with the form around its text."""
_LARGEST_ERROR = 64 * 1024
_REASONS = {
    401: "CLOUD_KEY_REFUSED",
    403: "CLOUD_KEY_REFUSED",
    404: "CLOUD_MODEL_UNKNOWN",
    429: "CLOUD_BUSY",
}


@dataclass(frozen=True)
class CloudAnswer:
    """What the endpoint answered."""

    text: str
    model: str
    """The name that the endpoint itself gave."""
    finish: str
    """``stop``, ``length``, or another reason of the endpoint's own."""


@dataclass(frozen=True, kw_only=True)
class CloudModel:
    """A model at an endpoint."""

    base_url: str
    """Up to and with ``/v1``; HTTPS, unless it leads to the loopback interface."""
    key: Secret
    model: str
    timeout_s: float = 60.0
    """Most seconds for the whole answer, from the look-up of the host's name to the last byte."""

    def __post_init__(self) -> None:
        """Refuse what could not be sent, without showing the key."""
        url = _split(self.base_url)
        if url is None:
            raise UsageError("the base URL of the cloud endpoint is none", expected="https://HOST/v1")
        if url.scheme != "https" and not _is_loopback(url):
            raise UsageError(
                "the key and the prompt would be sent in the clear",
                found=f"http to {self.host}",
                expected="https, or http to the loopback interface",
            )
        if not self.key.isascii() or not self.key.isprintable() or " " in self.key:
            raise UsageError(
                "the key of the cloud endpoint cannot be sent: it has characters that a header cannot hold"
            )
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise UsageError(
                "the time limit is none", found=self.timeout_s, expected=f"seconds, at most {_LONGEST_S:g}"
            )
        object.__setattr__(self, "key", Secret(self.key))  # a plain text given as the key would be shown

    def __repr__(self) -> str:
        return f"CloudModel({self.model!r} at {self.host!r}, timeout_s={self.timeout_s!r})"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, timeout_s: float = 60.0) -> CloudModel:
        """The endpoint that ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL`` name.

        :raises UsageError: one of them is missing or is no URL or no key.
        """
        names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
        missing = [name for name in names if not environment.get(name, "").strip()]
        if missing:
            raise UsageError(
                "the cloud endpoint is not named", found=f"no {', no '.join(missing)}", expected=", ".join(names)
            )
        url, key, model = (environment[name].strip() for name in names)
        return cls(base_url=url, key=Secret(key), model=model, timeout_s=timeout_s)

    @property
    def host(self) -> str:
        """Host and port, without a user name or password that the URL may hold."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    def ask(self, prompt: str) -> CloudAnswer:
        """The answer to ``prompt``.

        :raises CloudError: not reached, out of time, refused, cut off, or answered by another model.
        """
        import httpx

        failure: CloudError
        answered: Future[CloudAnswer] = Future()
        # A thread, because nothing else is in time at every stage: a look-up of a name, headers that drip. One that is
        # late ends by itself, as soon as its connection is silent for that time or shows a piece of the body.
        threading.Thread(target=self._answer_into, args=(answered, prompt), name="cloud answer", daemon=True).start()
        try:
            return answered.result(self.timeout_s)
        except CloudError as error:
            failure = error
        except (TimeoutError, httpx.TimeoutException):
            failure = self._out_of_time()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            code = "CLOUD_CUT" if isinstance(error, httpx.RemoteProtocolError) else "CLOUD_UNREACHABLE"
            failure = self._failed("broke the connection" if code == "CLOUD_CUT" else "cannot be reached", code, error)
        # raised here, so that no frame of the HTTP library, which holds the key, is part of the traceback
        raise failure.with_traceback(None) from None

    def _answer_into(self, answered: Future[CloudAnswer], prompt: str) -> None:
        try:
            answered.set_result(self._stream(prompt))
        except BaseException as error:  # raised where the answer is waited for
            answered.set_exception(error)

    def _stream(self, prompt: str) -> CloudAnswer:
        import httpx

        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "stream": True}
        deadline = time.monotonic() + self.timeout_s
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        remote = not _is_loopback(urlsplit(self.base_url))  # no proxy ever sees the loopback interface
        with httpx.stream(
            "POST", url, json=body, auth=self._authorize, timeout=self.timeout_s, trust_env=remote
        ) as response:
            received = self._received(response, deadline)
            if response.status_code != httpx.codes.OK:
                raise self._refused(response.status_code, received)
            return self._collected(self._events(received))

    def _authorize(self, request: httpx.Request) -> httpx.Request:
        """As a function of the request: the key stands in no local variable on the way there."""
        request.headers["Authorization"] = f"Bearer {self.key}"
        return request

    def _received(self, response: httpx.Response, deadline: float) -> Iterator[str]:
        """The body as it comes, as long as there is time: when it is out, nobody waits for this thread any more."""
        for text in response.iter_text():
            if time.monotonic() > deadline:
                raise self._out_of_time()
            yield text

    def _lines(self, received: Iterator[str]) -> Iterator[str]:
        rest, size = "", 0
        for text in received:
            size += len(text)
            if size > _LARGEST_ANSWER:
                raise self._failed("does not end its answer", "CLOUD_CUT", f"more than {_LARGEST_ANSWER} characters")
            *lines, rest = (rest + text).split("\n")
            yield from lines
        yield rest

    def _events(self, received: Iterator[str]) -> Iterator[Mapping[str, Any]]:
        for line in self._lines(received):
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except (ValueError, RecursionError):
                raise self._failed("sent what is no answer", "CLOUD_CUT", data[:_MOST_SAID]) from None
            if not isinstance(event, Mapping) or event.get("error"):
                raise self._failed("broke off its answer", "CLOUD_CUT", event)
            yield event

    def _collected(self, events: Iterator[Mapping[str, Any]]) -> CloudAnswer:
        text, finish, model = "", None, None
        for event in events:
            model = event.get("model") or model
            if model is not None and not self._is_asked(model):
                raise self._failed("answered with another model", "CLOUD_OTHER_MODEL", model, expected=self.model)
            try:
                for choice in event.get("choices") or ():
                    text += (choice.get("delta") or {}).get("content") or ""
                    finish = choice.get("finish_reason") or finish
            except (AttributeError, TypeError):
                raise self._failed("sent what is no answer", "CLOUD_CUT", str(event)[:_MOST_SAID]) from None
        if finish is None or model is None:
            missing = "a model's name" if model is None else "a reason why it ended"
            raise self._failed("cut its answer off", "CLOUD_CUT", f"an answer without {missing}")
        return CloudAnswer(text, str(model), str(finish))

    def _is_asked(self, model: object) -> bool:
        name = str(model)
        return name == self.model or (
            name.startswith(self.model) and _SNAPSHOT.fullmatch(name, len(self.model)) is not None
        )

    def _refused(self, status: int, received: Iterator[str]) -> CloudError:
        text = ""
        while len(text) <= _LARGEST_ERROR and (more := next(received, "")):
            text += more
        try:
            said = json.loads(text)["error"]["message"]
        except (ValueError, RecursionError, KeyError, TypeError):
            said = text
        return self._failed(
            "refused the request", _REASONS.get(status, "CLOUD_FAILED"), f"HTTP {status}: {str(said)[:_MOST_SAID]}"
        )

    def _out_of_time(self) -> CloudError:
        return self._failed("did not answer in time", "CLOUD_TIMEOUT", f"no whole answer in {self.timeout_s:g} s")

    def _failed(self, what: str, code: str, found: object, *, expected: str | None = None) -> CloudError:
        shown = self.key.hidden_in(str(found)) or type(found).__name__
        return CloudError(f"the cloud endpoint {self.host} {what}", code=code, found=shown, expected=expected)


def _split(url: str) -> SplitResult | None:
    """The parts of a URL of HTTP; None where it is none."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:  # of an address or a port that is none
        return None


def _is_loopback(url: SplitResult) -> bool:
    try:
        return ipaddress.ip_address(url.hostname or "").is_loopback
    except ValueError:
        return url.hostname == "localhost"
