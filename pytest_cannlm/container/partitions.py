"""The partition tables: reading them without trusting a number in them. Valid for Python 3.10."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.container.layout import (
    BUNDLE,
    BUNDLE_MODEL_INFO,
    EXECUTOR_TYPES,
    FLOW,
    HEADER_BYTES,
    LITE,
    MODEL_DEF,
    PRE_MODEL_DESC,
    Header,
    HeaderFields,
    partition_name,
)
from pytest_cannlm.container.source import CountedSource
from pytest_cannlm.errors import ContainerError

MAX_OFFSET = 1 << 63
MAX_MODELS = 4096
"""More groups than any real file has; bounds the walk over a file whose model_num is wrong."""
MAX_ENTRIES = 1 << 14
"""Rows of all tables of a file together; bounds the memory that a file of empty partitions takes."""

_TABLE_COST, _ROW_COST = 3, 1
"""What reading, checking and telling takes, in protobuf fields that are passed (measured)."""

_ENTRY_32 = struct.Struct("<III")
_ENTRY_64 = struct.Struct("<I4xQQ")


@dataclass(frozen=True)
class PartitionEntry:
    """One row of a partition table; ``offset`` counts from the end of its table, ``start`` from the file's start."""

    type: int
    name: str
    offset: int
    size: int
    start: int
    model: int = 0

    @property
    def end(self) -> int:
        """File offset after its last byte."""
        return self.start + self.size


def entry_limit(header: Header) -> int:
    """Highest sane number of table rows: HiAI refuses more than 35; GE's own limits grow, so Ascend gets 64."""
    if header.layout == "K":
        return 35
    return 4096 if header.is_ascend_type(FLOW) else 64


def table_head_bytes(header: HeaderFields) -> int:
    """Bytes before the first row."""
    return 4 if header.table_bits == 32 else 8


def table_bytes(header: HeaderFields, count: int) -> int:
    """Size of a table with ``count`` rows."""
    return table_head_bytes(header) + count * (_ENTRY_32 if header.table_bits == 32 else _ENTRY_64).size


def read_partitions(source: CountedSource, header: Header, payload_end: int) -> tuple[tuple[PartitionEntry, ...], ...]:
    """Per model the rows of its table, all checks done in a fixed order so that one broken file gives one name.

    Raises ``ContainerError`` with OM_BAD_PARTITION_TABLE, OM_PARTITION_OVERFLOW, OM_PARTITION_OUT_OF_RANGE,
    OM_PARTITION_OVERLAP, OM_PARTITION_GAP, OM_NO_MODEL_DEF or OM_TWO_MODEL_DEFS.
    """
    path = source.path
    models: list[tuple[PartitionEntry, ...]] = []
    count = header.model_num if header.multi_model else 1
    if not 1 <= count <= MAX_MODELS:
        raise ContainerError(
            "the header promises an impossible number of models",
            file=path,
            field="model_num",
            found=count,
            expected=f"1..{MAX_MODELS}",
            remedy="Convert the model again, or copy the file again",
            code="OM_BAD_PARTITION_TABLE",
        )
    position = HEADER_BYTES
    rows = 0
    for model in range(count):
        entries, base = read_table(source, header, position, payload_end, model)
        check_entries(path, header, entries, payload_end)
        contents_start = position + table_bytes(header, len(entries)) if header.is_ascend_type(BUNDLE) else base
        position = check_contiguous(path, header, entries, contents_start)
        models.append(entries)
        rows += len(entries)
        if rows > MAX_ENTRIES:
            raise _bad_table(
                path, model, found=f"{rows} partitions so far", expected=f"at most {MAX_ENTRIES} in a file"
            )
    if position != payload_end:
        raise ContainerError(
            f"{payload_end - position} bytes at the end of the file belong to no partition",
            file=path,
            field="partition table",
            found=f"partitions end at {position}",
            expected=f"payload end {payload_end}",
            remedy="Convert the model again",
            code="OM_PARTITION_GAP",
        )
    for model, entries in enumerate(models):
        check_model_def(path, header, entries, model)
    return tuple(models)


def read_table(
    source: CountedSource, header: Header, position: int, payload_end: int, model: int
) -> tuple[tuple[PartitionEntry, ...], int]:
    """The rows of the table at ``position`` and the file offset that their offsets count from."""
    head = table_head_bytes(header)
    if payload_end - position < head:
        raise _bad_table(
            source.path, model, found=f"{payload_end - position} bytes left", expected=f"at least {head} bytes"
        )
    (count,) = struct.unpack_from("<I", source.at(position, head))
    limit = entry_limit(header)
    if not 1 <= count <= limit:
        raise _bad_table(source.path, model, found=f"{count} partitions", expected=f"1..{limit} partitions")
    size = table_bytes(header, count)
    if position + size > payload_end:
        raise _bad_table(
            source.path,
            model,
            found=f"{count} partitions, a table of {size} bytes",
            expected=f"at most {payload_end - position} bytes",
        )
    row = _ENTRY_32 if header.table_bits == 32 else _ENTRY_64
    source.budget.spend(_TABLE_COST + _ROW_COST * count)
    rows = list(row.iter_unpack(source.at(position + head, count * row.size)))
    base = position + size
    if for_executor(header, (kind for kind, _, _ in rows)):
        base = _align8(base)
    elif header.is_ascend_type(BUNDLE):
        base = HEADER_BYTES
    entries = tuple(
        PartitionEntry(kind, partition_name(header.dialect, kind), offset, length, base + offset, model)
        for kind, offset, length in rows
    )
    return entries, base


