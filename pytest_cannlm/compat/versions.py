"""Versions and the number spaces that they live in. Valid for Python 3.10.

A toolkit's ``6.1.1.0``, an Ascend package's internal ``7.6.0.1.220``, its public ``8.0.0`` and a device's
``108.631.120.010`` count different things. Numbers of one space are compared; numbers of two spaces are joined by a
list of known pairs (``versions.json``, extended by the user), and what the list does not hold is unknown, never equal.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from pathlib import Path
from typing import Any, Literal, NamedTuple

Space = Literal[
    "build", "public", "ascend-internal", "ascend-release", "hiai", "harmonyos", "api-level", "unset", "unknown"
]
Policy = Literal["exact", "window", "off"]

MAX_TEXT = 64
"""No version is longer; keeps hostile input away from the number parser."""


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(f"^{pattern}$", re.IGNORECASE | re.ASCII)


_FORMS: tuple[tuple[Space, re.Pattern[str]], ...] = (
    ("hiai", _form(r"(?:hiaiversion\s+)?(\d{3}(?:\.\d{3}){3})")),
    # HarmonyOS counts its builds in two or three digits (5.0.0.60, 6.1.0.135), no DDK has got beyond one (6.1.1.0).
    ("harmonyos", _form(r"(?:(?:Open)?Harmony(?:OS)?[\s-]*)?(\d(?:\.\d{1,2}){2}\.\d{2,3})(?:\s?\(.*\)|SP\d.*)?")),
    ("build", _form(r"(\d{1,2}(?:\.\d{1,3}){2}\.\d)")),
    ("ascend-internal", _form(r"(\d+\.\d+\.T?\d+\.\d+\.B?\d+)")),
    ("public", _form(r"(\d+\.\d+(?:\.(?:\d+|RC\d+|T\d+))?(?:\.(?:RC|alpha|beta)\d+)?)")),
    ("api-level", _form(r"(?:API(?:\s+level)?\s*)?(\d{1,2})")),
)
_FIRST_WITH_NPU = 100
"""The second group of a hiaiversion (``hiai_helper.h`` of the CANN Kit): it starts with 0 on a device without NPU."""
_RELEASE = _form(r"V(\d+)R(\d+)C(\d+)(?:SPC(\d+))?(?:B(\d+))?")
"""The vendor's release code, ``innerversion`` in ``ascend_toolkit_install.info``."""
_PART = re.compile(r"([a-z]*)(\d+)")
_RANKS = {"alpha": 0, "beta": 1, "t": 2, "b": 2, "rc": 3, "": 5}
_END = (4, 0)
"""Sorts after a pre-release part and before a further number: 8.0.RC2.alpha001 < 8.0.RC2 and 8.0 < 8.0.1."""

_COVERING = ("public", "build")
"""Spaces of releases and toolkits. The others count builds and devices, of which one release has several."""

_NOT_CANN: dict[str, str] = {
    "harmonyos": "looks like the number of a HarmonyOS system software, not like a CANN version",
    "api-level": "looks like an API level, not like a CANN version",
    "unset": "is unset",
    "unknown": "is in no known form",
}
"""Spaces whose members are never compared as a CANN version, each with what is said of them."""


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """A version in its number space: equal if both are, ordered within a space, ``TypeError`` across two.

    What is no CANN version equals only the same text, and has no order.
    """

    space: Space
    parts: tuple[tuple[int, int], ...]
    raw: str

    @property
    def known(self) -> bool:
        """Whether it is a CANN version: neither unreadable, nor an unset 0.0.0, nor the number of something else."""
        return self.space not in _NOT_CANN

    @property
    def complaint(self) -> str | None:
        """Why this is no CANN version ("looks like an API level, …"); None if it is one."""
        return _NOT_CANN.get(self.space)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Version) -> bool:
        if not self.known or self.space != other.space:
            raise TypeError(f"{self.raw!r} ({self.space}) and {other.raw!r} ({other.space}) count different things")
        return self.parts < other.parts

    def __str__(self) -> str:
        return self.raw

    @property
    def _key(self) -> tuple[str, object]:
        return self.space, self.parts if self.known else self.raw


class Pair(NamedTuple):
    """Two versions of different number spaces that mean the same release, and who says so."""

    one: str
    other: str
    source: str = "added by the caller"


