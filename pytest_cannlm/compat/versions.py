"""Versions and the number spaces that they live in. Valid for Python 3.10.

A toolkit's ``6.1.1.0``, an Ascend package's internal ``7.6.0.1.220``, its public ``8.0.0`` and a device's
``108.631.120.010`` count different things. Numbers of one space are compared; numbers of two spaces are joined by a
list of known pairs (``versions.json``, extended by the user), and what the list does not hold is unknown, never equal.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Space = Literal["build", "public", "ascend-internal", "hiai", "unset", "unknown"]
Policy = Literal["exact", "window", "off"]
Pairs = Iterable[tuple[str, str]]

MAX_TEXT = 64
"""No version is longer; keeps hostile input away from the number parser."""

_FORMS: tuple[tuple[Space, re.Pattern[str]], ...] = (
    ("hiai", re.compile(r"^(?:hiaiversion\s+)?(\d{3}(?:\.\d{3}){3})$", re.IGNORECASE | re.ASCII)),
    ("build", re.compile(r"^(\d{1,2}(?:\.\d{1,3}){3})$", re.ASCII)),
    ("ascend-internal", re.compile(r"^(\d+\.\d+\.T?\d+\.\d+\.B?\d+)$", re.IGNORECASE | re.ASCII)),
    (
        "public",
        re.compile(r"^(\d+\.\d+(?:\.(?:\d+|RC\d+|T\d+))?(?:\.(?:RC|alpha|beta)\d+)?)$", re.IGNORECASE | re.ASCII),
    ),
)
_PART = re.compile(r"([a-z]*)(\d+)")
_RANKS = {"alpha": 0, "beta": 1, "t": 2, "b": 2, "rc": 3, "": 5}
_END = (4, 0)
"""Sorts after a pre-release part and before a further number: 8.0.RC2.alpha001 < 8.0.RC2 and 8.0 < 8.0.1."""


@dataclass(frozen=True)
class Version:
    """A version in its number space: equal if both are, ordered within a space, ``TypeError`` across two."""

    space: Space
    parts: tuple[tuple[int, int], ...]
    raw: str = field(compare=False)

    @property
    def known(self) -> bool:
        """Whether it is a version at all: neither unreadable nor an unset 0.0.0."""
        return self.space not in ("unknown", "unset")

    def __lt__(self, other: Version) -> bool:
        if not self.known or self.space != other.space:
            raise TypeError(f"{self.raw!r} ({self.space}) and {other.raw!r} ({other.space}) count different things")
        return self.parts < other.parts

    def __str__(self) -> str:
        return self.raw


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing the version that built a model with the one that is to run it, and the rule that said so."""

    outcome: Literal["ok", "mismatch", "unknown", "off"]
    rule: str


def parse(text: str) -> Version:
    """Read a version string; one that fits no number space has ``space`` "unknown", one of zeros only "unset".

    Development parts (alpha, beta, T, B, RC) sort before the plain number of their family.
    """
    stripped = text.strip().rstrip(".")
    if len(stripped) > MAX_TEXT:
        return Version("unknown", (), text.strip())
    for space, form in _FORMS:
        found = form.match(stripped)
        if found is None:
            continue
        parts = tuple((_RANKS[kind], int(number)) for kind, number in _PART.findall(found[1].lower()))
        if not any(number for _, number in parts):
            return Version("unset", (), text.strip())
        if space == "public" and len(parts) == 2:
            parts += ((_RANKS[""], 0),)
        return Version(space, (*parts, _END), text.strip())
    return Version("unknown", (), text.strip())


def translate(version: Version, space: str, extra: Pairs = ()) -> Version | None:
    """``version`` in another number space by the list of pairs; None if no pair holds it."""
    if version.space == space:
        return version
    for one, other in _pairs(extra):
        if one == version and other.space == space:
            return other
        if other == version and one.space == space:
            return one
    return None


def compare(
    build: Version, device: Version, *, policy: Policy = "exact", dynamic: bool = False, extra: Pairs = ()
) -> Comparison:
    """Whether a model built with ``build`` may run where ``device`` is installed.

    ``exact``: the same version. ``window``: the vendor's rule for servers, the device not older and at most four
    version periods newer; ``dynamic`` says that the model has dynamic shapes. ``off``: not compared. ``extra`` are
    pairs of equal versions in different number spaces, in addition to the bundled list.
    """
    if policy == "off":
        return Comparison("off", "policy off: versions are not compared")
    for version, who in ((build, "build"), (device, "device")):
        if version.space == "unset":
            return Comparison("unknown", f"policy {policy}: the {who} version {version.raw} is unset")
        if not version.known:
            return Comparison("unknown", f"policy {policy}: the {who} version {version.raw!r} is in no known form")
    extra = tuple(extra)
    if device.space == "hiai":  # what a device reports names the toolkit that it corresponds to, if a pair holds it
        device = translate(device, build.space, extra) or device
    joined = translate(build, device.space, extra)
    if joined is None and policy == "window":
        joined, device = _both_public(build, device, extra)
    if joined is None:
        return Comparison(
            "unknown",
            f"policy {policy}: {build} ({build.space}) and {device} ({device.space}) are different number spaces "
            "and no known pair joins them",
        )
    if policy == "exact":
        return Comparison("ok" if joined == device else "mismatch", "policy exact: both must be the same version")
    return _window(joined, device, dynamic=dynamic, extra=extra)


def _both_public(build: Version, device: Version, extra: Pairs) -> tuple[Version | None, Version]:
    return translate(build, "public", extra), translate(device, "public", extra) or device


def _window(build: Version, device: Version, *, dynamic: bool, extra: Pairs) -> Comparison:
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
    public_build, public_device = translate(build, "public", extra), translate(device, "public", extra)
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


def _pairs(extra: Pairs) -> Iterable[tuple[Version, Version]]:
    yield from ((parse(one), parse(other)) for one, other in extra)
    yield from _bundled_pairs()


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = Path(__file__).with_name("versions.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@lru_cache(maxsize=1)
def _bundled_pairs() -> tuple[tuple[Version, Version], ...]:
    return tuple((parse(entry["versions"][0]), parse(entry["versions"][1])) for entry in _data()["pairs"])


@lru_cache(maxsize=1)
def _releases() -> dict[str, list[Version]]:
    return {entry["space"]: sorted(parse(text) for text in entry["versions"]) for entry in _data()["releases"]}
