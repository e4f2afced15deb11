"""Whether the texts around a model agree with the model itself, which is what counts. Valid for Python 3.10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_cannlm.compat import chips
from pytest_cannlm.compat.checks import CACHE, MANIFEST, REBUILD, Check
from pytest_cannlm.compat.origin import Attributes, build_version, chip_claims
from pytest_cannlm.compat.package import Manifest, PackageFolder
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import Container

_CACHE_INPUT = "past_key_in{}"
"""The KV cache of a layer by the engine's name."""


class Contradiction(NamedTuple):
    """What a manifest says, what the model's file says instead, and where in the file that stands."""

    manifest: str
    file: str
    place: str


def contradictions(container: Container, attributes: Attributes, manifest: Manifest) -> list[Contradiction]:
    """Where the manifest says something else than the model; what only one of them says is no contradiction."""
    file = container.path.name
    said: list[Contradiction] = []
    cann = build_version(attributes)
    if cann and manifest.cann and manifest.cann.strip() != cann[0].strip():
        said.append(Contradiction(f"CANN {manifest.cann}", f"CANN {cann[0]}", f"{cann[1]} of {file}"))
    for place, name in chip_claims(container, attributes).items():
        if manifest.chip and not chips.same_chip(manifest.chip, name):
            said.append(Contradiction(f"chip {chips.shown(manifest.chip)}", f"chip {chips.shown(name)}", place))
    if manifest.simulated is not None and manifest.simulated != container.simulated:
        kinds = {True: "simulated", False: "for a real NPU"}
        said.append(Contradiction(kinds[manifest.simulated], kinds[container.simulated], f"userdefineinfo of {file}"))
    return said


def manifest_agrees(container: Container, attributes: Attributes, target: Target, manifest: Manifest) -> Check:
    """Whether the manifest says what the model says.

    Policy exact refuses a contradiction; any other policy has it among the reasons.
    """
    said = contradictions(container, attributes, manifest)
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
        expected_from=places or container.path.name,
        rule="the manifest says of the file what the file says of itself; the file is what counts"
        + ("" if refused or not said else f", and policy {target.policy} does not refuse it"),
        remedy="Take the manifest that was built with this file, or check without one" if said else "",
    )


def cache_agrees(container: Container, folder: PackageFolder) -> list[Check]:
    """Whether ``llm_config`` describes the KV caches that the graph was compiled for, by its first and last layer.

    No check where the graph does not name them; a last layer beyond the read limit is left out.
    """
    first, last = _CACHE_INPUT.format(0), _CACHE_INPUT.format(folder.layers - 1)
    shapes, complete = container.input_shapes((first, last))
    if not shapes.get(first):
        return []
    wrong = [name for name, shape in shapes.items() if shape and folder.cache.contradicts(shape)]
    if complete and last not in shapes:
        wrong.append(last)
    name = wrong[0] if wrong else first
    return [
        Check(
            name=CACHE,
            outcome="mismatch" if wrong else "ok",
            code="PACKAGE_DAMAGED" if wrong else None,
            found=f"{folder.cache}, num_hidden_layers {folder.layers}",
            found_in="executor.json",
            expected=_cache(shapes.get(name)),
            expected_from=f"input {name} of {container.path.name}",
            rule="the engine is told the KV caches that the graph was compiled for",
            remedy=REBUILD if wrong else "",
        )
    ]


def _cache(shape: Sequence[int] | None) -> str:
    if shape is None:
        return "as many layers as there are caches"
    if len(shape) != 4:
        return f"a cache of shape {list(shape)}"
    length = "any number of" if shape[0] < 1 else shape[0]
    return f"{length} positions, {shape[1]} KV heads of {shape[3]}"
