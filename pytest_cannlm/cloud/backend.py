"""What stands behind the server of a scripted endpoint: the key, the script, and the memory of requests."""

from __future__ import annotations

import datetime
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

from pytest_cannlm.cloud.answers import Completion
from pytest_cannlm.cloud.questions import ApiError, Question, question_of, texts_in
from pytest_cannlm.cloud.script import CloudRequest, Script, Scripts
from pytest_cannlm.cloud.secret import HIDDEN, Secret
from pytest_cannlm.cloud.server import HttpAnswer, HttpRequest
from pytest_cannlm.errors import UsageError

_AUTHORIZING = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_MODELS = "/v1/models"
_RUN = re.compile(r"/run-(\w+)(/.*)", re.ASCII | re.DOTALL)


class ScriptedReplyError(ApiError):
    """The callable of a scripted reply failed: the mistake is the test's, whatever the client makes of the answer."""


class ScriptedFailureError(ApiError):
    """What the script answers to a request that is right."""


@dataclass
class Entry:
    """One request that is remembered; its answer is added when there is one."""

    request: CloudRequest
    failure: BaseException | None = None
    """What the test has to be told of the callable that should have answered."""


class Memory:
    """What reached one address, in the order in which it came."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Remember one more."""
        self._entries.append(entry)

    @property
    def requests(self) -> tuple[CloudRequest, ...]:
        """As they are now."""
        return tuple(entry.request for entry in self._entries)

    def raise_script_error(self) -> None:
        """Raise what a callable raised in a thread of the endpoint, once."""
        __tracebackhide__ = True
        for entry in self._entries:
            failure, entry.failure = entry.failure, None
            if failure is not None:
                raise failure


