"""Checks of single marker arguments: each returns the value as it is kept, or raises ValueError saying what it wanted.

``True`` is no number here, NaN and infinity are no limits, and a bare number is no size.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.engine import context_problem
from pytest_cannlm.errors import CannlmError
from pytest_cannlm.settings import nearest

Check = Callable[[Any], Any]
COLLECTIONS = (list, tuple, set, frozenset)

REFUSALS = (
    "CANN_VERSION_MISMATCH",
    "CANN_VERSION_UNKNOWN",
    "CHIP_MISMATCH",
    "CHIP_UNKNOWN",
    "CHIP_NOT_ALLOWED",
    "OPP_VERSION_MISMATCH",
    "OPP_VERSION_UNKNOWN",
    "HOST_MISMATCH",
    "HOST_UNKNOWN",
    "MANIFEST_CONTRADICTS",
    "PACKAGE_INCOMPLETE",
    "PACKAGE_DAMAGED",
    "PACKAGE_PATH_ABSOLUTE",
    "WEIGHT_SIZE_UNKNOWN",
    "SIMULATED_PACKAGE_ON_DEVICE",
    "REAL_PACKAGE_ON_SIMULATOR",
    "NOT_SIMULATED",
    "OUT_OF_MEMORY",
    "OM_IO",
    "OM_EMPTY",
    "OM_CUSTOM_DATA_PREFIX",
    "OM2_ZIP",
    "OM_BAD_MAGIC",
    "OM_TRUNCATED_HEADER",
    "OM_BAD_HEADER",
    "OM_UNSUPPORTED_CONTAINER",
    "OM_ENCRYPTED",
    "OM_TRUNCATED",
    "OM_LENGTH_MISMATCH",
    "OM_OVER_4GIB",
    "OM_BAD_PARTITION_TABLE",
    "OM_NO_MODEL_DEF",
    "OM_TWO_MODEL_DEFS",
    "OM_PARTITION_OVERFLOW",
    "OM_PARTITION_OUT_OF_RANGE",
    "OM_PARTITION_OVERLAP",
    "OM_PARTITION_GAP",
    "OM_MODEL_DEF_UNREADABLE",
    "OM_BAD_TLV",
    "OM_READ_LIMIT",
)
"""Codes with which a gate, a container or an engine refuses a package; ``docs/reference/errors.md`` explains them."""


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    return float(value)


def positive(value: Any) -> float:
    """A finite number above 0."""
    try:
        checked = number(value)
    except ValueError:
        checked = 0.0
    if checked <= 0:
        raise ValueError("expected a number above 0")
    return checked


def between(low: float, high: float) -> Check:
    """A number strictly between two others."""

    def check(value: Any) -> float:
        checked = number(value)
        if not low < checked < high:
            raise ValueError(f"expected a number above {low:g} and below {high:g}")
        return checked

    return check


def share(value: Any) -> float:
    """A share: above 0 and at most 1."""
    checked = number(value)
    if not 0 < checked <= 1:
        raise ValueError("expected a share above 0 and at most 1")
    return checked


def count(least: int, most: int | None = None) -> Check:
    """A whole number of at least ``least`` and at most ``most``."""
    wanted = f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}")

    def check(value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            raise ValueError(f"expected {wanted}")
        return value

    return check


def context_length(value: Any) -> int:
    """A length of the KV cache that can be built."""
    length: int = count(1)(value)
    problem = context_problem(length)
    if problem:
        raise ValueError(f"expected {problem}")
    return length


def text(value: Any) -> str:
    """A text that is not blank; a path counts as its text."""
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(plain, str) or not plain.strip() or "\0" in plain:
        raise ValueError("expected a text that is not empty")
    return plain


def size(value: Any) -> int:
    """Bytes from a text with a unit, at least 1. A bare number is refused: MB and MiB differ by 5 %."""
    wanted = 'expected a size above 0 with its unit, such as "400MiB" or "1.5GB"'
    checked = _bytes(value, wanted)
    if not checked:
        raise ValueError(wanted)
    return checked


def size_or_nothing(value: Any) -> int:
    """As :func:`size`, and 0 too, with a unit as well."""
    return _bytes(value, 'expected a size with its unit, such as "0B" or "400MiB"')


def chip(value: Any) -> str:
    """A known chip, in its one spelling."""
    known = chips.known_chips()
    name = chips.normalize(value) if isinstance(value, str) else None
    if name not in known:
        raise ValueError(f"expected a known chip: {', '.join(known)}{_meant(name, known)}")
    return name


def build_version(value: Any) -> str:
    """A CANN version as a toolkit counts it."""
    if not isinstance(value, str) or versions.parse(value).space != "build":
        raise ValueError("expected a toolkit's CANN version, four numbers such as 6.1.1.0")
    return value


def refusal_code(value: Any) -> str:
    """A code that a gate or an engine can refuse a package with, as a text; an engine's own are numbers."""
    code = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(code, str) or not (code in REFUSALS or code.isdecimal()):
        # by the words of a code: letter by letter CANN_MISMATCH is nearer to CHIP_MISMATCH than to the right one
        words = set(code.split("_")) if isinstance(code, str) else set()
        alike = [known for known in REFUSALS if len(words) > 1 and words <= set(known.split("_"))]
        raise ValueError(
            f"expected a code of the gate or the container, or an engine's number{_meant(code, alike or REFUSALS)}"
        )
    return code


def program(value: Any) -> Any:
    """A program with its arguments, as a tuple of texts; or a callable, as it is, that does its work when called."""
    if callable(value):
        for only_begins in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            if only_begins(value) or only_begins(type(value).__call__):
                raise ValueError("expected a callable that runs when it is called; this one is async or a generator")
        return value
    try:
        words = tuple(text(word) for word in value) if isinstance(value, (list, tuple)) else ()
    except ValueError:
        words = ()
    if not words:
        raise ValueError('expected a list of texts, such as ["python", "app.py"], or a callable')
    return words


def one_of(*choices: str, aliases: Mapping[str, str] | None = None) -> Check:
    """One of the given words, or an alias of one."""

    def check(value: Any) -> str:
        word = (aliases or {}).get(value, value) if isinstance(value, str) else value
        if not isinstance(word, str) or word not in choices:
            raise ValueError(f"expected {', '.join(choices)}{_meant(word, choices)}")
        return word

    return check


def each(check: Check, *, least: int = 0) -> Check:
    """A tuple of checked values from one value, a list or a set; duplicates are dropped."""

    def check_all(value: Any) -> tuple[Any, ...]:
        checked = tuple(
            dict.fromkeys(check(one) for one in in_order(value if isinstance(value, COLLECTIONS) else [value]))
        )
        if len(checked) < least:
            raise ValueError(f"expected at least {least}")
        return checked

    return check_all


def in_order(values: Any) -> list[Any]:
    """The values in an order that every process agrees on: a set has none of its own, so it is sorted."""
    return sorted(values, key=str) if isinstance(values, (set, frozenset)) else list(values)


def _bytes(value: Any, wanted: str) -> int:
    from pytest_cannlm.sizes import parse_size

    if not isinstance(value, str):
        raise ValueError(wanted)
    try:
        return parse_size(value)
    except CannlmError as error:
        raise ValueError(str(error)) from None


def _meant(word: Any, choices: Iterable[str]) -> str:
    hint = nearest(word, choices) if isinstance(word, str) else None
    return f"; did you mean {hint!r}?" if hint else ""
