"""Answers in the form of OpenAI's API, whole or as the events of a stream.

A token is a word with the blanks before it: enough to count, to stop at a limit, and to stream piece by piece.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cannlm.cloud.questions import Question

_PIECE = re.compile(r"\s*\S+|\s+$")


def pieces_of(text: str) -> list[str]:
    """The tokens of a text; together they are the text."""
    return _PIECE.findall(text)


@dataclass(frozen=True)
class Completion:
    """The answer to one question."""

    question: Question
    model: str
    """The name under which it is answered."""
    pieces: tuple[str, ...]
    finish: str
    """``stop``, also where a stop text of the question cut it, or ``length`` where the limit of tokens did."""
    id: str
    created: int

    @classmethod
    def of(cls, question: Question, text: str, *, model: str) -> Completion:
        """``text`` as the answer, cut where one of the question's stop texts begins, then at its limit."""
        found = [place for stop in question.stop if (place := text.find(stop)) >= 0]
        pieces = pieces_of(text[: min(found, default=len(text))])
        limit = len(pieces) if question.max_tokens is None else question.max_tokens
        return cls(
            question=question,
            model=model,
            pieces=tuple(pieces[:limit]),
            finish="length" if len(pieces) > limit else "stop",
            id=f"{'chatcmpl' if question.chat else 'cmpl'}-{uuid.uuid4().hex}",
            created=int(time.time()),
        )

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def usage(self) -> dict[str, int]:
        """Tokens of the question and of the answer."""
        asked = sum(len(pieces_of(text)) for text in self.question.texts)
        return {
            "prompt_tokens": asked,
            "completion_tokens": len(self.pieces),
            "total_tokens": asked + len(self.pieces),
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one object."""
        form, said = "text_completion", dict[str, Any](text=self.text)
        if self.question.chat:
            form, said = "chat.completion", {"message": {"role": "assistant", "content": self.text, "refusal": None}}
        return {**self._event(form, said, self.finish), "usage": self.usage()}

    def events(self) -> Iterator[dict[str, Any]]:
        """The answer piece by piece; the last event names the reason of its end, and one more the usage if asked."""
        chat = self.question.chat
        form = "chat.completion.chunk" if chat else "text_completion"
        for place, piece in enumerate(self.pieces):
            delta: dict[str, Any] = {"content": piece} if place else {"role": "assistant", "content": piece}
            yield self._counted(self._event(form, {"delta": delta} if chat else {"text": piece}, None))
        yield self._counted(self._event(form, {"delta": {}} if chat else {"text": ""}, self.finish))
        if self.question.include_usage:
            yield {**self._event(form, {}, None), "choices": [], "usage": self.usage()}

    def _counted(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "usage": None} if self.question.include_usage else event

    def _event(self, form: str, said: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": form,
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": finish}],
        }