def for_executor(header: Header, kinds: Iterable[int]) -> bool:
    """Whether a model with these partitions is one for a small executor: exeom or nano."""
    return header.is_ascend_type(LITE) or (header.dialect == "ascend" and not EXECUTOR_TYPES.isdisjoint(kinds))


def check_entries(path: Path, header: Header, entries: Sequence[PartitionEntry], payload_end: int) -> None:
    """Each row alone: no overflow, inside the payload; then the rows among each other: no shared bytes."""
    for index, entry in enumerate(entries):
        if entry.offset + entry.size > MAX_OFFSET:
            raise _bad_entry(
                path, index, entry, "has an offset and a size that overflow", "OM_PARTITION_OVERFLOW", "< 2^63"
            )
    for index, entry in enumerate(entries):
        if entry.end > payload_end:
            beyond = entry.end - payload_end
            raise _bad_entry(
                path,
                index,
                entry,
                f"ends {beyond} bytes behind the payload",
                "OM_PARTITION_OUT_OF_RANGE",
                f"end <= {payload_end}",
            )
    occupied = sorted((entry.start, index) for index, entry in enumerate(entries) if entry.size)
    reach, owner = -1, -1
    for start, index in occupied:
        if start < reach:
            shared = min(reach, entries[index].end) - start
            first, second = sorted((owner, index))
            raise ContainerError(
                f"partitions [{first}, {second}] ({entries[first].name}, {entries[second].name}) share {shared} bytes",
                file=path,
                field="partition table",
                found=f"partition {index} starts at offset {entries[index].offset}",
                expected="partitions that lie behind each other",
                remedy="Convert the model again",
                code="OM_PARTITION_OVERLAP",
            )
        if entries[index].end > reach:
            reach, owner = entries[index].end, index


def check_contiguous(path: Path, header: Header, entries: Sequence[PartitionEntry], contents_start: int) -> int:
    """Partitions follow each other without holes; returns the file offset after the last one."""
    position = contents_start
    slack = 7 if for_executor(header, (entry.type for entry in entries)) else 0  # partitions aligned to 8 bytes
    for entry in sorted((entry for entry in entries if entry.size), key=lambda entry: entry.start):
        if not 0 <= entry.start - position <= slack:
            raise ContainerError(
                f"{entry.start - position} bytes before partition {entry.name} belong to no partition",
                file=path,
                field="partition table",
                found=f"offset {entry.offset}",
                expected=f"offset {entry.offset - (entry.start - position)}",
                remedy="Convert the model again",
                code="OM_PARTITION_GAP",
            )
        position = entry.end
    return position


def check_model_def(path: Path, header: Header, entries: Sequence[PartitionEntry], model: int) -> None:
    """Every model needs a non-empty MODEL_DEF, or what stands for it in the executor's and bundle formats.

    A second one is an error of ours, which the vendor's readers are not known to have: which one they take as the model
    is not known either, so nothing that is said about such a file is certain.
    """
    wanted = {MODEL_DEF}
    if for_executor(header, (entry.type for entry in entries)):
        wanted.add(PRE_MODEL_DESC)
    elif header.is_ascend_type(BUNDLE):
        wanted.add(BUNDLE_MODEL_INFO)
    if not any(entry.type in wanted and entry.size for entry in entries):
        types = [entry.type for entry in entries]
        raise ContainerError(
            f"model {model} has no model definition",
            file=path,
            field="partition table",
            found=f"partition types {types}",
            expected="a non-empty MODEL_DEF (type 0)",
            remedy="Convert the model again",
            code="OM_NO_MODEL_DEF",
        )
    definitions = [index for index, entry in enumerate(entries) if entry.type == MODEL_DEF and entry.size]
    if len(definitions) > 1 and not header.several_models:
        raise ContainerError(
            f"model {model} has {len(definitions)} model definitions, and the header declares one model",
            file=path,
            field="partition table",
            found=f"MODEL_DEF in partitions {definitions}",
            expected="one MODEL_DEF (type 0)",
            remedy="Convert the model again",
            code="OM_TWO_MODEL_DEFS",
        )


def _align8(value: int) -> int:
    return (value + 7) & ~7


def _bad_table(path: Path, model: int, *, found: str, expected: str) -> ContainerError:
    return ContainerError(
        f"the partition table of model {model} is broken",
        file=path,
        field="partition table",
        found=found,
        expected=expected,
        remedy="Convert the model again, or copy the file again",
        code="OM_BAD_PARTITION_TABLE",
    )


def _bad_entry(path: Path, index: int, entry: PartitionEntry, what: str, code: str, expected: str) -> ContainerError:
    return ContainerError(
        f"partition {index} ({entry.name}) {what}",
        file=path,
        field="partition table",
        found=f"offset {entry.offset}, size {entry.size}",
        expected=expected,
        remedy="Convert the model again, or copy the file again",
        code=code,
    )
