"""The single checks of the gate, each a function from facts to a :class:`Check`. Valid for Python 3.10."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.package import Manifest, PackageFolder
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.layout import KIRIN_COMPILED
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.source import ReadLimitError
from pytest_cannlm.errors import CannlmError, UsageError

DEVICE_CHIP, FILES, CONTAINER, ENGINE, CHIP, CANN, MANIFEST, SIZES, CACHE = (
    "device chip",
    "package files",
    "container",
    "engine",
    "chip",
    "cann",
    "manifest",
    "sizes",
    "cache",
)

Attributes = Mapping[str, AttributeValue]
Outcome = Literal["ok", "mismatch", "unknown", "off"]

POLICIES = ("exact", "window", "off")
ON_UNKNOWN = ("refuse", "load")

_WANTED = ("atc_version", "opp_version", "soc_version")
_LONGEST_VALUE = 1024
REBUILD = "Build the package again, or copy it again and compare sizes"


@dataclass(frozen=True)
class Target:
    """Where a package is to be loaded, and by which rules.

    ``chip`` and ``cann`` (the toolkit version that the device corresponds to) or ``device_version`` (what the device
    reports, another number space) are as read from the device; ``version_from`` says where. ``chips`` are the chips
    that may be used at all. ``version_pairs`` join number spaces in addition to the bundled list.
    """

    chip: str
    cann: str | None
    device_version: str | None = None
    simulated: bool = False
    policy: str = "exact"
    on_unknown: str = "refuse"
    chips: tuple[str, ...] = ("KirinX90",)
    version_from: str = ""
    version_pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        texts = (
            "chip",
            "version_from",
            *(name for name in ("cann", "device_version") if getattr(self, name) is not None),
        )
        for name in texts:
            _need(name, getattr(self, name), isinstance(getattr(self, name), str), "a text")
        _need("simulated", self.simulated, isinstance(self.simulated, bool), "true or false")
        _need("chips", self.chips, _are_texts(self.chips), "names of chips")
        pairs = all(_are_texts(pair) and len(pair) == 2 for pair in self.version_pairs)
        _need("version_pairs", self.version_pairs, pairs, "pairs of versions")
        for name, value, choices in (
            ("policy", self.policy, POLICIES),
            ("on_unknown", self.on_unknown, ON_UNKNOWN),
        ):
            _need(name, value, value in choices, " or ".join(choices))

    @property
    def device(self) -> str:
        """How the target is called in explanations."""
        return f"the simulated {self.chip}" if self.simulated else f"the {self.chip} device"


@dataclass(frozen=True)
class Check:
    """One question of the gate and its outcome: ok, mismatch, unknown (cannot be told), or off (not judged)."""

    name: str
    outcome: Outcome
    code: str | None
    found: str
    found_in: str
    expected: str
    expected_from: str
    rule: str
    remedy: str

    def __post_init__(self) -> None:
        for name in ("found", "found_in", "expected", "expected_from", "rule", "remedy"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))

    def line(self) -> str:
        """Everything about this check on one line."""
        head = f"{self.name} {self.outcome}" + (f" ({self.code})" if self.code else "")
        text = (
            f"{head}: found {self.found} ({self.found_in}), expected {self.expected} ({self.expected_from});"
            f" rule: {self.rule}"
        )
        return f"{text}; remedy: {self.remedy}" if self.remedy else text


def chip_allowed(target: Target) -> Check:
    """Whether the device's chip is one that may be used at all."""
    allowed = any(chips.same_chip(target.chip, name) for name in target.chips)
    return Check(
        name=DEVICE_CHIP,
        outcome="ok" if allowed else "mismatch",
        code=None if allowed else "CHIP_NOT_ALLOWED",
        found=chips.normalize(target.chip) or "no chip",
        found_in=f"reported by {target.device}",
        expected=" or ".join(map(chips.normalize, target.chips)),
        expected_from="list of allowed chips",
        rule="on a chip outside the list the model is not even opened",
        remedy="" if allowed else "Use a device of the list, or add the chip to chips= of the marker",
    )


