"""Which output of a device belongs to which output of the reference: by name, never by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_cannlm.parity.guards import Guard

_LOOK_AT = "names that the converter gave to outputs; declare a map from reference to device names"


@dataclass(frozen=True)
class OutputSpec:
    """An output as a model declares it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Pairing:
    """Outputs that belong together (reference name, device name), and what stands against comparing them."""

    pairs: tuple[tuple[str, str], ...]
    guards: tuple[Guard, ...]
    notes: tuple[str, ...]


def pair_outputs(
    reference: Sequence[OutputSpec], device: Sequence[OutputSpec], *, declared: Mapping[str, str] | None = None
) -> Pairing:
    """Pair by the ``declared`` map (reference name -> device name), else by name, else by a shape that is unique.

    Outputs without a partner fail by name on either side; several anonymous outputs of one shape are not guessed at.
    A floating type of another width is noted (everything is compared in float64); any other difference of type fails.
    """
    declared = declared or {}
    devices = {spec.name: spec for spec in device}
    partners = {spec.name: declared.get(spec.name, spec.name) for spec in reference}
    found = {name: partner for name, partner in partners.items() if partner in devices}
    left = [spec for spec in reference if spec.name not in found]
    spare = [spec for spec in device if spec.name not in found.values()]
    guards: list[Guard] = []
    guessed: set[tuple[int, ...]] = set()
    for spec in left:
        rivals = [other for other in left if other.shape == spec.shape]
        candidates = [other for other in spare if other.shape == spec.shape]
        if spec.name in declared or not candidates:
            guards.append(Guard("missing_output", f"the device has no output for {spec.name!r}", _LOOK_AT))
            continue
        guessed.add(spec.shape)
        if len(rivals) == len(candidates) == 1:
            found[spec.name] = candidates[0].name
        else:
            names = ", ".join(repr(other.name) for other in candidates)
            guards.append(Guard("ambiguous_outputs", f"{spec.name!r} could be any of {names}: same shape", _LOOK_AT))
    guards += [
        Guard("extra_output", f"the reference has no output for the device's {spec.name!r}", _LOOK_AT)
        for spec in spare
        if spec.shape not in guessed
    ]
    if not found:
        guards.append(Guard("no_comparisons", "no output of the device has a partner in the reference", _LOOK_AT))
    pairs = [(spec, devices[found[spec.name]]) for spec in reference if spec.name in found]
    differences = [_differences(*pair) for pair in pairs]
    return Pairing(
        pairs=tuple((ours.name, theirs.name) for ours, theirs in pairs),
        guards=(*guards, *(guard for fired, _ in differences for guard in fired)),
        notes=tuple(note for _, noted in differences for note in noted),
    )


def _differences(reference: OutputSpec, device: OutputSpec) -> tuple[list[Guard], list[str]]:
    """Guards and notes about one pair."""
    guards, notes = [], []
    if reference.shape != device.shape:
        detail = f"{reference.name!r}: reference {list(reference.shape)}, device {list(device.shape)}"
        guards.append(Guard("shape_differs", detail, _LOOK_AT))
    if reference.dtype != device.dtype:
        detail = f"{reference.name!r}: reference {reference.dtype}, device {device.dtype}"
        if all(spec.dtype.startswith(("float", "bfloat")) for spec in (reference, device)):
            notes.append(f"{detail}; compared in float64")
        else:
            guards.append(Guard("dtype_differs", detail, _LOOK_AT))
    return guards, notes
