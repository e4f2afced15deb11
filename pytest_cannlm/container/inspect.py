"""Describe a container for people and scripts: everything that it says of itself, as JSON-ready data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pytest_cannlm.container import attrnames, consistency, ops
from pytest_cannlm.container.attrnames import NameTables
from pytest_cannlm.container.core import Container, open_source
from pytest_cannlm.container.interface import OUT_NODES, interface_facts
from pytest_cannlm.container.layout import (
    BUNDLE,
    EXTERNAL_WEIGHT_FILE,
    FLOW,
    HEADER_BYTES,
    KIRIN_COMPILED,
    KIRIN_PORTABLE,
    NANO_TYPES,
    Header,
    field_text,
    model_type_name,
    parse_header,
)
from pytest_cannlm.container.modelattrs import AttributeValue, Scalar
from pytest_cannlm.container.ops import Graph, ModelDef
from pytest_cannlm.container.partitions import PartitionEntry, for_executor
from pytest_cannlm.container.source import PagedSource, ReadLimitError
from pytest_cannlm.container.submodels import submodel_facts
from pytest_cannlm.errors import ContainerError

ORIGIN = (
    *("soc_version", "atc_version", "opp_version", "framework_type", "atc_cmdline"),
    *("arch_type", "host_env_os", "host_env_cpu"),
)
"""Attributes that say what a model was made with and for."""
_KNOWN = {*ORIGIN, *attrnames.TABLE_ATTRIBUTES, OUT_NODES, consistency.SIZE_LIST}
"""Attributes that other facts follow from."""

MAX_FIELDS = 40_000
"""Work that goes into one file, all its models together: three per op that is only counted."""
MAX_READ = 16 * 1024 * 1024
"""Bytes that are read of one file; they are kept in memory while it is described."""
MAX_ATTRIBUTES = 500
MAX_MODELS = 16
"""Models of a file that are described in full."""
MAX_TEXT, MAX_BYTES, MAX_ITEMS, MAX_ITEM_TEXT = 200, 24, 8, 64
"""What is shown of a long attribute: characters, bytes, items of a list, characters of an item."""

Facts = dict[str, Any]
T = TypeVar("T")


def describe(path: Path) -> Facts:
    """The facts of an ``.om`` or ``.omc``; ``error`` is None for a sound file, else the name of the first problem.

    A rejected file has ``error``, ``message``, what was found and expected, and ``bytes`` if its size is known. Where
    only the content of a partition is broken, the facts of the container and of the other partitions stay. None means
    that the file does not say. The keys are listed in docs/reference/container.md.
    """
    try:
        source = PagedSource(path, limit=MAX_READ, fields=MAX_FIELDS)
        container = open_source(source)
    except ContainerError as error:
        facts = {**error.as_dict(), "bytes": _size(path)}
        return facts | _encrypted_facts(source) if error.code == "OM_ENCRYPTED" else facts
    findings = _Findings(list(container.notes))
    facts = {"error": None, **_container_facts(container)}
    models = _models(container, findings)
    facts |= models[0]
    if len(container.models) > 1:
        tables = map(_rows, container.models)
        facts["models"] = [{"partitions": table, **model} for table, model in zip(tables, models, strict=True)]
    facts |= findings.attempt(lambda: _task_facts(container)) or {}
    submodels, notes = findings.attempt(lambda: submodel_facts(container)) or ({}, [])
    facts |= submodels
    findings.notes += notes
    if findings.error is not None:
        facts |= findings.error.as_dict()
    facts["notes"] = findings.notes
    return facts


@dataclass
class _Findings:
    """What turned up on the way."""

    notes: list[str]
    error: ContainerError | None = None
    """The first one."""

    def attempt(self, read: Callable[[], T]) -> T | None:
        """What ``read`` returns, None if the file is broken there or there is more than may be read."""
        try:
            return read()
        except ReadLimitError as error:
            note = f"not read further: {error.found}"
            self.notes += [note] if note not in self.notes else []
        except ContainerError as error:
            self.error = self.error or error
        return None


def _header_facts(header: Header) -> Facts:
    return {
        "dialect": header.dialect,
        "header_version": f"0x{header.version:08x}",
        "layout": header.layout,
        "table": str(header.table_bits),
        "model_num": header.model_num,
        "modeltype": header.modeltype,
        "modeltype_name": model_type_name(header.dialect, header.modeltype),
        "model_name": field_text(header.name),
        "platform_version": field_text(header.platform_version),
        "om_ir_version": header.om_ir_version,
        "declared_length": header.declared_length,
    }


def _encrypted_facts(source: PagedSource) -> Facts:
    """The header of an encrypted file, which is all that can be read of it."""
    with source:
        return {"kind": "encrypted model", **_header_facts(parse_header(source.at(0, HEADER_BYTES)))}


def _container_facts(container: Container) -> Facts:
    header = container.header
    facts = {
        "bytes": container.size,
        "kind": _kind(container),
        **_header_facts(header),
        "partition_base": container.partition_base,
        "partitions": _rows(container.partitions),
    }
    if container.layout == "A2":
        facts["need_check_os_cpu_info"] = header.need_check_os_cpu_info
    if container.simulated:
        facts["simulated"] = True
    return facts


def _kind(container: Container) -> str:
    """What sort of file this is, in words."""
    header = container.header
    if container.simulated:
        return "model for the simulated NPU"
    if container.dialect == "kirin":
        kinds = {KIRIN_COMPILED: "compiled model", KIRIN_PORTABLE: "portable model, compiled on the device"}
        return kinds.get(header.modeltype, "model")
    kinds = {FLOW: "flow of models", BUNDLE: "bundle of models"}
    if header.layout == "A2" and header.modeltype in kinds:
        return kinds[header.modeltype]
    types = {entry.type for entry in container.partitions}
    if types & NANO_TYPES:
        return "model for the nano executor"
    if for_executor(header, types):
        return "model for the small executor (exeom)"
    return "model with dynamic shapes" if header.multi_model else "model"


def _models(container: Container, findings: _Findings) -> list[Facts]:
    """Facts per model; the first one's tables of attribute names serve those that have none."""
    described: list[Facts] = []
    first = NameTables()
    for model in range(len(container.models)):
        if not container.has_model_def(model):
            described.append({})
        elif model >= MAX_MODELS:
            described.append({"message": f"only the first {MAX_MODELS} models are described"})
        else:
            facts, tables = _model(container, model, first, findings)
            described.append(facts)
            first = tables if model == 0 else first
    return described


