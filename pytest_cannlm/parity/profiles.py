"""Limits per scheme, model size and quantizer, from ``profiles.toml``: each number stands there and nowhere else."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.measure.figures import Limit
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.settings import nearest

Against = Literal["float", "quantized"]
SCHEMA = 1

_KEYS = {"name", "against", "min_parameters", "quantizers", "limits", "why", "model"}


@dataclass(frozen=True)
class Profile:
    """Limits by metric name, the kind of reference that they are for, and how many positions they need."""

    name: str
    against: Against
    limits: Mapping[str, float]
    min_positions: int
    min_parameters: int = 0
    quantizers: tuple[str, ...] = ()
    """Empty: any."""
    model: str = ""
    """The one model that the row is for; empty: any."""
    why: str = ""

    @property
    def source(self) -> str:
        """Where a limit of this profile comes from, for a reader."""
        size = f"models of {self.min_parameters / 1e9:g}B parameters and more" if self.min_parameters else ""
        of = [self.model, size, " or ".join(self.quantizers)]
        rows = ", ".join(each for each in of if each)
        return f'profile "{self.name}"' + (f" ({rows})" if rows else "")

    def sourced_limits(self) -> dict[str, Limit]:
        """The limits, each with its source."""
        return {name: Limit(value, self.source) for name, value in self.limits.items()}

    def fits(self, *, name: str, against: str, parameters: int, quantizer: str, model: str) -> bool:
        """Whether the row is for such a package. A path as reference may be of either kind."""
        return (
            self.name == name
            and (against not in ("float", "quantized") or self.against == against)
            and parameters >= self.min_parameters
            and (not self.quantizers or quantizer in self.quantizers)
            and self.model in ("", model)
        )


@dataclass(frozen=True)
class Profiles:
    """All rows of a profiles file, rows for single models first."""

    rows: tuple[Profile, ...] = field(default_factory=tuple)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the profiles, sorted."""
        return tuple(sorted({row.name for row in self.rows}))


@cache
def profiles() -> Profiles:
    """The profiles that come with this package."""
    text = resources.files(__package__).joinpath("profiles.toml").read_text(encoding="utf-8")
    return parse_profiles(text, file="profiles.toml")


def read_profiles(path: Path) -> Profiles:
    """Profiles from a user's file of the same form. A wrong one is a :class:`BadInputError` naming row and key."""
    return parse_profiles(path.read_text(encoding="utf-8"), file=str(path))


def parse_profiles(text: str, *, file: str) -> Profiles:
    """Check every row: known keys, known metrics, finite limits, one kind of reference per name."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(f"not a TOML file: {error}", file=file) from error
    if data.get("schema") != SCHEMA:
        raise BadInputError("unknown schema", file=file, field="schema", found=data.get("schema"), expected=SCHEMA)
    positions = data.get("min_positions")
    if not isinstance(positions, int) or positions < 1:
        raise BadInputError("number of positions", file=file, field="min_positions", found=positions, expected=">= 1")
    rows = [
        _row(row, where=f"{table}[{number}]", file=file, positions=positions, is_model=table == "models")
        for table in ("models", "profiles")
        for number, row in enumerate(data.get(table, []))
    ]
    kinds: dict[str, str] = {}
    for row in rows:
        if kinds.setdefault(row.name, row.against) != row.against:
            raise BadInputError("a profile belongs to one kind of reference", file=file, field=row.name)
    return Profiles(tuple(rows))


def choose_profile(
    name: str | None,
    *,
    scheme: str,
    parameters: int,
    quantizer: str = "rtn",
    model: str = "",
    against: str = "float",
    int8_activations: bool = False,
    known: Profiles | None = None,
) -> Profile:
    """The row that applies: by name, else the scheme's own against "float" and ``fidelity`` against "quantized".

    ``against`` a path is judged like "float". An unknown name, a scheme without a profile, and a profile that belongs
    to the other kind of reference are a :class:`UsageError`.
    """
    known = known or profiles()
    if name is None and against == "quantized":
        name = "fidelity_int8act" if int8_activations else "fidelity"
    name = {"int8": "w8a16"}.get(name or scheme, name or scheme)
    if name not in known.names:
        near = nearest(name, known.names)
        remedy = f'Did you mean "{near}"?' if near else None
        raise UsageError("no such parity profile", field="profile", found=name, expected=known.names, remedy=remedy)
    for row in known.rows:
        if row.fits(name=name, against=against, parameters=parameters, quantizer=quantizer, model=model):
            return row
    kind = next(row.against for row in known.rows if row.name == name)
    raise UsageError(
        f'profile "{name}" does not apply here',
        field="profile",
        found=f"against {against}, {parameters} parameters, quantizer {quantizer}",
        expected=f"against {kind}",
    )


def _row(row: Mapping[str, Any], *, where: str, file: str, positions: int, is_model: bool) -> Profile:
    def wrong(key: str, expected: object) -> BadInputError:
        return BadInputError("wrong profile", file=file, field=f"{where}.{key}", found=row.get(key), expected=expected)

    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise wrong(unknown[0], f"one of {', '.join(sorted(_KEYS))}")
    if not isinstance(row.get("name"), str):
        raise wrong("name", "a text")
    if row.get("against") not in ("float", "quantized"):
        raise wrong("against", '"float" or "quantized"')
    if is_model != isinstance(row.get("model"), str):
        raise wrong("model", "a name under [[models]], nothing under [[profiles]]")
    limits, quantizers = row.get("limits"), row.get("quantizers", [])
    if not isinstance(limits, dict) or not limits:
        raise wrong("limits", "a table of metrics and numbers")
    for metric, value in limits.items():
        if metric not in METRICS:
            raise wrong("limits", f"metrics of {', '.join(METRICS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise wrong("limits", f"a finite number for {metric}")
    if not _is_texts(quantizers):
        raise wrong("quantizers", "a list of names")
    return Profile(
        name=row["name"],
        against=row["against"],
        limits={metric: float(value) for metric, value in limits.items()},
        min_positions=positions,
        min_parameters=int(row.get("min_parameters", 0)),
        quantizers=tuple(quantizers),
        model=row.get("model", ""),
        why=row.get("why", ""),
    )


def _is_texts(values: object) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(v, str) for v in values)
