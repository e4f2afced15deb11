"""Chip profiles: data files whose every number has a source, or says that it is fitted or assumed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_cannlm.errors import BadInputError, UsageError

Status = Literal["source", "fitted", "assumed"]

_FOLDER = Path(__file__).with_name("profiles")


@dataclass(frozen=True)
class Number:
    """One number of a profile and where it is from."""

    value: float
    unit: str
    status: Status
    source: str


@dataclass(frozen=True)
class Profile:
    """A chip as the simulator knows it. ``profile["clock_ghz"]`` is the value of that number."""

    name: str
    chip: str
    title: str
    numbers: Mapping[str, Number]

    def __getitem__(self, name: str) -> float:
        return self.numbers[name].value


def profile_names() -> list[str]:
    """Names of the profiles that come with the project."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_profile(name: str) -> Profile:
    """The profile of that name, in any case.

    Raises:
        UsageError: there is none, with the names that there are.
    """
    path = _FOLDER / f"{name.lower()}.toml"
    if not path.is_file():
        raise UsageError(
            "no profile for this chip", field="profile", found=name, expected="one of " + ", ".join(profile_names())
        )
    return parse_profile(path.stem, tomllib.loads(path.read_text(encoding="utf-8")), path)


def parse_profile(name: str, data: Mapping[str, Any], path: Path) -> Profile:
    """A profile from its parsed TOML; BadInputError names the number that has no value, unit, status or source."""
    numbers = {}
    for key, entry in data["numbers"].items():
        missing = {"value", "unit", "status", "source"} - set(entry)
        if missing or entry["status"] not in get_args(Status) or not entry["source"]:
            raise BadInputError(
                "a number of a chip profile does not say where it is from",
                file=path,
                field=key,
                found=dict(entry),
                expected="value, unit, status (source, fitted or assumed) and source",
            )
        numbers[key] = Number(float(entry["value"]), entry["unit"], entry["status"], entry["source"])
    return Profile(name, data["chip"], data["title"], numbers)
