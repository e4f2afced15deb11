"""Files that hold other containers: a flow of models, and a bundle. Each part is told by the facts of its header.

FlowModelDef: model_name 1, submodel_name 3. SubmodelDef: model_name 1, model_type 2, om_data 3, om_data_file_path 9.
A file that a submodel names is told and never opened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from pytest_cannlm.container.core import Container
from pytest_cannlm.container.graph import text
from pytest_cannlm.container.layout import (
    BUNDLE,
    BUNDLE_MODEL_INFO,
    BUNDLE_MODEL_VAR_INFO,
    FLOW,
    FLOW_MODEL,
    FLOW_SUBMODEL,
)
from pytest_cannlm.container.partitions import PartitionEntry
from pytest_cannlm.container.source import ReadLimitError, Source
from pytest_cannlm.container.wire import BYTES, Walk, WireError
from pytest_cannlm.errors import ContainerError

MAX_DEPTH = 4
"""Containers inside containers that are looked into."""
MAX_SHOWN = 256
"""Parts of a file that are told, at all depths together."""

Facts = dict[str, Any]

_NAME, _KIND, _DATA, _PATH, _PARTS = 1, 2, 3, 9, 3


def submodel_facts(container: Container) -> tuple[Facts, list[str]]:
    """The parts of a flow or a bundle, JSON-ready, with what is odd about them; nothing for other containers."""
    return _parts_of(container, 0, iter(range(MAX_SHOWN)))


def _parts_of(container: Container, depth: int, room: Iterator[int]) -> tuple[Facts, list[str]]:
    """``room`` yields once for every part that may still be told."""
    flow = container.header.is_ascend_type(FLOW)
    if not flow and not container.header.is_ascend_type(BUNDLE):
        return {}, []
    parts = [entry for entry in container.partitions if entry.type == (FLOW_SUBMODEL if flow else BUNDLE_MODEL_INFO)]
    if flow:
        told = [_of_flow(container, entry, depth, room) for entry, _ in zip(parts, room, strict=False)]
        facts: Facts = {"submodels": told}
        notes = list(_flow_notes(container, told)) if len(told) == len(parts) else []
    else:
        told = [_nested(container, entry.start, entry.size, depth, room) for entry, _ in zip(parts, room, strict=False)]
        facts = {"submodels": told, "variable_bytes": _variable_bytes(container)}
        notes = []
    if len(told) < len(parts):
        notes.append(f"submodels that are not described: {len(parts) - len(told)}")
    return facts, notes


def _of_flow(container: Container, entry: PartitionEntry, depth: int, room: Iterator[int]) -> Facts:
    try:
        name, kind, path, data = container.scan(entry, _read_submodel)
    except WireError as error:
        return {"error": "OM_MODEL_DEF_UNREADABLE", "message": f"FLOW_SUBMODEL is not readable: {error}"}
    facts: Facts = {"name": name, "type": kind}
    if path:
        facts["file"] = path
    if data is not None:
        facts |= _nested(container, *data, depth, room)
    return facts


def _read_submodel(source: Source, start: int, end: int) -> tuple[str, str, str, tuple[int, int] | None]:
    texts = {_NAME: "", _KIND: "", _PATH: ""}
    data = None
    walk = Walk(source)
    for part in walk.fields(start, end):
        if part.wire_type == BYTES and part.number in texts:
            texts[part.number] = text(walk, part)
        elif part.wire_type == BYTES and part.number == _DATA and part.size:
            data = (part.start, part.size)
    return texts[_NAME], texts[_KIND], texts[_PATH], data


def _nested(container: Container, start: int, size: int, depth: int, room: Iterator[int]) -> Facts:
    if depth >= MAX_DEPTH:
        return {"bytes": size, "message": f"deeper than {MAX_DEPTH} levels, not looked into"}
    try:
        inside = container.nested(start, size)
    except ReadLimitError:  # says nothing of this part
        raise
    except ContainerError as error:
        facts = error.as_dict()
        del facts["file"]  # that of the whole; "file" is what a submodel names
        return {"bytes": size, **facts}
    header = inside.header
    deeper, notes = _parts_of(inside, depth + 1, room)
    return {
        "error": None,
        "bytes": size,
        "dialect": inside.dialect,
        "layout": inside.layout,
        "modeltype": header.modeltype,
        "modeltype_name": inside.model_type_name,
        "model_name": inside.model_name,
        "partitions": [[entry.type, entry.name, entry.offset, entry.size] for entry in inside.partitions],
        **deeper,
        "notes": [*inside.notes, *notes],
    }


def _flow_notes(container: Container, submodels: list[Facts]) -> Iterator[str]:
    entry = container.find(FLOW_MODEL)
    if entry is None or not entry.size:
        yield "the flow has no FLOW_MODEL that lists its submodels"
        return
    try:
        names = container.scan(entry, _read_part_names)
    except WireError as error:
        yield f"FLOW_MODEL is not readable: {error}"
        return
    found = {submodel.get("name") for submodel in submodels}
    missing = [name for name in names if name not in found]
    if missing:
        yield f"submodels that FLOW_MODEL lists and that are not there: {len(missing)}, the first: {missing[0]!r}"


def _read_part_names(source: Source, start: int, end: int) -> list[str]:
    walk = Walk(source)
    found = (part for part in walk.fields(start, end) if part.number == _PARTS and part.wire_type == BYTES)
    return [text(walk, part) for _, part in zip(range(MAX_SHOWN), found, strict=False)]


def _variable_bytes(container: Container) -> int | None:
    entry = container.find(BUNDLE_MODEL_VAR_INFO)
    if entry is None or entry.size != 8:
        return None
    (size,) = struct.unpack("<Q", container.read(entry))
    return int(size)
