"""What the checks look at, and what they yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from pytest_cannlm.affinity.rules import rules
from pytest_cannlm.affinity.shapes import Sizes
from pytest_cannlm.affinity.walk import Scope
from pytest_cannlm.compat.checks import one_line


@dataclass(frozen=True)
class Problem:
    """A place where a rule of ``rules.json`` applies. Equal ``rule``, ``found`` and ``expected`` become one finding."""

    rule: str
    where: str
    found: str = ""
    expected: str = ""

    def __post_init__(self) -> None:
        for name in ("where", "found"):
            object.__setattr__(self, name, one_line(getattr(self, name)))


@dataclass(frozen=True)
class Subject:
    """A model, and for what it is judged.

    Attributes:
        model: without its external data.
        scopes: the main graph first.
        sizes: what the user gave.
        toolchain, chip: whose rules apply.
        path: the file; None for a model that is in memory only, whose data files are then not looked for.
    """

    model: onnx.ModelProto
    scopes: list[Scope]
    sizes: Sizes
    toolchain: str
    chip: str
    path: Path | None

    def limit(self, rule: str) -> Any:
        """The number that bounds a rule for this converter."""
        return rules().general[rule].limit[self.toolchain]


Check = Callable[[Subject], Iterator[Problem]]
