"""Describe a container for people and scripts: everything that it says of itself, as JSON-ready data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.graph import GraphInput, GraphOutput
from pytest_cannlm.container.layout import KIRIN_COMPILED, field_text
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.errors import ContainerError

COMPRESSED = "om_compress_version"
"""Attribute names of ops are replaced by table indexes then, and inputs cannot be told without the tables."""
ATTRIBUTES = ("soc_version", "atc_version", "opp_version", "framework_type", "atc_cmdline")


def describe(path: Path) -> dict[str, Any]:
    """The facts of an ``.om`` or ``.omc``; ``error`` is None for a sound file, else the name of the first problem.

    A rejected file has ``error``, ``message``, what was found and expected, and ``bytes`` if its size is known. Where
    only MODEL_DEF or TASK_INFO is broken, the facts of the container stay. None means that the file does not say.
    ``inputs`` and ``outputs`` are left out where op attributes are stored under compressed names.
    """
    try:
        container = open_container(path)
    except ContainerError as error:
        return {**error.as_dict(), "bytes": _size(path)}
    facts: dict[str, Any] = {"error": None, **_container_facts(container)}
    for read in (_attribute_facts, _graph_facts, _task_facts):
        try:
            facts |= read(container)
        except ContainerError as error:
            if facts["error"] is None:
                facts |= error.as_dict()
    return facts


def _container_facts(container: Container) -> dict[str, Any]:
    header = container.header
    facts = {
        "bytes": container.size,
        "dialect": container.dialect,
        "header_version": f"0x{header.version:08x}",
        "layout": container.layout,
        "table": str(header.table_bits),
        "model_num": header.model_num,
        "modeltype": header.modeltype,
        "modeltype_name": container.model_type_name,
        "model_name": container.model_name,
        "platform_version": field_text(header.platform_version),
        "om_ir_version": header.om_ir_version,
        "declared_length": header.declared_length,
        "partition_base": container.partition_base,
        "partitions": [[entry.type, entry.name, entry.offset, entry.size] for entry in container.partitions],
        "notes": list(container.notes),
    }
    if container.simulated:
        facts["simulated"] = True
    return facts


def _attribute_facts(container: Container) -> dict[str, Any]:
    attributes = container.attributes(ATTRIBUTES)
    return {name: _text(attributes.get(name)) for name in ATTRIBUTES}


def _graph_facts(container: Container) -> dict[str, Any]:
    if COMPRESSED in container.attributes((COMPRESSED,)):
        return {}
    inputs, outputs = container.inputs_outputs()
    return {"inputs": [_input(item) for item in inputs], "outputs": [_output(item) for item in outputs]}


def _task_facts(container: Container) -> dict[str, Any]:
    platform = container.kirin_platform()
    facts: dict[str, Any] = {
        "kirin_platform": platform[0] if platform else None,
        "kirin_ids": list(platform[1]) if platform else None,
    }
    if container.dialect == "kirin" and container.header.modeltype == KIRIN_COMPILED:
        facts["task_sections"] = [list(section) for section in container.task_sections()]
    return facts


def _input(item: GraphInput) -> dict[str, Any]:
    return {"name": item.name, "index": item.index, **asdict(item.outer), "inner": item.inner and asdict(item.inner)}


def _output(item: GraphOutput) -> dict[str, Any]:
    return {"name": item.name, "source": item.source, **asdict(item.inner), "outer": item.outer and asdict(item.outer)}


def _text(value: AttributeValue | None) -> str | None:
    """An attribute that is present and empty counts as absent."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace") or None
    return None if value is None else str(value) or None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
