"""Versions and the number spaces that they live in. Valid for Python 3.10.

A toolkit's ``6.1.1.0``, an Ascend package's internal ``7.6.0.1.220``, its public ``8.0.0`` and a device's
``108.631.120.010`` count different things. Numbers of one space are compared; numbers of two spaces are joined by a
list of known pairs (``versions.json``, extended by the user), and what the list does not hold is unknown, never equal.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
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
    # HarmonyOS counts its builds in three digits (6.1.0.135), where no DDK has got beyond one (6.1.1.0).
    ("harmonyos", _form(r"(?:(?:Open)?Harmony(?:OS)?[\s-]*)?(\d(?:\.\d{1,2}){2}\.\d{3})(?:\s?\(.*\)|SP\d.*)?")),
    ("build", _form(r"(\d{1,2}(?:\.\d{1,3}){3})")),
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

    Development parts (alpha, beta, T, B, RC) sort before the plain number of their family. The number of a HarmonyOS
    system software and an API level are recognised for what they are, so that a message can say so.
    """
    raw = text.strip()
    stripped = raw.rstrip(".")
    if len(stripped) > MAX_TEXT:
        return Version("unknown", (), raw)
    release = _RELEASE.match(stripped)
    if release:
        return Version("ascend-release", tuple((0, int(number or 0)) for number in release.groups()), raw)
    for space, form in _FORMS:
        found = form.match(stripped)
        if found is None:
            continue
        parts = tuple((_RANKS[kind], int(number)) for kind, number in _PART.findall(found[1].lower()))
        if not any(number for _, number in parts):
            return Version("unset", (), raw)
        if space == "public" and len(parts) == 2:
            parts += ((_RANKS[""], 0),)
        return Version(space, (*parts, _END), raw)
    return Version("unknown", (), raw)


def translate(version: Version, space: str, extra: Pairs = ()) -> Version | None:
    """``version`` in another number space by the list of pairs, over several if need be; None if none lead there.

    ``extra`` are pairs in addition to the bundled list, and come before it.
    """
    return _Joins(extra).translate(version, space)


def compare(
    build: Version, device: Version, *, policy: Policy = "exact", dynamic: bool = False, extra: Pairs = ()
) -> Comparison:
    """Whether a model built with ``build`` may run where ``device`` is installed.

    ``exact``: the same version. ``window``: the vendor's rule for servers, the device not older and at most four
    version periods newer; ``dynamic`` says that the model has dynamic shapes. ``off``: not compared. ``extra`` are
    pairs of equal versions in different number spaces, in addition to the bundled list. The rule names the pairs that
    the outcome rests on, each with its source.
    """
    if policy == "off":
        return Comparison("off", "policy off: versions are not compared")
    for version, who in ((build, "build"), (device, "device")):
        if version.complaint:
            return Comparison("unknown", f"policy {policy}: the {who} version {version.raw!r} {version.complaint}")
    if device.space == "hiai" and device.parts[1][1] < _FIRST_WITH_NPU:
        return Comparison("unknown", f"policy {policy}: by its version {device} the device has no NPU")
    joins = _Joins(extra)
    comparison = _compare(build, device, policy=policy, dynamic=dynamic, joins=joins)
    by = "; ".join(f"{pair.one} = {pair.other} by {pair.source}" for pair in joins.used)
    return Comparison(comparison.outcome, f"{comparison.rule}; {by}") if by else comparison


def _compare(build: Version, device: Version, *, policy: Policy, dynamic: bool, joins: _Joins) -> Comparison:
    if device.space == "hiai":  # what a device reports names the toolkit that it corresponds to, if a pair holds it
        device = joins.translate(device, build.space) or device
    joined = joins.translate(build, device.space)
    if joined is None and policy == "window":
        joined = joins.translate(build, "public")
        device = joins.translate(device, "public") or device
    if joined is None:
        return Comparison(
            "unknown",
            f"policy {policy}: {build} ({build.space}) and {device} ({device.space}) are different number spaces "
            "and no known pair joins them",
        )
    if policy == "exact":
        return Comparison("ok" if joined == device else "mismatch", "policy exact: both must be the same version")
    return _window(joined, device, dynamic=dynamic, joins=joins)


class _Joins:
    """The pairs that join number spaces, and which of them were used."""

    def __init__(self, extra: Pairs) -> None:
        self._pairs = (*(_parsed(Pair(*pair)) for pair in extra), *_bundled_pairs())
        self.used: list[Pair] = []

    def translate(self, version: Version, space: str) -> Version | None:
        """See :func:`translate`: the shortest way, the first listed of several."""
        ways: deque[tuple[Version, tuple[Pair, ...]]] = deque([(version, ())])
        seen = {version}
        while ways:
            here, way = ways.popleft()
            if here.space == space:
                self.used += [pair for pair in way if pair not in self.used]
                return here
            for one, other, pair in self._pairs:
                there = other if one == here else one if other == here else None
                if there is not None and there not in seen:
                    seen.add(there)
                    ways.append((there, (*way, pair)))
        return None


def _window(build: Version, device: Version, *, dynamic: bool, joins: _Joins) -> Comparison:
    periods: int = _data()["window"]["periods"]
    rule = f"policy window: the device is not older than the build and at most {periods} version periods newer"
    if device.space != build.space:
        return Comparison("unknown", f"{rule}; {device} has no known public number")
    if device < build:
        return Comparison("mismatch", rule)
    floor = parse(_data()["dynamic_floor"]["version"])
    if dynamic and build.space == floor.space and build < floor and not device < floor:
        return Comparison("mismatch", f"{rule}, and dynamic shapes of before CANN {floor} do not run on it and later")
    if build == device:
        return Comparison("ok", rule)
    public_build, public_device = joins.translate(build, "public"), joins.translate(device, "public")
    if build.space == "ascend-internal" and public_build and public_device:
        build, device = public_build, public_device
    releases = _releases().get(build.space)
    if releases is None:
        return Comparison("unknown", f"{rule}; the releases between {build} and {device} are not known")
    first, last = bisect_right(releases, build) - 1, bisect_right(releases, device) - 1
    at_least = last - first
    if at_least > periods:
        return Comparison("mismatch", rule)
    # Before the first listed release, or past the family of the last one, more periods may lie between than are listed.
    if first < 0 or device.parts[:2] > releases[-1].parts[:2]:
        return Comparison("unknown", f"{rule}; the releases between {build} and {device} are not all known")
    return Comparison("ok", rule)


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
