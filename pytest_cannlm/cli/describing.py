"""What ``cannlm inspect`` found, for people: a line per fact, a line per partition and tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def described(facts: Mapping[str, Any]) -> list[str]:
    """Lines for what ``pytest_cannlm.container.inspect.describe`` returns; what the file does not say is left out."""
    return [line for key, value in facts.items() if value not in (None, "", [], ()) for line in _lines(key, value)]


def _lines(key: str, value: Any) -> Iterator[str]:
    if key == "partitions":
        for number, name, offset, size in value:
            yield f"partition {number} {name}: {size:,} bytes at {offset:,}"
    elif key in ("inputs", "outputs"):
        for tensor in value:
            shape = ", ".join(map(str, tensor["shape"]))
            yield f"{key[:-1]} {tensor['name']}: {tensor['dtype']} [{shape}] {tensor['format']}"
    elif key == "notes":
        for note in value:
            yield f"note: {note}"
    elif isinstance(value, list):
        yield f"{key}: {', '.join(map(str, value))}"
    else:
        yield f"{key}: {value}"