Pairs = Iterable[tuple[str, ...]]
"""Pairs as such or as plain tuples of two or three texts, which is what comes back from JSON."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing the version that built a model with the one that is to run it, and the rule that said so."""

    outcome: Literal["ok", "mismatch", "unknown", "off"]
    rule: str


def parse(text: str) -> Version:
    """Read a version string; one that fits no number space has ``space`` "unknown", one of zeros only "unset".

    Development parts (alpha, beta, T, B, RC) sort before the plain number of their family; a dot at the end, which
    version files have, is no part of it. The number of a HarmonyOS
    system software and an API level are recognised for what they are, so that a message can say so.
    """
    raw = text.strip()
    stripped = raw.rstrip(".")
    if len(stripped) > MAX_TEXT:
        return Version("unknown", (), raw)
    release = _RELEASE.match(stripped)
    if release:
        return Version("ascend-release", tuple((0, int(number or 0)) for number in release.groups()), stripped)
    for space, form in _FORMS:
        found = form.match(stripped)
        if found is None:
            continue
        parts = tuple((_RANKS[kind], int(number)) for kind, number in _PART.findall(found[1].lower()))
        if not any(number for _, number in parts):
            return Version("unset", (), stripped)
        if space == "public" and len(parts) == 2:
            parts += ((_RANKS[""], 0),)
        return Version(space, (*parts, _END), stripped)
    return Version("unknown", (), raw)


def is_release(space: str, text: str) -> bool:
    """Whether the bundled list of releases has this number of ``space``."""
    return parse(text) in _releases().get(space, ())


def covers(space: str, other: str) -> bool:
    """Whether one number of ``space`` may be several of ``other``: a release has builds, a toolkit has devices."""
    return space in _COVERING and other not in _COVERING


def translate(version: Version, space: str, extra: Pairs = ()) -> Version | None:
    """``version`` in another number space by the list of pairs, over several if need be; None if none lead there.

    Of several numbers the nearest counts. ``extra`` are pairs in addition to the bundled list, and come before it.
    """
    return next((name.version for name in _names(version, _joins(extra)) if name.version.space == space), None)


def compare(
    build: Version, device: Version, *, policy: Policy = "exact", dynamic: bool = False, extra: Pairs = ()
) -> Comparison:
    """Whether a model built with ``build`` may run where ``device`` is installed.

    ``exact``: the same version. ``window``: the vendor's rule for servers, the device not older and at most four
    version periods newer; ``dynamic`` says that the model has dynamic shapes. ``off``: not compared. ``extra`` are
    pairs of equal versions in different number spaces, in addition to the bundled list. The rule names the pairs that
    the outcome rests on, each with its source.

    Versions that pairs join are the same. They are known to be different only where each has its one number in a space
    and the two differ: that the list gives a release another build says nothing of the builds that it lacks.
    """
    if policy == "off":
        return Comparison("off", "policy off: versions are not compared")
    for version, who in ((build, "build"), (device, "device")):
        if version.complaint:
            return Comparison("unknown", f"policy {policy}: the {who} version {version.raw!r} {version.complaint}")
    if device.space == "hiai" and device.parts[1][1] < _FIRST_WITH_NPU:
        return Comparison("unknown", f"policy {policy}: by its version {device} the device has no NPU")
    joins = _joins(extra)
    mine, theirs = _names(build, joins), _names(device, joins)
    same = next((name for name in mine if name.version == device), None)
    if same:
        return Comparison("ok", _with_pairs(_rule(policy), same.way))
    shared = [
        (one, other)
        for one in mine
        for other in theirs
        if one.version.space == other.version.space and one.only and other.only
    ]
    if not shared:
        return Comparison(
            "unknown",
            f"policy {policy}: {build} ({build.space}) and {device} ({device.space}) are different number spaces "
            "and no known pair joins them",
        )
    return _exact(shared) if policy == "exact" else _window(shared, dynamic=dynamic)


@dataclass(frozen=True)
class _Name:
    """A number of a release, with the pairs that lead to it from the number that was asked about."""

    version: Version
    way: tuple[Pair, ...] = ()
    only: bool = True
    """Whether the release has no other number in that space; see :func:`covers`."""


