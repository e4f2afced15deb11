"""Whether the compiled model that a converter left is the one that was asked for, by its time, sizes and header."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_cannlm.build.believing import not_written
from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.origin import build_version, read_attributes, text_of
from pytest_cannlm.compat.versions import Pair, Version
from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE, KIRIN_COMPILED
from pytest_cannlm.container.taskinfo import DEFAULT_PLATFORM, PLATFORM_CODES
from pytest_cannlm.errors import ContainerError

T = TypeVar("T")


def file_disagreements(
    model: Path, *, began: float, chip: str, version: Version, pairs: Sequence[Pair] = ()
) -> Iterator[str]:
    """What is wrong with the compiled model and the weights beside it, by their times, sizes and headers.

    Args:
        model: the ``.omc`` that should be there.
        began: wall clock time at which the tool was started.
        chip: the chip that it was to be compiled for.
        version: of the toolkit.
        pairs: versions that the toolkit says are the same release.
    """
    stale = not_written(model, began)
    if stale:
        yield stale
        return
    try:
        container = open_container(model)
        yield from _header(container, chip, version, pairs)
        yield from _weights(container, model.with_name(EXTERNAL_WEIGHT_FILE), began)
    except ContainerError as error:
        yield f"{model.name} is no sound model: {error.message}"


def _header(container: Container, chip: str, version: Version, pairs: Sequence[Pair]) -> Iterator[str]:
    name = container.path.name
    if container.dialect != "kirin":
        yield f"{name} is a model for {container.dialect.capitalize()}, not for Kirin"
        return
    if container.header.modeltype != KIRIN_COMPILED:
        kind = container.model_type_name or f"of type {container.header.modeltype}"
        yield f"{name} is not compiled: it is {kind}"
    if container.simulated:
        yield f"{name} was made for the simulated NPU"
    platform = container.kirin_platform()
    named = chips.chip_of_platform(platform[0]) if platform else None
    # code 10 is also written for chips that a writer does not know, so it contradicts only those that have a code
    told = platform is not None and (platform[0] != DEFAULT_PLATFORM or chip in PLATFORM_CODES)
    if named and told and not chips.same_chip(named, chip):
        yield f"{name} is compiled for {named}, not for {chip}"
    attributes = _unless_unreadable(lambda: read_attributes(container))
    if attributes is None:
        return
    soc = text_of(attributes, "soc_version")
    if soc and not chips.same_chip(soc, chip):
        yield f"{name} says that it is for {chips.shown(soc)}, not for {chip}"
    built = build_version(attributes)
    if built and versions.compare(versions.parse(built[0]), version, extra=pairs).outcome == "mismatch":
        yield f"{name} says that CANN {built[0]} built it, the toolkit is {version}"


def _weights(container: Container, file: Path, began: float) -> Iterator[str]:
    if not container.external_weights:
        yield f"{container.path.name} has its weights inside, where they were asked for outside"
        return
    stale = not_written(file, began)
    if stale:
        yield stale
        return
    said, size = _unless_unreadable(container.external_weight_size), file.stat().st_size
    if said is not None and said != size:
        yield f"{file.name} has {size} bytes, {container.path.name} wants {said}"


def _unless_unreadable(read: Callable[[], T]) -> T | None:
    """What ``read`` gives; None where the description inside the model is of a form that nobody has published."""
    try:
        return read()
    except ContainerError as error:
        if error.code != "OM_MODEL_DEF_UNREADABLE":
            raise
        return None
