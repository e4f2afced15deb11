"""Prompts: from what a user gives to the text that the engine takes. The engine applies no chat template itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_cannlm.errors import UsageError

if TYPE_CHECKING:
    from pytest_cannlm.models.tokenizer import Tokenizer

Message = Mapping[str, str]

STANDARD_PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "List three things to check before a long bicycle ride.",
    "Write a short, friendly reply to a customer whose parcel is late.",
)
"""What is asked where a test's body asks nothing."""


def finished_prompt(tokenizer: Tokenizer, chat: str | Sequence[Message], *, special_tokens: bool) -> str:
    """The prompt text of a chat: one user's text, or messages with ``role`` and ``content``.

    :raises UsageError: a text holds a special token's text, which would become that token, and ``special_tokens`` does
        not say that this is meant.
    """
    messages: Sequence[Message] = [{"role": "user", "content": chat}] if isinstance(chat, str) else list(chat)
    if not special_tokens:
        for message in messages:
            refuse_special_tokens(tokenizer, message.get("content", ""))
    return tokenizer.render_chat(messages)


def question_prompt(tokenizer: Tokenizer, question: str) -> str:
    """``question`` as a chat where the model has a template, else as it is."""
    return (
        question if tokenizer.spec.chat_template is None else finished_prompt(tokenizer, question, special_tokens=False)
    )


def refuse_special_tokens(tokenizer: Tokenizer, text: str) -> None:
    """Raise :class:`UsageError` if ``text`` spells a special token."""
    found = [token for token in tokenizer.special_tokens if token in text]
    if found:
        raise UsageError(
            "the text spells special tokens, and the engine would take them as such",
            found=", ".join(found),
            remedy="If that is meant, pass special_tokens=True (on the command line --special-tokens)",
        )
