"""What stands behind the server of a scripted endpoint: the key, the script, and the memory of requests."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Mapping
from typing import Any

from pytest_cannlm.cloud.answers import Completion
from pytest_cannlm.cloud.questions import ApiError, question_of, texts_in
from pytest_cannlm.cloud.script import CloudRequest, Script
from pytest_cannlm.cloud.secret import HIDDEN, Secret
from pytest_cannlm.cloud.server import same_key

_AUTHORIZING = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})


class ScriptedBackend:
    """Answers by its script; the server calls it from threads of its own."""

    def __init__(self, *, model: str) -> None:
        self.model = model
        self.key = Secret(f"sk-test-{secrets.token_urlsafe(24)}")
        self.script = Script()
        self.requests: list[CloudRequest] = []

    def authorize(self, authorization: str) -> None:
        """Raise the API's error unless the key is right."""
        if not authorization:
            raise ApiError(401, "You didn't provide an API key.", code="missing_api_key")
        if not same_key(authorization, self.key):
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def answer(self, path: str, body: Any) -> Completion | dict[str, Any]:
        """The answer to a request whose key is right."""
        script = self.script
        if script.fail is not None:
            raise ApiError(*script.fail)
        if path == "/v1/models":
            entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "pytest-cannlm"}
            return {"object": "list", "data": [entry]}
        question = question_of(body, chat=path == "/v1/chat/completions", model=self.model)
        text = script.reply
        if not isinstance(text, str):
            asked = CloudRequest(method="POST", path=path, body=body, texts=question.texts, at=_now(), status=200)
            try:
                text = text(asked)
            except Exception as error:
                raise ApiError(500, f"The scripted reply failed: {type(error).__name__}: {error}") from error
            if not isinstance(text, str):
                raise ApiError(500, f"The scripted reply made no text but {type(text).__name__}.")
        return Completion.of(question, text, model=script.answer_as or question.model)

    def record(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, status: int, answer: Completion | None
    ) -> None:
        """Remember a request without its key."""
        shown = {name.lower(): self.key.hidden_in(value) for name, value in headers.items()}
        parsed = _json_or_text(self.key.hidden_in(body.decode("utf-8", "replace")))
        self.requests.append(
            CloudRequest(
                method=method,
                path=self.key.hidden_in(path),
                headers={name: HIDDEN if name in _AUTHORIZING else value for name, value in shown.items()},
                body=parsed,
                texts=texts_in(parsed),
                at=_now(),
                status=status,
                answer=answer.text if answer else None,
                model=answer.model if answer else None,
            )
        )


def _json_or_text(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
