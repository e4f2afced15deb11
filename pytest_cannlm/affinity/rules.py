"""The rules of affinity, read once from the two JSON files beside this one.

``rules.json`` holds one entry per thing that is looked for, with the numbers that bound it. ``operators.json`` holds a
list in which the first entry that fits a node judges it: conditions therefore stand before plain entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["refused", "unknown", "slow", "note", "fine"]
OUTCOMES: tuple[Outcome, ...] = ("refused", "unknown", "slow", "note", "fine")
"""refused: no conversion, or a wrong model. unknown: not in any list, or not decided yet. slow: converted, and there
is a faster way. note: worth knowing. fine: taken."""

CONFIDENCE = {
    "official": "a page of the vendor's documentation says it",
    "vendor source": "source code or scripts of the vendor say it",
    "measured": "an independent project ran the tool and saw it",
    "inferred": "it follows from the others, and is printed nowhere",
}
"""Marks of how sure a rule is, strongest source first."""


@dataclass(frozen=True)
class Judgement:
    """What a rule says, whatever it speaks of. ``toolchains`` and ``chips``: where it holds; no chips: on all."""

    outcome: Outcome
    why: str
    instead: str
    source: str
    confidence: str
    toolchains: tuple[str, ...]
    chips: tuple[str, ...]

    def holds(self, toolchain: str, chip: str) -> bool:
        """Whether the rule speaks of this converter and chip."""
        return toolchain in self.toolchains and (not self.chips or chip in self.chips)


@dataclass(frozen=True)
class Rule(Judgement):
    """One thing that is looked for in a model, other than its operators. ``limit``: its number, by toolchain."""

    name: str
    title: str
    limit: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class When:
    """What a node must be like for an operator rule. Fields that are not given ask for nothing.

    Attributes:
        inputs: numbers of the inputs that ``types``, ``made_by`` and ``constant`` speak of.
        types: element types, of which one of the inputs has one, or with ``every`` each; undefined: not known.
        made_by: operators, by one of which such an input is computed.
        constant: whether such an input is a constant.
        attribute, values: an attribute with one of these texts.
    """

    inputs: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    every: bool = False
    made_by: tuple[str, ...] = ()
    constant: bool | None = None
    attribute: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorRule(Judgement):
    """What becomes of operators of one domain; ``*`` stands for every operator of it."""

    domain: str
    operators: tuple[str, ...]
    when: When | None


@dataclass(frozen=True)
class Rules:
    """All rules, and the converters that they speak of."""

    toolchains: Mapping[str, str]
    general: Mapping[str, Rule]
    operators: tuple[OperatorRule, ...]

    def for_operators(self, toolchain: str, chip: str) -> dict[tuple[str, str], list[OperatorRule]]:
        """Operator rules of one converter and chip by domain and operator, in the order in which they are tried."""
        found: dict[tuple[str, str], list[OperatorRule]] = {}
        for rule in self.operators:
            if rule.holds(toolchain, chip):
                for operator in rule.operators:
                    found.setdefault((rule.domain, operator), []).append(rule)
        return found


@lru_cache(maxsize=1)
def rules() -> Rules:
    """The bundled rules."""
    general, operators = _read("rules.json"), _read("operators.json")
    toolchains = general["toolchains"]
    return Rules(
        toolchains=toolchains,
        general={
            name: Rule(
                **_judgement({"toolchains": list(toolchains), **entry}),
                name=name,
                title=entry["title"],
                limit=entry.get("limit", {}),
            )
            for name, entry in general["rules"].items()
        },
        operators=tuple(_operator_rule(entry, operators["sources"]) for entry in operators["rules"]),
    )


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _operator_rule(entry: Mapping[str, Any], sources: Mapping[str, str]) -> OperatorRule:
    when: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.get("when", {}).items()
    }
    return OperatorRule(
        **_judgement({**entry, "source": sources[entry["source"]]}),
        domain=entry.get("domain", ""),
        operators=tuple(entry["operators"]),
        when=When(**when) if when else None,
    )


def _judgement(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "outcome": entry["outcome"],
        "why": entry.get("why", ""),
        "instead": entry.get("instead", ""),
        "source": entry["source"],
        "confidence": entry["confidence"],
        "toolchains": tuple(entry["toolchains"]),
        "chips": tuple(entry.get("chips", ())),
    }
