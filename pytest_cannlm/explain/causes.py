"""The table of what is known: families, codes and log texts, read once from ``causes.json`` beside this file.

A text is found by ``text``, a literal part of its line, or by ``regex``, whose every repetition has a bound, so that no
line can make it slow. ``noise`` marks what says nothing about trouble, ``harmless`` what of it calls itself an error
all the same; ``summary`` marks what says that something failed and not why, so that it is never the first error of a
log that has another. ``items`` are expressions for what a line names, best first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("causes.json")


@dataclass(frozen=True)
class Family:
    """Whose codes or texts they are."""

    title: str
    source: str
    """The table or program that they come from."""


@dataclass(frozen=True)
class KnownCode:
    """One code that a family defines."""

    family: str
    code: str
    name: str
    cause: str
    next: str
    summary: bool = False
    items: tuple[re.Pattern[str], ...] = ()


@dataclass(frozen=True)
class KnownText:
    """One text that a program prints."""

    family: str
    pattern: str
    """The literal part of the line, or the expression, as it stands in the file."""
    cause: str
    next: str
    noise: bool = False
    harmless: bool = False
    summary: bool = False
    items: tuple[re.Pattern[str], ...] = ()


@dataclass(frozen=True)
class Causes:
    """Everything that is known."""

    families: Mapping[str, Family]
    codes: tuple[KnownCode, ...]
    literals: tuple[KnownText, ...]
    expressions: tuple[tuple[re.Pattern[str], KnownText], ...]

    @property
    def texts(self) -> tuple[KnownText, ...]:
        """Every text, whichever way it is found."""
        return (*self.literals, *(known for _, known in self.expressions))

    def named(self, code: str) -> list[KnownCode]:
        """Every family's meaning of ``code``, which may be its number or its name, in letters of any size."""
        wanted = code.casefold()
        return [known for known in self.codes if wanted in (known.code.casefold(), known.name.casefold())]

    def text_in(self, line: str) -> KnownText | None:
        """What ``line`` says, if it is known; a text of trouble before one of success."""
        found = [known for known in self.literals if known.pattern in line]
        found += [known for regex, known in self.expressions if regex.search(line)]
        return min(found, key=lambda known: known.noise, default=None)


@lru_cache(maxsize=None)
def causes() -> Causes:
    """The bundled table."""
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    return Causes(
        families={name: Family(**facts) for name, facts in data["families"].items()},
        codes=tuple(KnownCode(**{**entry, "items": _compiled(entry)}) for entry in data["codes"]),
        literals=tuple(_text(entry, entry["text"]) for entry in data["texts"] if "text" in entry),
        expressions=tuple(
            (re.compile(entry["regex"]), _text(entry, entry["regex"])) for entry in data["texts"] if "regex" in entry
        ),
    )


def named_in(line: str, patterns: Iterable[re.Pattern[str]]) -> list[str]:
    """What ``line`` names by the first of ``patterns`` that finds anything, such as ``name (type)``."""
    for pattern in patterns:
        found = [match.groups() for match in pattern.finditer(line)]
        if found:
            return [groups[0] + "".join(f" ({group})" for group in groups[1:]) for groups in found]
    return []


def _text(entry: Mapping[str, Any], pattern: str) -> KnownText:
    facts = {key: value for key, value in entry.items() if key not in ("text", "regex", "items")}
    return KnownText(pattern=pattern, items=_compiled(entry), **facts)


def _compiled(entry: Mapping[str, Any]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in entry.get("items", ()))