def complete(folder: PackageFolder) -> Check:
    """Whether all files that ``executor.json`` names are there."""
    missing = folder.missing()
    return Check(
        name=FILES,
        outcome="mismatch" if missing else "ok",
        code="PACKAGE_INCOMPLETE" if missing else None,
        found="missing: " + ", ".join(missing) if missing else f"{len(folder.required)} files",
        found_in=str(folder.folder),
        expected=", ".join(path.name for path in folder.required),
        expected_from="executor.json",
        rule="every file that executor.json names is in the package",
        remedy=REBUILD if missing else "",
    )


def container_ok(container: Container) -> Check:
    """The container was opened without an error."""
    return Check(
        name=CONTAINER,
        outcome="ok",
        code=None,
        found=f"a {container.dialect} container of {container.size} bytes, layout {container.layout}",
        found_in=container.path.name,
        expected="a sound container",
        expected_from="header and partition table",
        rule="header, lengths and partition table agree with each other and with the file",
        remedy="",
    )


def from_error(name: str, error: CannlmError) -> Check:
    """An exception of reading as the outcome of a check; what lies beyond the read limit is unknown, not wrong."""
    return Check(
        name=name,
        outcome="unknown" if isinstance(error, ReadLimitError) else "mismatch",
        code=error.code,
        found="a broken file" if error.found is None else str(error.found),
        found_in=error.file or "the package",
        expected="a sound file" if error.expected is None else str(error.expected),
        expected_from=error.field or "its format",
        rule=error.message,
        remedy=error.remedy or REBUILD,
    )


def right_engine(container: Container, target: Target) -> Check:
    """Simulated packages go to the simulator and real ones to a device."""
    mark = f"userdefineinfo of {container.path.name}"
    good = container.simulated == target.simulated
    if container.simulated:
        code, remedy = "SIMULATED_PACKAGE_ON_DEVICE", "Build the package with a real converter: --converter omg"
    else:
        code, remedy = (
            "REAL_PACKAGE_ON_SIMULATOR",
            "Build a package for the simulator from the checkpoint: cannlm build",
        )
    return Check(
        name=ENGINE,
        outcome="ok" if good else "mismatch",
        code=None if good else code,
        found="a simulated package" if container.simulated else "a package for a real NPU",
        found_in=mark,
        expected="a simulated package" if target.simulated else "a package for a real NPU",
        expected_from=target.device,
        rule="what the simulated converter wrote runs on the simulator only, and nothing else does",
        remedy="" if good else remedy,
    )


def read_attributes(container: Container) -> Attributes:
    """The attributes of the model that the checks look at."""
    return container.attributes(_WANTED, max_value=_LONGEST_VALUE)


def chip(container: Container, attributes: Attributes, target: Target, manifest: Manifest | None) -> Check:
    """Whether the model was compiled for the target's chip."""
    file = container.path.name
    wanted = chips.normalize(target.chip)
    dialect = "kirin" if wanted.startswith("Kirin") else "ascend"
    claims = chip_claims(container, attributes)
    if not claims and manifest and manifest.chip:
        claims[f"build.chip in {manifest.path.name}"] = chips.normalize(manifest.chip)
    rule = "compiled for exactly the chip of the device; a sibling or a family is another chip"
    outcome: Outcome
    if container.dialect != dialect:
        outcome, claims = "mismatch", {f"header of {file}": f"{container.dialect.capitalize()} model"}
    elif dialect == "kirin" and container.header.modeltype != KIRIN_COMPILED:
        kind = container.model_type_name or f"model type {container.header.modeltype}"
        outcome, rule = "unknown", f"a model of kind {kind} is compiled on the device, which alone can tell"
    elif not claims:
        outcome = "unknown"
        claims = _unnamed_platform(container) or {f"neither attributes nor TASK_INFO of {file}": "no chip"}
    else:
        outcome = "ok" if all(chips.same_chip(name, wanted) for name in claims.values()) else "mismatch"
    return Check(
        name=CHIP,
        outcome=outcome,
        code={"mismatch": "CHIP_MISMATCH", "unknown": "CHIP_UNKNOWN"}.get(outcome),
        found=", ".join(dict.fromkeys(claims.values())) or "no chip",
        found_in=", ".join(claims) or file,
        expected=wanted,
        expected_from=target.device,
        rule=rule,
        remedy="" if outcome == "ok" else f"Build the package for this chip: cannlm build --chip {wanted}",
    )


