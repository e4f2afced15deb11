"""Where a package is to be loaded, and by which rules: what the gate holds it against. Valid for Python 3.10."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cannlm.compat import chips
from pytest_cannlm.errors import UsageError

POLICIES = ("exact", "window", "off")
ON_UNKNOWN = ("refuse", "load")

_TEXTS = ("cann", "device_version", "opp_version", "host_os", "host_cpu")


@dataclass(frozen=True)
class Target:
    """Where a package is to be loaded, and by which rules.

    ``chip`` and ``cann`` (the toolkit version that the device corresponds to) or ``device_version`` (what the device
    reports, another number space) are as read from the device; ``version_from`` says where. ``simulated`` None stands
    for whichever the package is for. ``chips`` are the chips that may be used at all. ``version_pairs`` join number
    spaces in addition to the bundled list.

    The rest is asked of Ascend models only: ``opp_version`` is the text behind ``Version=`` in the installed operator
    package's ``version.info``, ``host_os`` and ``host_cpu`` are those of its ``scene.info``, and each group of
    ``same_architecture`` are chips that the user knows to be of one NPU architecture.
    """

    chip: str
    cann: str | None
    device_version: str | None = None
    simulated: bool | None = False
    policy: str = "exact"
    on_unknown: str = "refuse"
    chips: tuple[str, ...] = ("KirinX90",)
    version_from: str = ""
    version_pairs: tuple[tuple[str, ...], ...] = ()
    opp_version: str | None = None
    host_os: str | None = None
    host_cpu: str | None = None
    same_architecture: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("chip", "version_from"):
            _need(name, getattr(self, name), isinstance(getattr(self, name), str), "a text")
        for name in _TEXTS:
            _need(name, getattr(self, name), isinstance(getattr(self, name), (str, type(None))), "a text")
        _need("simulated", self.simulated, isinstance(self.simulated, (bool, type(None))), "true, false or nothing")
        _need("chips", self.chips, _are_texts(self.chips), "names of chips")
        pairs = all(_are_texts(pair) and len(pair) in (2, 3) for pair in self.version_pairs)
        _need("version_pairs", self.version_pairs, pairs, "pairs of versions, each with its source")
        groups = all(_are_texts(group) and len(group) > 1 for group in self.same_architecture)
        _need("same_architecture", self.same_architecture, groups, "groups of two or more chips")
        for name, value, choices in (
            ("policy", self.policy, POLICIES),
            ("on_unknown", self.on_unknown, ON_UNKNOWN),
        ):
            _need(name, value, value in choices, " or ".join(choices))

    @property
    def device(self) -> str:
        """How the target is called in explanations; nothing simulates a chip that is no Kirin."""
        chip = chips.shown(self.chip)
        return f"the simulated {chip}" if self.simulated and chip.startswith("Kirin") else f"the {chip} device"

    def same_npu(self, one: str, other: str) -> bool:
        """Whether two names are of one chip, or of two that ``same_architecture`` groups."""
        return chips.same_chip(one, other) or any(
            all(any(chips.same_chip(name, member) for member in group) for name in (one, other))
            for group in self.same_architecture
        )


def _need(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise UsageError(f"{name} of the gate cannot be {value!r}", field=name, found=repr(value), expected=expected)


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)
