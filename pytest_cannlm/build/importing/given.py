"""What the user adds to a package made elsewhere: settings that its files do not say, its CANN version, its chip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.origin import build_version, chip_claims, read_attributes
from pytest_cannlm.container.core import Container
from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.lint.schema import CONTEXT_SETTINGS, EXECUTOR_SETTINGS, Setting
from pytest_cannlm.settings import nearest

SETTINGS: Mapping[str, Setting] = {
    setting.field: setting for setting in (*EXECUTOR_SETTINGS, *CONTEXT_SETTINGS) if setting.section
}
"""Settings of ``executor.json`` and ``context.json`` that can be given, by section and key."""

_OPTION = "--set"


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Values of settings from texts such as ``llm_config.num_attention_heads=28``; a value is JSON, or text.

    :raises UsageError: an unknown or repeated setting, or a value that it cannot have.
    """
    given: dict[str, Any] = {}
    for text in texts:
        field, equals, raw = text.partition("=")
        setting = SETTINGS.get(field)
        if setting is None or not equals:
            likely = nearest(field, SETTINGS)
            raise UsageError(
                "not a setting of the engine with a value",
                field=_OPTION,
                found=text,
                expected="SECTION.KEY=VALUE, such as llm_config.num_attention_heads=28",
                remedy=f"Perhaps {likely} is meant" if likely else None,
            )
        value = _value(raw)
        if setting.kind == "text" and not isinstance(value, str):
            value = raw
        if field in given or not setting.takes(value):
            found = f"{field} twice" if field in given else f"{field}={raw}"
            raise UsageError("not a value for this setting", field=_OPTION, found=found, expected=setting.expected)
        given[field] = value
    return given


def said_of_build(container: Container, *, cann: str | None, chip: str | None) -> dict[str, Any]:
    """The manifest's ``build``: what the user says of a model file that does not say so itself.

    :raises UsageError: ``cann`` is no version that can be compared.
    :raises BadInputError: the file says something else; code SOURCE_CONTRADICTS.
    """
    attributes = read_attributes(container)
    said: dict[str, Any] = {}
    if cann is not None:
        complaint = versions.parse(cann).complaint
        if complaint:
            raise UsageError(f"the version {complaint}", field="--cann", found=cann, expected="such as 6.1.1.0")
        built = build_version(attributes)
        if built is None:
            said["cann"] = cann.strip()
        elif built[0].strip() != cann.strip():
            raise _contradiction(container.path, "--cann", cann, f"{built[0]} ({built[1]} of {container.path.name})")
    if chip is not None:
        claims = chip_claims(container, attributes)
        for place, name in claims.items():
            if not chips.same_chip(name, chip):
                raise _contradiction(container.path, "--chip", chips.shown(chip), f"{chips.shown(name)} ({place})")
        if not claims:
            said["chip"] = chips.normalize(chip)
    return {**said, "said_by_the_user": sorted(said)} if said else {}


def _value(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _contradiction(file: Path, option: str, found: str, expected: str) -> BadInputError:
    return BadInputError(
        "the model says something else of itself",
        file=file.name,
        field=option,
        found=found,
        expected=expected,
        remedy=f"Leave {option} out: what the file says is what counts",
        code="SOURCE_CONTRADICTS",
    )
