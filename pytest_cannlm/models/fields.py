"""Typed reading of loosely typed key-value data (config.json, GGUF metadata), with errors that name file and field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_cannlm.errors import BadInputError, UnsupportedModelError


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``. Raises ``BadInputError`` where it is not readable, not JSON, or not an object."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError("this file is not readable JSON", file=file, found=error) from error
    if not isinstance(data, dict):
        raise BadInputError("this file must hold a JSON object", file=file, found=type(data).__name__)
    return data


LARGEST_COUNT = (1 << 31) - 1
"""Nothing that a configuration counts is larger; engines keep it in an int32."""


class Fields:
    """A mapping from a file whose values are taken out by type. Remembers which keys were asked for."""

    def __init__(self, data: Mapping[str, Any], *, file: Path) -> None:
        self.data = data
        self.file = file
        self._asked: set[str] = set()

    def get(self, name: str) -> Any:
        """The raw value, ``None`` where the key is absent or null."""
        self._asked.add(name)
        return self.data.get(name)

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int:
        """A whole number from ``minimum`` to ``maximum``; without a default it must be there."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self.missing(name)
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.wrong(name, value, f"a whole number from {minimum} to {maximum}")
        return value

    def number(self, name: str) -> float:
        """A finite number greater than zero. Text such as "1e6" counts: YAML 1.1 writers turn numbers into it."""
        value = self.get(name)
        if value is None:
            raise self.missing(name)
        return self.as_number(name, value)

    def as_number(self, name: str, value: Any) -> float:
        """``value``, found under ``name``, as a finite number greater than zero."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise self.wrong(name, value, "a finite number greater than zero")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """A truth value."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def token_ids(self, name: str, *, vocab_size: int) -> tuple[int, ...]:
        """One token id, a list of them, or nothing; each must lie in the vocabulary."""
        value = self.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise self.wrong(name, value, f"token ids from 0 to {vocab_size - 1}")
        return tuple(ids)

    def one_token_id(self, name: str, *, vocab_size: int) -> int | None:
        """At most one token id. -1 means none, as in the configurations of the first Llama models."""
        if self.get(name) == -1:
            return None
        ids = self.token_ids(name, vocab_size=vocab_size)
        if len(ids) > 1:
            raise self.wrong(name, list(ids), "one token id")
        return ids[0] if ids else None

    def either(self, first: str, second: str) -> Any:
        """The value that two transformers generations spell differently; refused where both are there and differ."""
        values = [value for value in (self.get(first), self.get(second)) if value is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise self.conflict({first: values[0], second: values[1]})
        return values[0] if values else None

    def not_asked(self) -> tuple[str, ...]:
        """Keys that nobody asked for, sorted."""
        return tuple(sorted(set(self.data) - self._asked))

    def missing(self, name: str) -> BadInputError:
        """The error for a key that must be there."""
        return BadInputError(
            "a required value is missing and has no safe default",
            file=self.file,
            field=name,
            remedy="Take the value from the model's original configuration",
        )

    def wrong(self, name: str, found: Any, expected: str) -> BadInputError:
        """The error for a value of the wrong type or range."""
        return BadInputError("a value is not usable", file=self.file, field=name, found=repr(found), expected=expected)

    def conflict(self, values: Mapping[str, Any]) -> BadInputError:
        """The error for one quantity that is given twice with different values."""
        return BadInputError(
            "one quantity is given twice with different values",
            file=self.file,
            field=" / ".join(values),
            found=", ".join(f"{name}={value!r}" for name, value in values.items()),
            remedy="Keep the one that the model was trained with",
        )

    def unsupported(self, what: str, field: str, found: Any, expected: str) -> UnsupportedModelError:
        """The error for a feature that this version would compute wrongly; ``what`` is its name."""
        return UnsupportedModelError(
            f"{what} is not supported", file=self.file, field=field, found=found, expected=expected
        )
