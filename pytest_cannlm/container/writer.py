"""Write a container: header, partition table, partitions, streamed and deterministic.

Writing the header fields and partitions of a parsed K, A1 or A2 file gives that file back byte for byte.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from pytest_cannlm.container.core import Container
from pytest_cannlm.container.layout import BUNDLE, HeaderFields, dialect_of, partition_name
from pytest_cannlm.container.partitions import table_bytes
from pytest_cannlm.errors import ContainerError

MAX_U32 = 0xFFFFFFFF
_CHUNK = 1 << 20
_LARGE_TYPES = {1, 3, 4}
"""Weights, kernels and custom AI CPU kernels: the only partitions that GE lets grow beyond 4 GiB."""


@dataclass(frozen=True)
class FileSlice:
    """``size`` bytes of a file from ``offset``: contents that are copied without being held in memory."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Partition:
    """One partition to write: its type number, its bytes (or the file that holds them), and the model it belongs to."""

    type: int
    data: bytes | Path | FileSlice
    model: int = 0

    @property
    def size(self) -> int:
        """Bytes of the contents."""
        if isinstance(self.data, bytes):
            return len(self.data)
        return self.data.stat().st_size if isinstance(self.data, Path) else self.data.size


def partitions_of(container: Container) -> list[Partition]:
    """The partitions of an opened container, to be streamed into another one."""
    return [
        Partition(entry.type, FileSlice(container.path, entry.start, entry.size), entry.model)
        for entries in container.models
        for entry in entries
    ]


def write_container(path: Path, *, header: HeaderFields, partitions: Sequence[Partition]) -> int:
    """Write ``path`` and return its size in bytes. The file appears whole or not at all.

    Lengths and offsets follow from the partitions, which are written in the order given (model by model); the rest of
    the header is taken as it is. Raises ``ContainerError`` OM_OVER_4GIB where a number would not fit its field, and
    OM_IO for problems of the operating system.
    """
    groups = [list(group) for _, group in groupby(partitions, key=lambda partition: partition.model)]
    payload = sum(table_bytes(header, len(group)) + sum(part.size for part in group) for group in groups)
    _check_sizes(path, header, partitions, payload)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as out:
            out.write(header.pack(payload))
            for group in groups:
                out.write(_table(header, group))
                for part in group:
                    _copy(part, out)
        temporary.replace(path)
    except OSError as error:
        no_folder = not path.parent.is_dir()
        raise ContainerError(
            f"cannot write the file: {error.strerror or error}",
            file=path,
            found=f"no folder {path.parent}" if no_folder else None,
            expected="a folder that can be written to",
            remedy="Create the folder" if no_folder else "Check free space and permissions",
            code="OM_IO",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def _check_sizes(path: Path, header: HeaderFields, partitions: Sequence[Partition], payload: int) -> None:
    if header.table_bits == 32 and payload > MAX_U32:
        raise ContainerError(
            f"layout {header.layout} holds at most 4 GiB",
            file=path,
            field="length",
            found=f"{payload} bytes of table and partitions",
            expected=f"at most {MAX_U32} bytes",
            remedy="Keep the weights outside the container",
            code="OM_OVER_4GIB",
        )
    for part in partitions:
        if part.size > MAX_U32 and part.type not in _LARGE_TYPES:
            name = partition_name(dialect_of(header.layout), part.type)
            raise ContainerError(
                f"partition {name} holds at most 4 GiB",
                file=path,
                field=name,
                found=f"{part.size} bytes",
                expected=f"at most {MAX_U32} bytes",
                code="OM_OVER_4GIB",
            )


def _table(header: HeaderFields, group: Sequence[Partition]) -> bytes:
    # offsets count from the end of the table, in a bundle from the end of the header
    offset = table_bytes(header, len(group)) if header.is_ascend_type(BUNDLE) else 0
    rows = []
    for part in group:
        rows.append((part.type, offset, part.size))
        offset += part.size
    if header.table_bits == 32:
        return struct.pack("<I", len(rows)) + b"".join(struct.pack("<III", *row) for row in rows)
    return struct.pack("<I4x", len(rows)) + b"".join(struct.pack("<I4xQQ", *row) for row in rows)


def _copy(part: Partition, out: BinaryIO) -> None:
    copied = 0
    for piece in _pieces(part):
        out.write(piece)
        copied += len(piece)
    if copied != part.size:
        raise OSError(f"the source of a partition changed its size from {part.size} to {copied} bytes")


def _pieces(part: Partition) -> Iterator[bytes]:
    if isinstance(part.data, bytes):
        yield part.data
        return
    data = part.data
    piece = FileSlice(data, 0, part.size) if isinstance(data, Path) else data
    with piece.path.open("rb") as source:
        source.seek(piece.offset)
        left = piece.size
        while left > 0 and (chunk := source.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
