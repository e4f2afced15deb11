"""The protobuf wire format: a lazy reader that seeks past what nobody asked for, and a small deterministic writer.

Only what the container's messages need: varint, fixed32, fixed64 and length-delimited fields; the deprecated groups are
refused. Source of the format: protobuf.dev, "Encoding". Standard library only; valid for Python 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pytest_cannlm.container.source import Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_LONGEST_VARINT = 10
_LONGEST_HEAD = 2 * _LONGEST_VARINT
"""Bytes of a field's tag and of the number behind it."""


class WireError(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):  # and no dataclass: a walk makes one per field
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


class Walk:
    """A reader of messages in ``source``: the payload of a length-delimited field is not read until it is asked for.

    Every field that it passes is taken from the budget of the source, so that a file of millions of empty ones costs no
    more than a large sound one; beyond it ``ReadLimitError``.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.budget = source.budget

    def raw(self, field: Field) -> bytes:
        """The payload of a field."""
        return self._source.at(field.start, field.size) if field.size else b""

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message at ``start..end``."""
        position = start
        spend, at = self.budget.spend, self._source.at
        while position < end:
            spend()
            tag_at = position
            head = at(position, min(_LONGEST_HEAD, end - position))
            tag, used = _decode(head, 0, tag_at)
            position += used
            number, wire_type = tag >> 3, tag & 7
            value = 0
            if number == 0 or number >= 1 << 29:
                raise WireError(f"field number {number} at offset {tag_at}")
            if wire_type == VARINT:
                payload = position
                value, more = _decode(head, used, tag_at)
                position += more
            elif wire_type in (FIXED32, FIXED64):
                payload, position = position, position + (4 if wire_type == FIXED32 else 8)
            elif wire_type == BYTES:
                length, more = _decode(head, used, tag_at)
                payload = position + more
                position = payload + length
            else:
                raise WireError(f"wire type {wire_type} at offset {tag_at}")
            if position > end:
                raise WireError(f"field {number} at offset {tag_at} runs {position - end} bytes past its message")
            yield Field(number, wire_type, payload, position, value)

    def varints(self, field: Field) -> Iterator[Field]:
        """The varints of a repeated field, packed or not."""
        if field.wire_type == VARINT:
            yield field
        elif field.wire_type == BYTES:
            position = field.start
            while position < field.end:
                self.budget.spend()
                start = position
                value, position = self._varint(position, field.end)
                yield Field(field.number, VARINT, start, position, value)
        else:
            raise WireError(f"field {field.number} is no number")

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """An unsigned 64-bit varint at ``position`` and the position after it."""
        value, used = _decode(self._source.at(position, min(_LONGEST_VARINT, end - position)), 0, position)
        return value, position + used


def _decode(raw: bytes, at: int, offset: int) -> tuple[int, int]:
    """The unsigned 64-bit varint at ``raw[at:]`` and its number of bytes; ``raw`` lies at ``offset`` of the file."""
    if at < len(raw) and raw[at] < 0x80:  # most of them
        return raw[at], 1
    value = 0
    for index, byte in enumerate(raw[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value >> 64:
                break
            return value, index + 1
    raise WireError(f"a number at offset {offset + at} does not end")


def encode_varint(value: int) -> bytes:
    """A varint; negative numbers become ten bytes, as int64 does."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def copied_field(field: Field, raw: bytes) -> bytes:
    """A field with its tag, as it stood in its message; ``raw`` is its payload."""
    if field.wire_type == BYTES:
        return bytes_field(field.number, raw)
    return encode_varint(field.number << 3 | field.wire_type) + raw


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
