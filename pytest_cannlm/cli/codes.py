"""The project's own error codes in words: ``codes.json`` beside this file, and the rules of the lint for theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pytest_cannlm.explain import Explanation

_RULE = re.compile(r"PKG\d{3}")
_LINT = "lint"


@dataclass(frozen=True)
class OwnCodes:
    """Codes of one meaning, in Markdown as the reference shows it: clauses without capital and full stop."""

    codes: tuple[str, ...]
    meaning: str
    next: str = ""


@lru_cache(maxsize=1)
def own_codes() -> Mapping[str, tuple[OwnCodes, ...]]:
    """All but those of the lint, by who says them: ``gate``, ``container``, …"""
    data = json.loads(Path(__file__).with_name("codes.json").read_text(encoding="utf-8"))
    return {
        family: tuple(OwnCodes(tuple(entry["codes"]), entry["meaning"], entry.get("next", "")) for entry in entries)
        for family, entries in data["families"].items()
    }


def own_families() -> tuple[str, ...]:
    """Whose codes these are."""
    return (*own_codes(), _LINT)


def own_meaning(code: str, family: str | None = None) -> Explanation | None:
    """What one of our own codes means, in letters of any size; None for any other text, and for another family's."""
    wanted = code.strip().upper()
    found = _rule(wanted) if _RULE.fullmatch(wanted) else _listed(wanted)
    return found if found and family in (None, found.family) else None


def _listed(wanted: str) -> Explanation | None:
    for family, entries in own_codes().items():
        for entry in entries:
            if wanted in entry.codes:
                return Explanation(family, wanted, None, _sentence(entry.meaning), _sentence(entry.next) or None)
    return None


def _rule(wanted: str) -> Explanation | None:
    from pytest_cannlm.lint import RULES

    rule = next((rule for rule in RULES if rule.code == wanted), None)
    if rule is None:
        return None
    cause = f"{rule.severity.capitalize()}, {rule.title}. {rule.why.removesuffix('.')}"
    return Explanation(_LINT, wanted, None, cause, "Run cannlm lint on the package: it names the place and the fix")


def _sentence(clause: str) -> str:
    """A clause as plain text; what begins with a name keeps its spelling."""
    return (clause[:1].upper() + clause[1:]).replace("`", "")
