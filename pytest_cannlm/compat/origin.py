"""What a model file says of where it comes from: the attributes that its converter left. Valid for Python 3.10."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.checks import ORIGIN, Check
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.cmdline import soc_asked_for, toolkit_release
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.modelattrs import AttributeValue

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
    said: list[tuple[str, str, str, str]] = []
    atc, opp = text_of(attributes, "atc_version"), text_of(attributes, "opp_version")
    if atc and opp and atc.strip() != opp.strip():
        said.append((f"CANN {opp}", "opp_version", f"CANN {atc}", "atc_version"))
    command = text_of(attributes, "atc_cmdline") or ""
    release = toolkit_release(command)
    if atc and release and _differ(atc, release, target):
        said.append((f"CANN {release}", "atc_cmdline", f"CANN {atc}", "atc_version"))
    soc, asked = text_of(attributes, "soc_version"), soc_asked_for(command)
    if soc and asked and not chips.same_chip(soc, asked):
        said.append((f"chip {chips.shown(asked)}", "atc_cmdline", f"chip {chips.shown(soc)}", "soc_version"))
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


def _differ(internal: str, release: str, target: Target) -> bool:
    """Whether two versions are known to be different releases; a folder called ``latest`` says nothing."""
    folder = versions.parse(release)
    built = versions.translate(versions.parse(internal), folder.space, target.version_pairs) if folder.known else None
    return built is not None and built != folder
