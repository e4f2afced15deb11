"""TASK_INFO of a compiled Kirin model: blocks of type-length-value records, one of which names the platform.

A block: u32 0xABCDABCD, u32 version 0, u32 total length with this head, u32 number of records other than MODELDEF,
u32 reserved[4]; then records { u32 type, u32 length with these 8 bytes, value }. Valid for Python 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cannlm.container.source import Source

BLOCK_MAGIC = 0xABCDABCD
COMPATIBLE_MAGIC = 0x5B5B5B5B
MODELDEF, COMPATIBLE_V2 = 1, 5

PLATFORM_CODES = {"KirinX90": 10, "Kirin9030": 16}
"""Platform numbers with a known name (the vendor's graph engine source). 7 and 14 occur in real files, unnamed."""

DEFAULT_PLATFORM = 10
"""What the vendor's open writer puts for every chip it does not know, so 10 alone is weak evidence."""

_BLOCK = struct.Struct("<IIII16x")
_RECORD = struct.Struct("<II")
_COMPATIBLE = struct.Struct("<IIII")
_MAX_RECORDS = 4096
_MAX_IDS = 1024

_EMPTY_MODEL_TASK = b"\x60\x01"
"""The least ModelTaskDef: stream_num (field 12) = 1."""


class TaskInfoError(ValueError):
    """The records do not fit each other; the message says where."""


@dataclass(frozen=True)
class Record:
    """One record: ``start..end`` is its value inside TASK_INFO; ``size`` counts the 8 bytes before it."""

    type: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Length field of the record."""
        return self.end - self.start + _RECORD.size


def read_records(source: Source, start: int, size: int) -> tuple[Record, ...]:
    """All records of all blocks; none if the partition does not start with a block (a CPU-only model)."""
    records: list[Record] = []
    position, end = start, start + size
    while position < end:
        if end - position < _BLOCK.size or _BLOCK.unpack(source.at(position, _BLOCK.size))[0] != BLOCK_MAGIC:
            if position == start:
                return ()
            raise TaskInfoError(f"no block head at position {position - start}")
        total = _BLOCK.unpack(source.at(position, _BLOCK.size))[2]
        if total < _BLOCK.size or total > end - position:
            raise TaskInfoError(
                f"a block of {total} bytes at position {position - start}, {end - position} bytes are left"
            )
        block_end = position + total
        position += _BLOCK.size
        while position < block_end:
            if block_end - position < _RECORD.size:
                raise TaskInfoError(f"{block_end - position} stray bytes at position {position - start}")
            kind, length = _RECORD.unpack(source.at(position, _RECORD.size))
            if length < _RECORD.size or length > block_end - position:
                raise TaskInfoError(
                    f"a record of {length} bytes at position {position - start}, {block_end - position} bytes are left"
                )
            records.append(Record(kind, position + _RECORD.size, position + length))
            if len(records) > _MAX_RECORDS:
                raise TaskInfoError(f"more than {_MAX_RECORDS} records")
            position += length
    return tuple(records)


def read_platform(source: Source, records: Sequence[Record]) -> tuple[int, tuple[int, ...]] | None:
    """Platform code and ids of the first COMPATIBLE_V2 record, None if there is no such record."""
    for record in records:
        if record.type != COMPATIBLE_V2:
            continue
        have = record.end - record.start
        if have < _COMPATIBLE.size:
            raise TaskInfoError(f"COMPATIBLE_V2 of {have} bytes, at least {_COMPATIBLE.size} are needed")
        magic, _, platform, count = _COMPATIBLE.unpack(source.at(record.start, _COMPATIBLE.size))
        if magic != COMPATIBLE_MAGIC:
            raise TaskInfoError(f"COMPATIBLE_V2 magic 0x{magic:08x}, expected 0x{COMPATIBLE_MAGIC:08x}")
        if count > _MAX_IDS or count * 4 > have - _COMPATIBLE.size:
            raise TaskInfoError(f"COMPATIBLE_V2 promises {count} ids in {have - _COMPATIBLE.size} bytes")
        ids = struct.unpack(f"<{count}I", source.at(record.start + _COMPATIBLE.size, count * 4))
        return platform, ids
    return None


def encode_task_info(platform: int, *, ids: Sequence[int] = ()) -> bytes:
    """One block with the least MODELDEF and a COMPATIBLE_V2 record for ``platform``."""
    compatible = _COMPATIBLE.pack(COMPATIBLE_MAGIC, 0, platform, len(ids)) + struct.pack(f"<{len(ids)}I", *ids)
    body = b"".join(
        _RECORD.pack(kind, _RECORD.size + len(value)) + value
        for kind, value in ((MODELDEF, _EMPTY_MODEL_TASK), (COMPATIBLE_V2, compatible))
    )
    return _BLOCK.pack(BLOCK_MAGIC, 0, _BLOCK.size + len(body), 1) + body


def with_platform(task_info: bytes, source: Source, platform: int) -> bytes:
    """``task_info`` with another platform code in every COMPATIBLE_V2 record; unchanged if it has none."""
    patched = bytearray(task_info)
    for record in read_records(source, 0, len(task_info)):
        if record.type == COMPATIBLE_V2:
            struct.pack_into("<I", patched, record.start + 8, platform)
    return bytes(patched)
