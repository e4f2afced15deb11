"""Whether a model fits its target: the chip that it was compiled for and the version that built it.

Valid for Python 3.10.
"""

from __future__ import annotations

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.checks import CANN, CHIP, Check, Outcome
from pytest_cannlm.compat.origin import Attributes, build_version, chip_claims, text_of
from pytest_cannlm.compat.package import Manifest
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.layout import KIRIN_COMPILED, KIRIN_PORTABLE, field_text

_POLICY_OFF = "policy off: versions are not compared"
_EXACT_CHIP = "compiled for exactly the chip of the device; a sibling or a family is another chip"
_EQUAL_CHIP = "compiled for the chip of the device, or for one that the user knows to be its equal"
_NO_CHIP = "the package does not say for which chip it was compiled, and a missing chip is never the right one"
_ASK_DEVICE = "Let the device judge the file (HMS_HiAICompatibility_CheckFromFile)"


def chip(container: Container, attributes: Attributes, target: Target, manifest: Manifest | None) -> Check:
    """Whether the model was compiled for the target's chip."""
    wanted = chips.normalize(target.chip)
    claims = _claims(container, attributes, manifest)
    found = {place: chips.shown(name) for place, name in claims.items()}
    ascend = _dialect_of(wanted) == "ascend"
    rule, again = _EXACT_CHIP, f"Build the package for this chip: cannlm build MODEL --chip {chips.shown(wanted)}"
    if ascend:
        rule, again = _EQUAL_CHIP, f"Convert it for this chip (atc --soc_version={chips.shown(wanted)})"
    remedy = f"{again}, or name the chips that are equal" if ascend else again
    outcome: Outcome
    beyond = _beyond_the_file(container)
    if container.dialect != _dialect_of(wanted) and not container.header.layout_guessed:
        outcome, rule, remedy = "mismatch", "Kirin models run on Kirin chips, Ascend models on Ascend chips", again
        found = {f"header of {container.path.name}": f"{container.dialect.capitalize()} model"}
    elif beyond:
        outcome, rule, remedy = "unknown", beyond, f"{_ASK_DEVICE}, or compile it for its chip"
    elif not claims:
        outcome, rule, found = "unknown", _NO_CHIP, _unnamed_platform(container)
        remedy = again if ascend or target.simulated else f"{_ASK_DEVICE}, or keep the manifest beside the package"
    else:
        same = target.same_npu if ascend else chips.same_chip
        outcome = "ok" if all(same(name, wanted) for name in claims.values()) else "mismatch"
    return Check(
        name=CHIP,
        outcome=outcome,
        code={"mismatch": "CHIP_MISMATCH", "unknown": "CHIP_UNKNOWN"}.get(outcome),
        found=", ".join(dict.fromkeys(found.values())) or "no chip",
        found_in=", ".join(found) or container.path.name,
        expected=chips.shown(wanted),
        expected_from=target.device,
        rule=rule,
        remedy="" if outcome == "ok" else remedy,
    )


def _claims(container: Container, attributes: Attributes, manifest: Manifest | None) -> dict[str, str]:
    claims = chip_claims(container, attributes)
    if not claims and manifest and manifest.chip:
        claims[f"build.chip in {manifest.path.name}"] = chips.normalize(manifest.chip)
    return claims


def _beyond_the_file(container: Container) -> str | None:
    """Why the file alone cannot say whether it fits the chip, whatever chip it names; None if it can."""
    header = container.header
    if header.layout_guessed:
        version = field_text(header.platform_version)
        return f"the platform version {version!r} fits neither Kirin nor Ascend, so whose model this is stays a guess"
    if container.dialect != "kirin" or header.modeltype == KIRIN_COMPILED:
        return None
    kind = container.model_type_name or f"model type {header.modeltype}"
    if header.modeltype == KIRIN_PORTABLE:
        return f"a portable model ({kind}) is compiled on the device, which alone can tell"
    return f"a model of kind {kind} does not say for which chip it is, the device alone can tell"


def _dialect_of(chip_name: str) -> str:
    return "kirin" if chip_name.startswith("Kirin") else "ascend"


def _unnamed_platform(container: Container) -> dict[str, str]:
    file, platform = container.path.name, container.kirin_platform()
    if platform:
        return {f"TASK_INFO of {file}, a code without a known name": f"platform code {platform[0]}"}
    return {f"neither attributes nor TASK_INFO of {file}": "no chip"}


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
    again = (
        f"Build the package again (cannlm build MODEL --cann {expected})"
        if container.dialect == "kirin"
        else f"Convert it again with the atc of {expected}"
    )
    remedies = {
        "mismatch": f"{again}, or use a device with {found}",
        "unknown": _unknown_remedy(found, expected, target),
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


def _unknown_remedy(found: str | None, expected: str | None, target: Target) -> str:
    """What makes the versions comparable, and who can judge without them."""
    ways = []
    if found is None or not versions.parse(found).known:
        ways.append("Build with a converter that writes its version, or keep the manifest beside the package")
    elif expected is None or not versions.parse(expected).known:
        ways.append("Find out which CANN version the target has")
    else:
        ways.append(
            f"If they are one release, add {found} and {expected} to a list of version pairs "
            "(--npu-version-pairs; of cannlm check, --version-pairs)"
        )
    if _dialect_of(chips.normalize(target.chip)) == "kirin" and not target.simulated:
        ways.append(_ASK_DEVICE)
    if target.on_unknown == "load" and not target.simulated:
        ways.append("The setting cann_unknown=load has it loaded unchecked, so expect a crash or wrong text")
    return ". ".join(ways)


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


def _version_and_place(
    container: Container, attributes: Attributes, manifest: Manifest | None
) -> tuple[str | None, str]:
    """The version that built the model and where it stands: the file itself, else the manifest."""
    file = container.path.name
    built, opp = build_version(attributes), text_of(attributes, "opp_version")
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
