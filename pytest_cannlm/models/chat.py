"""Chat templates: Jinja programs that come with a model and turn messages into the prompt text.

They are foreign code, so they run in Jinja's sandbox, in the environment that transformers gives them
(``trim_blocks``, ``lstrip_blocks``, loop controls, ``raise_exception``, ``strftime_now``, ``tojson`` that keeps
non-ASCII text as it is).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_cannlm.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from jinja2 import Template


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool,
) -> str:
    """The prompt text for ``messages`` (each with ``role`` and ``content``).

    Raises ``UsageError`` for malformed messages or ones that the template itself refuses, ``BadInputError`` for a
    template that does not run.
    """
    from jinja2 import TemplateError

    _check(messages)
    try:
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            bos_token=bos_token or "",
            eos_token=eos_token or "",
            add_generation_prompt=add_generation_prompt,
        )
    except _RefusedByTemplateError as error:
        raise UsageError("the model's chat template refuses these messages", found=error) from error
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        raise BadInputError(
            "the model's chat template does not run",
            field="chat_template",
            found=f"{type(error).__name__}: {error}",
            remedy="Give the finished prompt text instead of messages",
        ) from error


class _RefusedByTemplateError(Exception):
    """``raise_exception`` was called inside a template."""


def _check(messages: Sequence[Mapping[str, str]]) -> None:
    if not messages:
        raise UsageError("a chat needs at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise UsageError(
                "a chat message needs the texts role and content", field=f"messages[{number}]", found=repr(message)
            )


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