_Joins = Mapping[Version, Sequence[tuple[Version, Pair]]]
"""What pairs say of each version, in their order."""
_Shared = list[tuple[_Name, _Name]]
"""Numbers of the build and of the device in one space, each the only one of its release there."""


def _names(version: Version, joins: _Joins) -> list[_Name]:
    """All numbers of a release that pairs lead to, the nearest first and of these the first listed.

    No way passes two numbers of one space: they would be two releases, or two builds of one.
    """
    names: dict[tuple[Version, bool], _Name] = {}
    ways = deque([(_Name(version), frozenset({version.space}))])
    seen = set()
    while ways:
        here, spaces = ways.popleft()
        names.setdefault((here.version, here.only), here)
        for there, pair in joins.get(here.version, ()):
            if there.space in spaces:
                continue
            only = here.only and not covers(here.version.space, there.space)
            step = (there, only, spaces | {there.space})
            if step not in seen:
                seen.add(step)
                ways.append((_Name(there, (*here.way, pair), only), spaces | {there.space}))
    return list(names.values())


def _exact(shared: _Shared) -> Comparison:
    agreeing = {one.version.space for one, other in shared if one.version == other.version}
    apart = [(one, other) for one, other in shared if one.version.space not in agreeing]
    one, other = (apart or shared)[0]
    return Comparison("mismatch" if apart else "ok", _with_pairs(_rule("exact"), one.way + other.way))


def _window(shared: _Shared, *, dynamic: bool) -> Comparison:
    """The outcome in the space that says most: a mismatch anywhere counts, then a space that knows the releases."""
    found = []
    for one, other in shared:
        outcome, why = _periods(one.version, other.version, dynamic=dynamic)
        found.append(Comparison(outcome, _with_pairs(_rule("window") + why, one.way + other.way)))
    return min(found, key=lambda comparison: ("mismatch", "ok", "unknown").index(comparison.outcome))


def _periods(build: Version, device: Version, *, dynamic: bool) -> tuple[Literal["ok", "mismatch", "unknown"], str]:
    """Outcome, and what there is to say of it, for two versions of one space."""
    if device < build:
        return "mismatch", ""
    floor = parse(_data()["dynamic_floor"]["version"])
    if dynamic and build.space == floor.space and build < floor and not device < floor:
        return "mismatch", f", and dynamic shapes of before CANN {floor} do not run on it and later"
    if build == device:
        return "ok", ""
    releases = _releases().get(build.space)
    if releases is None:
        return "unknown", f"; the releases between {build} and {device} are not known"
    first, last = bisect_right(releases, build) - 1, bisect_right(releases, device) - 1
    at_least = last - first
    if at_least > _data()["window"]["periods"]:
        return "mismatch", ""
    # Before the first listed release, or past the family of the last one, more periods may lie between than are listed.
    if first < 0 or device.parts[:2] > releases[-1].parts[:2]:
        return "unknown", f"; the releases between {build} and {device} are not all known"
    return "ok", ""


def _rule(policy: Policy) -> str:
    if policy == "exact":
        return "policy exact: both must be the same version"
    periods = _data()["window"]["periods"]
    return f"policy window: the device is not older than the build and at most {periods} version periods newer"


def _with_pairs(rule: str, way: Iterable[Pair]) -> str:
    return "; ".join([rule, *(f"{pair.one} = {pair.other} by {pair.source}" for pair in dict.fromkeys(way))])


def _joins(extra: Pairs) -> _Joins:
    joins: dict[Version, list[tuple[Version, Pair]]] = defaultdict(list)
    for one, other, pair in (*(_parsed(Pair(*pair)) for pair in extra), *_bundled_pairs()):
        joins[one].append((other, pair))
        joins[other].append((one, pair))
    return joins


def _parsed(pair: Pair) -> tuple[Version, Version, Pair]:
    return parse(pair.one), parse(pair.other), pair


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = Path(__file__).with_name("versions.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@lru_cache(maxsize=1)
def _bundled_pairs() -> tuple[tuple[Version, Version, Pair], ...]:
    return tuple(
        _parsed(Pair(entry["versions"][0], entry["versions"][1], entry["source"])) for entry in _data()["pairs"]
    )


@lru_cache(maxsize=1)
def _releases() -> dict[str, list[Version]]:
    return {entry["space"]: sorted(parse(text) for text in entry["versions"]) for entry in _data()["releases"]}