def _model(container: Container, model: int, tables: NameTables, findings: _Findings) -> tuple[Facts, NameTables]:
    """Facts of one model: its attributes and where its graphs are, then the ops of graph[0], then its tensors."""
    entries = container.models[model]
    notes: list[str] = []
    facts: Facts = {}
    graph: Graph | None = None
    out_nodes: list[str] = []
    definition = findings.attempt(lambda: container.read_model_def(partial(ops.read_model, known=_KNOWN), model))
    if definition is not None:
        tables = attrnames.tables_of(definition.known) or tables
        facts |= {name: _shown_text(definition.known.get(name)) for name in ORIGIN}
        facts["name"] = definition.name
        facts["attributes"], odd = _attribute_facts(definition)
        notes += [*consistency.size_notes(definition.known, entries, container.dialect), *odd]
        nodes = definition.known.get(OUT_NODES)
        out_nodes = [node for node in nodes if isinstance(node, str)] if isinstance(nodes, list) else []
        main = definition.graph
        graph = findings.attempt(
            lambda: container.read_model_def(lambda source, *_: ops.read_graph(source, main, tables=tables), model)
        )
    if definition is not None and graph is not None:
        facts |= _graph_facts(graph, definition.subgraphs)
        outside = _external_weights(container, graph, model)
        if outside:
            facts["external_weights"] = outside
        notes += graph.notes
        if container.dialect == "kirin" and container.header.modeltype == KIRIN_COMPILED:
            notes += consistency.compiled_notes(graph, entries, weights_outside=container.external_weights)
    info = findings.attempt(lambda: container.inout_info(model))
    if graph is not None or info is not None:
        shown, odd = interface_facts(graph, info, dialect=container.dialect, out_nodes=out_nodes)
        facts |= shown
        notes += odd
    several = len(container.models) > 1
    findings.notes += [f"model {model}: {note}" if several else note for note in notes]
    return facts, tables


