"""What a model file says of where it comes from: the attributes that its converter left. Valid for Python 3.10."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.checks import ORIGIN, Check
from pytest_cannlm.compat.target import Target
from pytest_cannlm.compat.versions import Pairs
from pytest_cannlm.container.cmdline import soc_asked_for, toolkit_release
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.taskinfo import PLATFORM_CODES

Attributes = Mapping[str, AttributeValue]

_WANTED = ("atc_version", "opp_version", "soc_version", "atc_cmdline", "host_env_os", "host_env_cpu")
_LONGEST_VALUE = 4096


def read_attributes(container: Container) -> Attributes:
    """The attributes of the model that the gate looks at; none of a kind of container that has no place for them."""
    return container.attributes(_WANTED, max_value=_LONGEST_VALUE) if container.has_model_def() else {}


def text_of(attributes: Attributes, key: str) -> str | None:
    """An attribute that is a text; one that is there and empty is as good as absent."""
    value = attributes.get(key)
    return value if isinstance(value, str) and value.strip() else None


def build_version(attributes: Attributes) -> tuple[str, str] | None:
    """The version that built the model by the file itself, and the attribute that says it."""
    for key in ("atc_version", "opp_version"):
        version = text_of(attributes, key)
        if version:
            return version, key
    return None


def chip_claims(container: Container, attributes: Attributes) -> dict[str, str]:
    """Where the file names a chip, and which; soc_version overrules code 10, which also stands for unknown chips."""
    file = container.path.name
    claims: dict[str, str] = {}
    soc = text_of(attributes, "soc_version")
    if soc:
        claims[f"soc_version of {file}"] = chips.normalize(soc)
    platform = container.kirin_platform()
    name = chips.chip_of_platform(platform[0]) if platform else None
    weak = name == chips.DEFAULT_PLATFORM_CHIP
    if platform and name and not (soc and weak):
        doubt = f" (code {platform[0]}, which converters also write for chips that they do not know)" if weak else ""
        claims[f"TASK_INFO of {file}{doubt}"] = name
    return claims


def contradictions(container: Container, attributes: Attributes, target: Target) -> list[Check]:
    """What the file says of its origin in two ways; reported, and decisive for nothing. None where all agrees."""
    file = container.path.name
    platform = container.kirin_platform()
    said = _said_twice(attributes, platform[0] if platform else None, target.version_pairs)
    if not said:
        return []
    found, found_in, expected, expected_from = (", ".join(dict.fromkeys(facts)) for facts in zip(*said, strict=True))
    return [
        Check(
            name=ORIGIN,
            outcome="off",
            code="ORIGIN_CONTRADICTS",
            found=found,
            found_in=f"{found_in} of {file}",
            expected=expected,
            expected_from=f"{expected_from} of {file}",
            rule="a file says one thing of its origin; atc_version and soc_version are what counts, the rest is told",
            remedy="If it fails on the device, convert it with a toolkit and an operator package of one version",
        )
    ]


def contradiction_notes(attributes: Attributes, *, platform: int | None, version_pairs: Pairs = ()) -> list[str]:
    """The same as lines for people: one for each thing that is said in two ways. ``platform`` is the Kirin code."""
    return [
        f"{where} says {found}, {other_place} says {other}"
        for found, where, other, other_place in _said_twice(attributes, platform, version_pairs)
    ]


def _said_twice(attributes: Attributes, platform: int | None, pairs: Pairs) -> list[tuple[str, str, str, str]]:
    """What is said and where, then what counts and where that stands."""
    said: list[tuple[str, str, str, str]] = []
    atc, opp = text_of(attributes, "atc_version"), text_of(attributes, "opp_version")
    if atc and opp and atc.strip() != opp.strip():
        said.append((f"CANN {opp}", "opp_version", f"CANN {atc}", "atc_version"))
    command = text_of(attributes, "atc_cmdline") or ""
    release = toolkit_release(command)
    if atc and release and _differ(atc, release, pairs):
        said.append((f"CANN {release}", "atc_cmdline", f"CANN {atc}", "atc_version"))
    soc, asked = text_of(attributes, "soc_version"), soc_asked_for(command)
    if soc and asked and not chips.same_chip(soc, asked):
        said.append((f"chip {chips.shown(asked)}", "atc_cmdline", f"chip {chips.shown(soc)}", "soc_version"))
    usual = PLATFORM_CODES.get(chips.normalize(soc or ""))
    if soc and usual and platform != usual and platform in PLATFORM_CODES.values():
        shown = f"{usual}, the platform code for {chips.shown(soc)}"
        said.append((f"platform code {platform}", "TASK_INFO", shown, "soc_version"))
    return said


def _differ(internal: str, release: str, pairs: Pairs) -> bool:
    """Whether two versions are known to be different releases; a folder called ``latest`` says nothing."""
    folder = versions.parse(release)
    built = versions.translate(versions.parse(internal), folder.space, pairs) if folder.known else None
    return built is not None and built != folder