def chip_claims(container: Container, attributes: Attributes) -> dict[str, str]:
    """Where the file names a chip, and which; soc_version overrules code 10, which also stands for unknown chips."""
    file = container.path.name
    claims: dict[str, str] = {}
    soc = _text(attributes, "soc_version")
    if soc:
        claims[f"soc_version of {file}"] = chips.normalize(soc)
    platform = container.kirin_platform()
    name = chips.chip_of_platform(platform[0]) if platform else None
    if name and not (soc and name == chips.DEFAULT_PLATFORM_CHIP):
        claims[f"TASK_INFO of {file}"] = name
    return claims


def _unnamed_platform(container: Container) -> dict[str, str]:
    platform = container.kirin_platform()
    return {f"TASK_INFO of {container.path.name}": f"platform code {platform[0]}"} if platform else {}


_POLICY_OFF = "policy off: versions are not compared"


def cann(container: Container, attributes: Attributes, target: Target, manifest: Manifest | None) -> Check:
    """Whether the version that built the model may run on the target's version, by the target's policy."""
    found, found_in = _version_and_place(container, attributes, manifest)
    expected = target.cann or target.device_version
    if target.policy == "off":
        comparison = versions.Comparison("off", _POLICY_OFF)
    elif found is None or expected is None:
        side = "the package does not say what built it" if found is None else "the device's version is not known"
        comparison = versions.Comparison(
            "unknown", f"policy {target.policy}: {side}, and a missing version is never equal"
        )
    else:
        comparison = versions.compare(
            versions.parse(found),
            versions.parse(expected),
            policy="window" if target.policy == "window" else "exact",
            dynamic=container.header.multi_model,
            extra=target.version_pairs,
        )
    codes = {"mismatch": "CANN_VERSION_MISMATCH", "unknown": "CANN_VERSION_UNKNOWN"}
    remedies = {
        "mismatch": f"Build the package again (cannlm build --cann {expected}), or use a device with {found}",
        "unknown": "Build with a converter that writes its version, keep the manifest beside the package, or add the "
        "pair to the version list; on a real device --npu-cann-unknown=load loads it unchecked",
    }
    return Check(
        name=CANN,
        outcome=comparison.outcome,
        code=codes.get(comparison.outcome),
        found=found or "no build version",
        found_in=found_in,
        expected=expected or "no device version",
        expected_from=_version_source(target),
        rule=comparison.rule,
        remedy=remedies.get(comparison.outcome, ""),
    )


def versions_not_read(target: Target) -> Check:
    """With policy off, for results that end before the versions are looked at: says so all the same."""
    return Check(
        name=CANN,
        outcome="off",
        code=None,
        found="nothing",
        found_in="not read",
        expected=target.cann or target.device_version or "no device version",
        expected_from=_version_source(target),
        rule=_POLICY_OFF,
        remedy="",
    )


def _version_source(target: Target) -> str:
    return target.version_from or (f"CANN of {target.device}" if target.cann else f"reported by {target.device}")


def build_version(attributes: Attributes) -> tuple[str, str] | None:
    """The version that built the model by the file itself, and the attribute that says it."""
    for key in ("atc_version", "opp_version"):
        version = _text(attributes, key)
        if version:
            return version, key
    return None


def _version_and_place(
    container: Container, attributes: Attributes, manifest: Manifest | None
) -> tuple[str | None, str]:
    """The version that built the model and where it stands: the file itself, else the manifest."""
    file = container.path.name
    built, opp = build_version(attributes), _text(attributes, "opp_version")
    if built:
        where = f"{built[1]} of {file}"
        if opp and opp != built[0]:
            where += f", whose opp_version is {opp}"
        if manifest and manifest.cann and manifest.cann != built[0]:
            where += f", while {manifest.path.name} says {manifest.cann}"
        return built[0], where
    if manifest and manifest.cann:
        return manifest.cann, f"build.cann in {manifest.path.name}"
    return None, f"neither the attributes of {file} nor a manifest"


def _text(attributes: Attributes, key: str) -> str | None:
    value = attributes.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _need(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise UsageError(f"{name} of the gate cannot be {value!r}", field=name, found=repr(value), expected=expected)


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def _one_line(text: str) -> str:
    """Text from files on one line, without control characters, cut where it gets long."""
    flat = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)
    return flat if len(flat) <= 400 else flat[:397] + "..."