def _attribute_facts(definition: ModelDef) -> tuple[Facts, list[str]]:
    """All attributes, shortened, and a note where there are more than are shown."""
    found = {**definition.others, **definition.known}
    left_out = len(found) - MAX_ATTRIBUTES
    notes = [f"attributes that are not shown: {left_out}"] if left_out > 0 else []
    return {name: _shortened(found[name]) for name in sorted(found)[:MAX_ATTRIBUTES]}, notes


def _graph_facts(graph: Graph, subgraphs: int) -> Facts:
    facts: Facts = {
        "graph": {
            "name": graph.name,
            "ops": sum(graph.op_types.values()),
            "subgraphs": subgraphs,
            "op_types": dict(graph.op_types),
            "quantization": {kind: n for kind, n in graph.op_types.items() if "quant" in kind.lower()},
        }
    }
    compiled = graph.of_type(ops.COMPILED_TYPE)
    if compiled:
        facts["graph_ops"] = [
            {
                "name": op.name,
                "cl_name": op.attrs.get(ops.CL_NAME),
                "task_offset": op.number(ops.TASK_OFFSET),
                "task_bytes": op.number(ops.TASK_SIZE),
                "weight_offset": op.number(ops.WEIGHT_OFFSET),
                "weight_bytes": op.number(ops.WEIGHT_SIZE),
            }
            for op in compiled
        ]
    return facts


def _external_weights(container: Container, graph: Graph, model: int) -> list[Facts]:
    """Files beside the model that hold its weights, and how many bytes they need."""
    if container.dialect == "ascend":
        return [{"file": name, "bytes": size} for name, size in consistency.weight_files(graph).items()]
    sizes = [op.number(ops.WEIGHT_SIZE) for op in graph.of_type(ops.COMPILED_TYPE)]
    needed = sum(size for size in sizes if size and size > 0)
    if model == 0 and container.external_weights and needed:
        return [{"file": EXTERNAL_WEIGHT_FILE, "bytes": needed}]
    return []


def _task_facts(container: Container) -> Facts:
    platform = container.kirin_platform()
    facts: Facts = {
        "kirin_platform": platform[0] if platform else None,
        "kirin_ids": list(platform[1]) if platform else None,
    }
    if container.dialect == "kirin" and container.header.modeltype == KIRIN_COMPILED:
        facts["task_sections"] = [list(section) for section in container.task_sections()]
    return facts


def _rows(entries: tuple[PartitionEntry, ...]) -> list[list[Any]]:
    return [[entry.type, entry.name, entry.offset, entry.size] for entry in entries]


def _shown_text(value: AttributeValue | None) -> str | None:
    """An attribute that is present and empty counts as absent."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace") or None
    return None if value is None else str(value) or None


def _shortened(value: AttributeValue) -> Any:
    if not isinstance(value, list):
        return _shortened_scalar(value, MAX_TEXT)
    shown: list[Any] = [_shortened_scalar(item, MAX_ITEM_TEXT) for item in value[:MAX_ITEMS]]
    return [*shown, f"… ({len(value)} items)"] if len(value) > MAX_ITEMS else shown


def _shortened_scalar(value: Scalar, limit: int) -> Any:
    if isinstance(value, bytes):
        return value[:MAX_BYTES].hex() + (f"… ({len(value)} bytes)" if len(value) > MAX_BYTES else "")
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}… ({len(value)} characters)"
    return value


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
