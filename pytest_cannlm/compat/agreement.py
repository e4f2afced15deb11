"""Whether the texts around a model agree with the model itself, which is what counts. Valid for Python 3.10."""

from __future__ import annotations

from pytest_cannlm.compat import chips
from pytest_cannlm.compat.checks import CACHE, MANIFEST, REBUILD, Check
from pytest_cannlm.compat.origin import Attributes, build_version, chip_claims
from pytest_cannlm.compat.package import Manifest, PackageFolder
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import Container
from pytest_cannlm.container.source import ReadLimitError

_CACHE_INPUT = "past_key_in0"
"""The KV cache of the first layer; its first axis is the number of positions."""


def manifest_agrees(container: Container, attributes: Attributes, target: Target, manifest: Manifest) -> Check:
    """Whether the manifest says what the model says; what only one of them says is no contradiction.

    Policy exact refuses a contradiction; any other policy has it among the reasons.
    """
    file = container.path.name
    said: list[tuple[str, str, str]] = []
    cann = build_version(attributes)
    if cann and manifest.cann and manifest.cann.strip() != cann[0].strip():
        said.append((f"CANN {manifest.cann}", f"CANN {cann[0]}", f"{cann[1]} of {file}"))
    for place, name in chip_claims(container, attributes).items():
        if manifest.chip and not chips.same_chip(manifest.chip, name):
            said.append((f"chip {chips.shown(manifest.chip)}", f"chip {chips.shown(name)}", place))
    if manifest.simulated is not None and manifest.simulated != container.simulated:
        kinds = {True: "simulated", False: "for a real NPU"}
        said.append((kinds[manifest.simulated], kinds[container.simulated], f"userdefineinfo of {file}"))
    refused = bool(said) and target.policy == "exact"
    manifests, files, places = (
        (", ".join(dict.fromkeys(facts)) for facts in zip(*said, strict=True)) if said else ("", "", "")
    )
    return Check(
        name=MANIFEST,
        outcome="mismatch" if refused else "off" if said else "ok",
        code="MANIFEST_CONTRADICTS" if said else None,
        found=manifests or "nothing else than the file",
        found_in=manifest.path.name,
        expected=files or "what the file says",
        expected_from=places or file,
        rule="the manifest says of the file what the file says of itself; the file is what counts"
        + ("" if refused or not said else f", and policy {target.policy} does not refuse it"),
        remedy="Take the manifest that was built with this file, or check without one" if said else "",
    )


def cache_agrees(container: Container, folder: PackageFolder) -> list[Check]:
    """Whether ``kv_cache_max_len`` is the length that the graph was compiled for; no check where it does not say so."""
    try:
        shape = container.input_shape(_CACHE_INPUT)
    except ReadLimitError:
        return []
    if not shape or shape[0] < 1:
        return []
    good = shape[0] == folder.cache_length
    return [
        Check(
            name=CACHE,
            outcome="ok" if good else "mismatch",
            code=None if good else "PACKAGE_DAMAGED",
            found=f"kv_cache_max_len {folder.cache_length}",
            found_in="executor.json",
            expected=f"{shape[0]} positions",
            expected_from=f"input {_CACHE_INPUT} of {container.path.name}",
            rule="the engine is told the KV cache that the graph was compiled for",
            remedy="" if good else REBUILD,
        )
    ]
