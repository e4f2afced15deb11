"""JSON files of a package, read with a limit: what they hold, or where they break."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.compat.strictjson import parse

SETTINGS_LIMIT = 1 << 20
TOKENIZER_LIMIT = 64 << 20
MANIFEST_LIMIT = 16 << 20


@dataclass(frozen=True)
class Broken:
    """A file that is no JSON object on which all readers agree: what it is, with line and column where it breaks."""

    found: str


def read_document(path: Path, limit: int) -> Mapping[str, Any] | Broken:
    """The JSON object in ``path``, of which at most ``limit`` bytes are read."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        return Broken(f"unreadable: {error.strerror or error}")
    if len(raw) > limit:
        return Broken(f"more than {limit:,} bytes")
    try:
        data = parse(raw)
    except UnicodeDecodeError as error:
        return Broken(f"not UTF-8: {error.reason} at byte {error.start}")
    except json.JSONDecodeError as error:
        return Broken(f"no JSON: {error.msg} in line {error.lineno}, column {error.colno}")
    except RecursionError:
        return Broken("no usable JSON: nested too deeply")
    except ValueError as error:
        return Broken(f"no usable JSON: {error}")
    return data if isinstance(data, dict) else Broken(f"a JSON {type(data).__name__}, no object")