class ScriptedBackend:
    """Answers by its script; the server calls it from threads of its own."""

    def __init__(self, *, model: str) -> None:
        self.model = model
        self.key = Secret(f"sk-test-{secrets.token_urlsafe(24)}")
        self.replying: list[Callable[[CloudRequest], str]] = []
        """Callables that are making an answer now."""
        self._runs: dict[str, Memory] = {}
        self.reset()

    def reset(self) -> None:
        """Forget scripts and requests; an answer that is still being made belongs to what is forgotten."""
        self.scripts = Scripts()
        self.memory = Memory()

    def begin_run(self) -> tuple[str, Memory]:
        """The beginning of the paths of one run of an app, and what reaches them."""
        name = secrets.token_hex(8)
        self._runs[name] = Memory()
        return f"/run-{name}", self._runs[name]

    def end_run(self, prefix: str) -> None:
        """From now on its paths lead nowhere."""
        del self._runs[prefix.removeprefix("/run-")]

    def answer(self, http: HttpRequest) -> HttpAnswer:
        """Record the request, decide what it gets, complete the record."""
        found = _RUN.fullmatch(http.path)
        run, path = (self._runs.get(found[1]), found[2]) if found else (None, http.path)
        if found and run is None:
            gone = ApiError(404, "This address was that of one run of an app, which has ended.", code="run_ended")
            return HttpAnswer(status=gone.status, data=gone.as_dict())
        body = _parsed(http.body)
        understood = self._understood(http, path, body)
        entry = Entry(self._recorded(http, path, body, is_right=isinstance(understood, Question)))
        self.memory.add(entry)
        if run is not None:
            run.add(entry)
        script = self.scripts.take() if http.wrong is None else Script()
        answer = self._decided(understood, script, entry)
        sent = _sent(answer, script)
        entry.request = replace(
            entry.request,
            status=sent.status,
            answer=answer.text if isinstance(answer, Completion) else None,
            model=answer.model if isinstance(answer, Completion) else None,
            script_error=self.key.hidden_in(answer.message) if isinstance(answer, ScriptedReplyError) else None,
            spoiled=_spoiled(answer, sent),
            takes_s=sent.delay_s + sent.chunk_delay_s * len(sent.events or ()),
        )
        return sent

    def _understood(self, http: HttpRequest, path: str, body: Any) -> Question | Mapping[str, Any] | ApiError:
        """What is asked, an answer that needs no script, or what is wrong."""
        if http.wrong is not None:
            return http.wrong
        path = path.partition("?")[0].rstrip("/")
        lists = path == _MODELS or path.startswith(f"{_MODELS}/")
        if not lists and path not in (_CHAT, _TEXT):
            return ApiError(404, f"Unknown request URL: {http.method} {path}", code="unknown_url")
        if http.method != ("GET" if lists else "POST"):
            return ApiError(405, f"Not allowed to {http.method} on {path}.", code="method_not_supported")
        try:
            self._authorize(http.headers.get("authorization", ""))
            if lists:
                return self._models(unquote(path.removeprefix(_MODELS).removeprefix("/")))
            if isinstance(body, ApiError):
                return body
            return question_of(body, chat=path == _CHAT, model=self.model)
        except ApiError as error:
            return error

    def _authorize(self, authorization: str) -> None:
        if not authorization:
            raise ApiError(401, "You didn't provide an API key.", code="missing_api_key")
        scheme, _, key = authorization.partition(" ")
        is_key = hmac.compare_digest(key.strip().encode("utf-8", "replace"), self.key.encode())
        if scheme.lower() != "bearer" or not is_key:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def _models(self, name: str) -> Mapping[str, Any]:
        """The list of models, or the model of this name."""
        entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "pytest-cannlm"}
        if not name:
            return {"object": "list", "data": [entry]}
        if name != self.model:
            raise ApiError(404, f"The model {name!r} does not exist.", code="model_not_found", param="model")
        return entry

    def _recorded(self, http: HttpRequest, path: str, body: Any, *, is_right: bool) -> CloudRequest:
        """The request as it is remembered, without the key and not answered yet."""
        text = http.body.decode("utf-8", "replace")
        try:
            shown = self.key.hidden_in(text) if isinstance(body, ApiError) else self.key.hidden_in_data(body)
        except RecursionError:
            shown = self.key.hidden_in(text)
        # clients change the case of a header's name, and any letter of a path may be quoted
        in_names = Secret(self.key.lower())
        return CloudRequest(
            method=self.key.hidden_in(http.method),
            path=self.key.hidden_in(unquote(path) if self.key.is_in(unquote(path)) else path),
            headers={
                in_names.hidden_in(name): HIDDEN if name in _AUTHORIZING else self.key.hidden_in(value)
                for name, value in http.headers.items()
            },
            body=shown,
            texts=texts_in(shown),
            at=datetime.datetime.now(datetime.UTC),
            is_right=is_right,
        )

    def _decided(
        self, understood: Question | Mapping[str, Any] | ApiError, script: Script, entry: Entry
    ) -> Completion | Mapping[str, Any] | ApiError:
        if isinstance(understood, ApiError):
            return understood
        if script.fail is not None:
            return ScriptedFailureError(*script.fail)
        if not isinstance(understood, Question):
            return understood
        text = script.reply if isinstance(script.reply, str) else self._replied(script.reply, entry)
        if isinstance(text, ApiError):
            return text
        return Completion.of(understood, text, model=script.answer_as or understood.model)

    def _replied(self, reply: Callable[[CloudRequest], str], entry: Entry) -> str | ScriptedReplyError:
        """What the test's callable makes of the request; whatever it raises is kept for the test."""
        self.replying.append(reply)
        try:
            text: object = reply(entry.request)
            if isinstance(text, str):
                return text
            what, failure = f"made no text but {type(text).__name__}", None
        except BaseException as error:  # also what ends a test: in this thread it would end nothing
            what = f"raised {type(error).__name__}: {error}"
            failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        finally:
            self.replying.remove(reply)
        message = f"The scripted reply {what}"
        if failure is None or (isinstance(failure, Exception) and not isinstance(failure, AssertionError)):
            entry.failure = UsageError(
                f"the test's own script failed, and not the app: {message}",
                field="reply",
                remedy="Mend the callable of cloud_llm.reply; it gets the request, whose .texts are what was asked",
            )
            entry.failure.__cause__ = failure
        else:
            entry.failure = failure  # the test's own verdict
        return ScriptedReplyError(500, message)


def _sent(answer: Completion | Mapping[str, Any] | ApiError, script: Script) -> HttpAnswer:
    if isinstance(answer, ApiError):
        return HttpAnswer(status=answer.status, data=answer.as_dict(), delay_s=script.delay_s)
    if not isinstance(answer, Completion):
        return HttpAnswer(status=200, data=answer, delay_s=script.delay_s)
    streamed = answer.question.stream
    return HttpAnswer(
        status=200,
        data=None if streamed else answer.whole(),
        events=tuple(answer.events()) if streamed else None,
        delay_s=script.delay_s,
        chunk_delay_s=script.chunk_delay_s,
        cut_after=script.cut_after,
    )


def _spoiled(
    answer: Completion | Mapping[str, Any] | ApiError, sent: HttpAnswer
) -> Literal["failed", "cut", "renamed"] | None:
    """What really happened: a cut behind the end, for example, cuts nothing."""
    if isinstance(answer, ScriptedFailureError | ScriptedReplyError):
        return "failed"
    if isinstance(answer, Completion):
        if sent.cut_after is not None and (sent.events is None or sent.cut_after <= len(sent.events)):
            return "cut"
        if answer.model != answer.question.model:
            return "renamed"
    return None


def _parsed(body: bytes) -> Any:
    """The JSON of a body; None without one, the API's error where it is none."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return ApiError(400, "The body of your request is not valid JSON.")
