"""MODEL_INOUT_INFO: inputs and outputs of an Ascend model as its converter lists them (since CANN 7).

A run of { i32 type, u32 length, value }. Types 0 and 1, inputs and outputs: u32 count, then per tensor { u64 bytes,
i32 format, i32 data type (C++ enum), u32 lengths in bytes of name, dims, dimsV2 and ranges } and those four, dims as
int64, ranges as pairs of them. Type 2: u32 count and that many u64. Types 3 and 4: u32 count, as many u32 row lengths,
then the rows as u64. Types 5 and 6: u32 count, as many u32 lengths, then the texts. Valid for Python 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_cannlm.container.dtypes import CPP_DTYPES, FORMATS, cpp_dtype, format_name
from pytest_cannlm.container.source import Source

INPUTS, OUTPUTS, BATCH, IMAGE_SIZE, DIMS, OUTPUT_SHAPES, INPUT_ORDER = range(7)

MAX_SIZE = 256 * 1024
"""A list of some tensors takes kilobytes."""

_TENSOR_COST = 4
"""What reading and telling a tensor takes, in protobuf fields that are passed (measured)."""

_RECORD = struct.Struct("<iI")
_COUNT = struct.Struct("<I")
_TENSOR = struct.Struct("<QiiIIII")


class InOutInfoError(ValueError):
    """The records do not fit each other; the message says where."""


@dataclass(frozen=True)
class InOutTensor:
    """One input or output. ``shape`` is what the caller feeds or gets, -1 for a dimension that varies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    format: str
    size: int = 0
    """Bytes without alignment, 0 if they vary."""
    shape_v2: tuple[int, ...] = ()
    """The shape behind static image preprocessing; equal to ``shape`` without it."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Per dimension the least and the most; empty if nothing varies."""


@dataclass(frozen=True)
class InOutInfo:
    """What the partition says; a choice that a model does not offer is empty."""

    inputs: tuple[InOutTensor, ...] = ()
    outputs: tuple[InOutTensor, ...] = ()
    batch: tuple[int, ...] = ()
    """Batch sizes to choose from."""
    image_size: tuple[tuple[int, ...], ...] = ()
    """Heights and widths to choose from."""
    dims: tuple[tuple[int, ...], ...] = ()
    """Sets of dimensions to choose from."""
    output_shapes: tuple[str, ...] = ()
    input_order: tuple[str, ...] = ()


def read_inout_info(source: Source, start: int, size: int) -> InOutInfo:
    """What the partition at ``start`` says; records of unknown type are passed. :class:`InOutInfoError` if broken."""
    if size > MAX_SIZE:
        raise InOutInfoError(f"{size} bytes, more than {MAX_SIZE}")
    reader = _Reader(source.at(start, size))
    found: dict[int, tuple[object, ...]] = {}
    while reader.left:
        at = reader.position
        kind, length = reader.take(_RECORD)
        value = reader.part(length, f"record of type {kind} at position {at}")
        if kind in _READ:
            found[kind] = _READ[kind](value)
            if value.left:
                raise InOutInfoError(
                    f"{value.left} stray bytes at position {value.position}, in a record of type {kind}"
                )
    source.budget.spend(_TENSOR_COST * sum(len(found.get(kind, ())) for kind in (INPUTS, OUTPUTS)))
    return InOutInfo(**{name: found[kind] for kind, name in _FIELDS.items() if kind in found})  # type: ignore[arg-type]


def encode_inout_info(info: InOutInfo) -> bytes:
    """The partition that :func:`read_inout_info` reads as ``info``; what is empty is left out, but for the tensors."""
    records = [(INPUTS, _encode_tensors(info.inputs)), (OUTPUTS, _encode_tensors(info.outputs))]
    if info.batch:
        records.append((BATCH, _COUNT.pack(len(info.batch)) + _pack("Q", info.batch)))
    for kind, rows in ((IMAGE_SIZE, info.image_size), (DIMS, info.dims)):
        if rows:
            flat = [number for row in rows for number in row]
            records.append((kind, _COUNT.pack(len(rows)) + _pack("I", [len(row) for row in rows]) + _pack("Q", flat)))
    for kind, texts in ((OUTPUT_SHAPES, info.output_shapes), (INPUT_ORDER, info.input_order)):
        if texts:
            raw = [text.encode("utf-8") for text in texts]
            records.append((kind, _COUNT.pack(len(raw)) + _pack("I", [len(item) for item in raw]) + b"".join(raw)))
    return b"".join(_RECORD.pack(kind, len(value)) + value for kind, value in records)


