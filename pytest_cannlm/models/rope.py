"""Rotary position embedding: how a configuration spells it, its frequencies, and the order of rows that it needs.

The graph knows one form: a whole head, first half paired with the second. Checkpoints that pair neighbours or rotate
only a part of each head are brought into it when their rows are read (:func:`half_split_rows`); dimensions that are not
rotated get the angle 0.

YaRN (Peng et al., 2023) stretches the slow frequencies by ``factor`` and scales cos and sin; as in transformers'
``rope_type: yarn``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.models.families import Family
from pytest_cannlm.models.fields import LARGEST_COUNT, Fields

_TOP_LEVEL = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_GROUPS = ("rope_parameters", "rope_scaling")
_RAMP_GAP = 0.001
"""Keeps the ramp's ends apart where both fall on one dimension."""


@dataclass(frozen=True)
class Yarn:
    """Stretching of the rotary frequencies for positions beyond those of the pretraining."""

    factor: float
    original_positions: int
    """Positions of the pretraining."""
    attention_factor: float
    """Multiplies cos and sin."""
    beta_fast: float = 32.0
    """Dimensions that turn more often than this within ``original_positions`` are left as they are."""
    beta_slow: float = 1.0
    """Dimensions that turn less often are stretched in full."""
    truncate: bool = True
    """The ramp between the two starts and ends at whole dimensions."""

    @property
    def positions(self) -> int:
        """Positions that the stretched model is made for."""
        return round(self.factor * self.original_positions)


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of a decoder."""

    theta: float
    rotary_dim: int
    """Dimensions of each head that are rotated; the others pass."""
    yarn: Yarn | None = None

    @property
    def attention_factor(self) -> float:
        """What cos and sin of rotated dimensions are multiplied by."""
        return self.yarn.attention_factor if self.yarn else 1.0

    def inverse_frequencies(self) -> npt.NDArray[np.float64]:
        """Radians per position of each rotated pair, ``[rotary_dim / 2]``: theta^(-2 j / rotary_dim), stretched."""
        exponents = np.arange(self.rotary_dim // 2, dtype=np.float64) * 2 / self.rotary_dim
        plain = self.theta**-exponents
        if self.yarn is None:
            return plain
        kept = 1 - _ramp(self.yarn, self.theta, self.rotary_dim)
        stretched: npt.NDArray[np.float64] = plain * kept + plain / self.yarn.factor * (1 - kept)
        return stretched


def _ramp(yarn: Yarn, theta: float, dim: int) -> npt.NDArray[np.float64]:
    """0 where a pair keeps its frequency, 1 where it is stretched in full."""

    def pair_that_turns(times: float) -> float:
        return dim * math.log(yarn.original_positions / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += _RAMP_GAP
    return np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0, 1)


def half_split_rows(rows: int, *, head_dim: int, rotary_dim: int, interleaved: bool) -> npt.NDArray[np.intp]:
    """For every row of q or k (weight, bias or head norm) in the graph's order, the checkpoint's row that holds it.

    Per head: first members of the rotated pairs, half of what passes, second members, the other half of what passes.
    ``interleaved``: the checkpoint has the members of a pair side by side, else half of ``rotary_dim`` apart.
    """
    rotated, passing = np.arange(rotary_dim), np.arange(rotary_dim, head_dim)
    first, second = (rotated[0::2], rotated[1::2]) if interleaved else np.split(rotated, 2)
    one, other = np.split(passing, 2)
    order = np.concatenate([first, one, second, other])
    by_head: npt.NDArray[np.intp] = np.arange(0, rows, head_dim)[:, None] + order
    return by_head.reshape(-1)


def rope_of(fields: Fields, *, family: Family, head_dim: int) -> Rope:
    """The rotary embedding that a ``config.json`` describes, in its old or its new spelling.

    There is no default for the base: a wrong one drifts with length, silently. Raises ``UnsupportedModelError`` for
    every kind but "default" and "yarn", ``BadInputError`` for missing or contradicting values.
    """
    given = _given(fields)
    if "rope_theta" not in given:
        raise fields.missing("rope_theta")
    theta_place, theta = given["rope_theta"]
    if theta <= 1:
        raise fields.wrong(theta_place, theta, "a base greater than 1")
    rotary_dim = _rotary_dim(fields, given, family=family, head_dim=head_dim)
    place, kind = given.get("rope_type", ("rope_type", "default"))
    if kind == "yarn":
        return Rope(theta, rotary_dim, _yarn(fields, given))
    if kind != "default":
        raise fields.unsupported(f"RoPE type {kind!r}", place, kind, "default or yarn")
    place, factor = given.get("factor", ("", 1))
    if factor != 1:
        raise fields.unsupported("RoPE factor without a type", place, factor, "1 or absent")
    return Rope(theta, rotary_dim)


def _given(fields: Fields) -> dict[str, tuple[str, Any]]:
    """Every rotary setting with the place that it stands at; one that is given twice must agree."""
    places = [(key, key, fields.get(key)) for key in _TOP_LEVEL]
    for name in _GROUPS:
        group = fields.get(name)
        if group is None:
            continue
        if not isinstance(group, Mapping):
            raise fields.wrong(name, group, "an object or null")
        nested = [key for key, value in group.items() if isinstance(value, Mapping)]
        if nested:
            raise fields.unsupported("RoPE per kind of layer", name, ", ".join(nested), "one for all layers")
        spelled = ((key, "rope_type" if key == "type" else key) for key in sorted(group))
        places += [(f"{name}.{key}", meaning, group[key]) for key, meaning in spelled]
    given: dict[str, tuple[str, Any]] = {}
    for place, meaning, value in places:
        if value is None:
            continue
        known = fields.as_number(place, value) if meaning == "rope_theta" else value
        before = given.setdefault(meaning, (place, known))
        if before[1] != known:
            raise fields.conflict({before[0]: before[1], place: known})
    return given


def _rotary_dim(fields: Fields, given: Mapping[str, tuple[str, Any]], *, family: Family, head_dim: int) -> int:
    place, value = given.get("partial_rotary_factor", ("partial_rotary_factor", family.partial_rotary_factor or 1.0))
    share = fields.as_number(place, value)
    if share != 1 and family.partial_rotary_factor is None:
        raise fields.unsupported(f"partial rotary embedding (family {family.name})", place, value, "1.0 or absent")
    if share == 1:
        return head_dim
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim < head_dim or rotary_dim % 2:
        raise fields.wrong(place, value, f"a share of the head size {head_dim} that is a whole number of pairs")
    return rotary_dim


def _yarn(fields: Fields, given: Mapping[str, tuple[str, Any]]) -> Yarn:
    numbers = {
        key: fields.as_number(*given[key])
        for key in ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        if key in given
    }
    if "factor" not in numbers:
        raise fields.missing("rope_scaling.factor")
    if "original_max_position_embeddings" not in given:
        raise fields.missing("rope_scaling.original_max_position_embeddings")
    place, value = given["original_max_position_embeddings"]
    original = fields.as_number(place, value)
    if not 1 <= original <= LARGEST_COUNT:
        raise fields.wrong(place, value, f"1 to {LARGEST_COUNT:,}")
    if not 1 <= numbers["factor"] <= LARGEST_COUNT:
        raise fields.wrong(given["factor"][0], numbers["factor"], f"1 to {LARGEST_COUNT:,}")
    place_of_truncate, truncate = given.get("truncate", ("truncate", True))
    if not isinstance(truncate, bool):
        raise fields.wrong(place_of_truncate, truncate, "true or false")
    fast, slow = (numbers.get(key, getattr(Yarn, key)) for key in ("beta_fast", "beta_slow"))
    if fast < slow:
        raise fields.wrong("beta_fast", fast, f"at least beta_slow, {slow:g}")
    return Yarn(
        factor=numbers["factor"],
        original_positions=int(original),
        attention_factor=numbers.get("attention_factor") or _attention_factor(numbers),
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
    )


def _attention_factor(numbers: Mapping[str, float]) -> float:
    """0.1 ln(factor) + 1, or the ratio of two such scales where both are named."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(numbers["factor"]) + 1

    if "mscale" in numbers and "mscale_all_dim" in numbers:
        return scale(numbers["mscale"]) / scale(numbers["mscale_all_dim"])
    return scale(1.0)
