"""The protobuf wire format: a lazy reader that seeks past what nobody asked for, and a small deterministic writer.

Only what the container's messages need: varint, fixed32, fixed64 and length-delimited fields; the deprecated groups are
refused. Source of the format: protobuf.dev, "Encoding". Standard library only; valid for Python 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_cannlm.container.source import Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a protobuf message."""


@dataclass(frozen=True)
class Field:
    """One field where it lies: ``start..end`` is its payload; ``value`` is set for varints only (unsigned 64-bit)."""

    number: int
    wire_type: int
    start: int
    end: int
    value: int = 0

    @property
    def size(self) -> int:
        """Payload bytes."""
        return self.end - self.start

    @property
    def signed(self) -> int:
        """The varint as a two's complement int64."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


def read_varint(source: Source, position: int, end: int) -> tuple[int, int]:
    """An unsigned 64-bit varint at ``position`` and the position after it; :class:`WireError` if it does not end."""
    raw = source.at(position, min(10, end - position))
    value = 0
    for index, byte in enumerate(raw):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + index + 1
    raise WireError(f"a number at offset {position} does not end")


def fields(source: Source, start: int, end: int) -> Iterator[Field]:
    """The fields of the message at ``start..end``, payloads of length-delimited fields unread."""
    position = start
    while position < end:
        tag_at = position
        tag, position = read_varint(source, position, end)
        number, wire_type = tag >> 3, tag & 7
        value = 0
        if number == 0 or number >= 1 << 29:
            raise WireError(f"field number {number} at offset {tag_at}")
        if wire_type == VARINT:
            payload = position
            value, position = read_varint(source, position, end)
        elif wire_type in (FIXED32, FIXED64):
            payload, position = position, position + (4 if wire_type == FIXED32 else 8)
        elif wire_type == BYTES:
            length, payload = read_varint(source, position, end)
            position = payload + length
        else:
            raise WireError(f"wire type {wire_type} at offset {tag_at}")
        if position > end:
            raise WireError(f"field {number} at offset {tag_at} runs {position - end} bytes past its message")
        yield Field(number, wire_type, payload, position, value)


def varints(source: Source, field: Field) -> Iterator[Field]:
    """The varints of a repeated field, packed or not."""
    if field.wire_type == VARINT:
        yield field
    elif field.wire_type == BYTES:
        position = field.start
        while position < field.end:
            start = position
            value, position = read_varint(source, position, field.end)
            yield Field(field.number, VARINT, start, position, value)
    else:
        raise WireError(f"field {field.number} is no number")


def encode_varint(value: int) -> bytes:
    """A varint; negative numbers become ten bytes, as int64 does."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A varint field."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def float_field(number: int, value: float) -> bytes:
    """A 32-bit float field."""
    return encode_varint(number << 3 | FIXED32) + struct.pack("<f", value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """A length-delimited field: bytes, text as UTF-8, or an encoded message."""
    raw = value.encode("utf-8") if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(raw)) + raw


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """A packed repeated varint field."""
    return bytes_field(number, b"".join(map(encode_varint, values)))
