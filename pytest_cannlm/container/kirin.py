"""Compiled Kirin models: writing and reading those of the simulated NPU, and relabelling any of them.

A simulated ``.omc`` has what the vendor's own writer would put (chip code, ``atc_version``, ``soc_version``), says in
its header and its attributes that it is simulated, and carries the graph that the simulated NPU runs in a partition of
its own. Its weights lie outside, in ``SubGraph_0.weight``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_cannlm.container import taskinfo
from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.layout import (
    KIRIN_COMPILED,
    MODEL_DEF,
    RUNTIME_GRAPH,
    SIMULATED_MARK,
    TASK_INFO,
    WEIGHTS_DATA,
    HeaderFields,
    name_field,
)
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.modeldef import Attribute, TensorIO, encode_model_def, replace_attributes
from pytest_cannlm.container.source import BytesSource
from pytest_cannlm.container.wire import WireError
from pytest_cannlm.container.writer import Partition, partitions_of, write_container
from pytest_cannlm.errors import ContainerError, PackageError

ATC_VERSION, SOC_VERSION, FRAMEWORK_TYPE = "atc_version", "soc_version", "framework_type"
SIMULATED_ATTR = "cannlm_simulated"


@dataclass(frozen=True)
class SimulatedModel:
    """What the simulated NPU needs from a container."""

    runtime_graph: bytes
    attrs: dict[str, AttributeValue]
    chip: str
    build_version: str


def task_info_v2(platform: int) -> bytes:
    """A TASK_INFO that names a platform code and nothing else."""
    return taskinfo.encode_task_info(platform)


def platform_code(chip: str) -> int:
    """What the vendor's open writer puts for ``chip`` (a normalized name): 10 for every chip it does not know."""
    return taskinfo.PLATFORM_CODES.get(chip, taskinfo.DEFAULT_PLATFORM)


def write_simulated_omc(
    path: Path,
    *,
    name: str,
    chip: str,
    build_version: str,
    inputs: Sequence[TensorIO],
    outputs: Sequence[TensorIO],
    weight_size: int,
    runtime_graph: bytes,
    extra_attrs: Mapping[str, Attribute] | None = None,
) -> None:
    """Write a simulated ``.omc``; equal arguments give equal bytes.

    ``chip`` is a normalized name, ``weight_size`` the size of the external weight file in bytes, ``runtime_graph`` the
    serialized graph that the simulated NPU runs. ``extra_attrs`` cannot replace the attributes that this function sets.
    """
    task_info = task_info_v2(platform_code(chip))
    attrs: dict[str, Attribute] = {
        **(extra_attrs or {}),
        ATC_VERSION: build_version,
        SOC_VERSION: chip,
        FRAMEWORK_TYPE: "Onnx",
        SIMULATED_ATTR: 1,
    }
    model_def = encode_model_def(
        name=name, inputs=inputs, outputs=outputs, attrs=attrs, weight_size=weight_size, task_size=len(task_info)
    )
    write_container(
        path,
        header=HeaderFields(layout="K", modeltype=KIRIN_COMPILED, name=name_field(name), userdefineinfo=SIMULATED_MARK),
        partitions=[
            Partition(MODEL_DEF, model_def),
            Partition(WEIGHTS_DATA, b""),
            Partition(TASK_INFO, task_info),
            Partition(RUNTIME_GRAPH, runtime_graph),
        ],
    )


def read_simulated(path: Path) -> SimulatedModel:
    """What :func:`write_simulated_omc` wrote.

    Raises ``ContainerError`` for a broken file and ``PackageError`` NOT_SIMULATED for a sound one that a real converter
    wrote.
    """
    container = open_container(path)
    graph = container.find(RUNTIME_GRAPH)
    if not container.simulated or graph is None:
        raise PackageError(
            "the simulated NPU cannot run a model that was compiled for a real one",
            file=path,
            found=f"{container.dialect} model of type {container.model_type_name or container.header.modeltype}",
            expected="a package of the simulated converter",
            remedy="Build a package for the simulator from the checkpoint: cannlm build MODEL --converter simulated",
            code="NOT_SIMULATED",
        )
    attrs = container.attributes()
    return SimulatedModel(
        runtime_graph=container.read(graph),
        attrs=attrs,
        chip=_text_attribute(container, attrs, SOC_VERSION),
        build_version=_text_attribute(container, attrs, ATC_VERSION),
    )


def relabel_omc(src: Path, dst: Path, *, build_version: str | None = None, chip: str | None = None) -> None:
    """Copy a model so that it says it was built by another CANN version or for another chip, otherwise the same.

    ``chip`` sets ``soc_version`` and, where the model has one, the platform code. ``src`` and ``dst`` may be the same
    file or two names of it: ``dst`` becomes a file of its own. Raises ``ContainerError``.
    """
    container = open_container(src)
    attrs: dict[str, Attribute] = {}
    if build_version is not None:
        attrs[ATC_VERSION] = build_version
    if chip is not None:
        attrs[SOC_VERSION] = chip
    partitions = partitions_of(container)
    for index, entry in enumerate(container.partitions):
        try:
            if entry.type == MODEL_DEF and attrs:
                partitions[index] = replace(partitions[index], data=replace_attributes(container.read(entry), attrs))
            elif entry.type == TASK_INFO and chip is not None and container.kirin_platform() is not None:
                task_info = container.read(entry)
                patched = taskinfo.with_platform(task_info, BytesSource(task_info), platform_code(chip))
                partitions[index] = replace(partitions[index], data=patched)
        except WireError as error:
            raise ContainerError(
                f"MODEL_DEF is not readable: {error}", file=src, field=entry.name, code="OM_MODEL_DEF_UNREADABLE"
            ) from error
    write_container(dst, header=container.header, partitions=partitions)


def _text_attribute(container: Container, attrs: Mapping[str, AttributeValue], key: str) -> str:
    value = attrs.get(key)
    if not isinstance(value, str) or not value:
        raise PackageError(
            "a simulated model without one of its own attributes",
            file=container.path,
            field=key,
            found=value,
            expected="text",
            remedy="Build the package again",
            code="PACKAGE_DAMAGED",
        )
    return value