class _Reader:
    """Takes bytes from the front; whatever is longer than the rest is an error that names the position."""

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self.position = position
        self._end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self._end - self.position

    def bytes(self, count: int, what: str = "value") -> bytes:
        if count > self.left:
            raise InOutInfoError(f"{what}: {count} bytes at position {self.position}, {self.left} are left")
        self.position += count
        return self._data[self.position - count : self.position]

    def part(self, count: int, what: str) -> _Reader:
        self.bytes(count, what)
        return _Reader(self._data, self.position - count, self.position)

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.bytes(form.size))

    def count(self, item_bytes: int) -> int:
        """A count of items, each of which takes at least so many bytes."""
        (number,) = self.take(_COUNT)
        if number * item_bytes > self.left:
            raise InOutInfoError(f"{number} items promised at position {self.position}, {self.left} bytes are left")
        return number

    def numbers(self, code: str, size: int) -> tuple[int, ...]:
        """All numbers in ``size`` bytes."""
        width = struct.calcsize(f"<{code}")
        if size % width:
            raise InOutInfoError(f"{size} bytes of {width}-byte numbers at position {self.position}")
        return struct.unpack(f"<{size // width}{code}", self.bytes(size))

    def text(self, size: int) -> str:
        return self.bytes(size).decode("utf-8", errors="backslashreplace")


def _tensors(reader: _Reader) -> tuple[InOutTensor, ...]:
    return tuple(_tensor(reader) for _ in range(reader.count(_TENSOR.size)))


def _tensor(reader: _Reader) -> InOutTensor:
    size, form, dtype, name_bytes, dims_bytes, dims_v2_bytes, range_bytes = reader.take(_TENSOR)
    name = reader.text(name_bytes)
    shape = reader.numbers("q", dims_bytes)
    shape_v2 = reader.numbers("q", dims_v2_bytes)
    bounds = reader.numbers("q", range_bytes)
    if len(bounds) % 2:
        raise InOutInfoError(f"half a range before position {reader.position}")
    ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    return InOutTensor(name, cpp_dtype(dtype), shape, format_name(form), size, shape_v2, ranges)


def _numbers(reader: _Reader) -> tuple[int, ...]:
    return reader.numbers("Q", 8 * reader.count(8))


def _rows(reader: _Reader) -> tuple[tuple[int, ...], ...]:
    lengths = reader.numbers("I", 4 * reader.count(4))
    return tuple(reader.numbers("Q", 8 * length) for length in lengths)


def _texts(reader: _Reader) -> tuple[str, ...]:
    lengths = reader.numbers("I", 4 * reader.count(4))
    return tuple(reader.text(length) for length in lengths)


_READ = {
    INPUTS: _tensors,
    OUTPUTS: _tensors,
    BATCH: _numbers,
    IMAGE_SIZE: _rows,
    DIMS: _rows,
    OUTPUT_SHAPES: _texts,
    INPUT_ORDER: _texts,
}
_FIELDS = {
    INPUTS: "inputs",
    OUTPUTS: "outputs",
    BATCH: "batch",
    IMAGE_SIZE: "image_size",
    DIMS: "dims",
    OUTPUT_SHAPES: "output_shapes",
    INPUT_ORDER: "input_order",
}


def _encode_tensors(tensors: Sequence[InOutTensor]) -> bytes:
    formats = {name: number for number, name in FORMATS.items()}
    out = [_COUNT.pack(len(tensors))]
    for tensor in tensors:
        name = tensor.name.encode("utf-8")
        dims, dims_v2 = _pack("q", tensor.shape), _pack("q", tensor.shape_v2)
        ranges = _pack("q", [bound for pair in tensor.ranges for bound in pair])
        head = (tensor.size, formats[tensor.format], CPP_DTYPES.index(tensor.dtype))
        out += [_TENSOR.pack(*head, len(name), len(dims), len(dims_v2), len(ranges)), name, dims, dims_v2, ranges]
    return b"".join(out)


def _pack(code: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)
