"""Step 1: stream a checkpoint into the weight file of a package, chunk by chunk, and check what came out.

Memory is bounded by a few chunks of rows, whatever the model's size. The same code writes the float32 weights of a
reference: only the format differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build import decoder, runtime_form
from pytest_cannlm.build.ahead import WORKERS, in_order
from pytest_cannlm.build.decoder import Matrix
from pytest_cannlm.build.schemes import (
    Bytes,
    Float32,
    Format,
    TensorQuality,
    dequantize_w4,
    dequantize_w8,
    group_size_for,
    quantize_w4,
    quantize_w8,
    split_nibbles,
)
from pytest_cannlm.build.weights import Coefficients, PartQuality, Stored, StoredMatrix, WeightWriter
from pytest_cannlm.errors import BuildError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.progress import Progress

CHUNK_ELEMENTS = 1 << 18
"""Weights in a chunk: what is made of 1 MB of float32 stays in a core's own cache."""

MIN_NEGATIVE_SHARE = 0.30
"""Below this share of negative weights, where the checkpoint had more, a tensor counts as clamped: damaged 4-bit
exports were seen with 13 % where the original had 43 %."""
MIN_SQNR_DB = {"w4": 8.0, "w8": 25.0, "fp16": 50.0, "f32": 100.0}
"""Far below what an intact tensor keeps (about 17, 38, 70 dB and no loss); a tensor under it was damaged on the way."""
_JUDGED_SIZE = 10_000
"""Smaller tensors are too small for a statement about shares."""


class RowSource(Protocol):
    """Where float32 rows come from: a checkpoint, or the dequantized weights of a package."""

    def __call__(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """Rows of the tensor ``name``."""


class Rounding(Protocol):
    """How the rows of one matrix become codes; see :mod:`pytest_cannlm.build.schemes` for what is returned.

    ``first`` is the place of the first of the rows in the matrix; chunks come in any order.
    """

    def w4(self, rows: Float32, group_size: int, *, first: int) -> tuple[Bytes, npt.NDArray[np.float16]]:
        """4-bit codes, packed, and the scales of groups."""

    def w8(self, rows: Float32, *, first: int) -> tuple[npt.NDArray[np.int8], Float32]:
        """8-bit codes and the scales of rows."""


class NearestRounding:
    """Every weight to the code nearest to it."""

    def w4(self, rows: Float32, group_size: int, *, first: int = 0) -> tuple[Bytes, npt.NDArray[np.float16]]:
        """See :func:`pytest_cannlm.build.schemes.quantize_w4`."""
        return quantize_w4(rows, group_size)

    def w8(self, rows: Float32, *, first: int = 0) -> tuple[npt.NDArray[np.int8], Float32]:
        """See :func:`pytest_cannlm.build.schemes.quantize_w8`."""
        return quantize_w8(rows)


NEAREST = NearestRounding()


def nearest(_: Matrix) -> Rounding:
    """Rounds every matrix to nearest."""
    return NEAREST


@dataclass(frozen=True)
class Formats:
    """Which format each matrix gets, and the group size asked for."""

    projections: Format
    lm_head: Format
    group_size: int | None = None
    eight_bit: frozenset[str] = frozenset()
    """Names of projections that get 8 bits whatever the others get."""

    def of(self, matrix: Matrix) -> Format:
        """The format of ``matrix``."""
        if matrix.kind == "lm_head":
            return self.lm_head
        return "w8" if matrix.name in self.eight_bit else self.projections

    def rounded(self, matrix: Matrix, rows: Float32) -> Float32:
        """Rows of ``matrix`` as they are after rounding to nearest."""
        return _encoder(self.of(matrix), rows.shape[1], self.group_size, NEAREST).encode(rows, 0)[1]


def write_weights(
    *,
    config: DecoderConfig,
    read: RowSource,
    rows_of: Callable[[str], int],
    formats: Formats,
    scheme: str,
    positions: int,
    path: Path,
    label: str,
    progress: Progress,
    rounding: Callable[[Matrix], Rounding] = nearest,
) -> Coefficients:
    """Write every matrix, norm and rotary table of the decoder to ``path``.

    Args:
        config: the decoder.
        read: gives float32 rows of a checkpoint tensor.
        rows_of: number of rows of a checkpoint tensor.
        formats: how matrices are stored.
        scheme: name recorded in the coefficients.
        positions: length of the rotary tables.
        path: the weight file.
        label: what progress is reported as.
        progress: told about every chunk.
        rounding: asked for every matrix, in the order in which the decoder applies them, before its rows are read.

    Raises:
        BuildError: a tensor came out clamped, not finite or unrecognizable; the message names it.
    """
    matrices = decoder.matrices(config)
    total = sum(rows_of(part) for matrix in matrices for part in matrix.parts)
    for name in decoder.vectors(config):  # a damaged one must not cost the work on the matrices, which may change them
        require_finite(name, read(name))
    stored: dict[str, StoredMatrix] = {}
    vectors: dict[str, Stored] = {}
    with (
        WeightWriter(path) as writer,
        ThreadPoolExecutor(WORKERS) as pool,
        progress.task(label, total=total, unit="rows") as task,
    ):
        for matrix in matrices:
            chosen = rounding(matrix)
            columns = read(matrix.parts[0], slice(0, 1)).shape[1]
            rows = [rows_of(part) for part in matrix.parts]
            encoder = _encoder(formats.of(matrix), columns, formats.group_size, chosen)
            arrays = {key: writer.reserve((sum(rows), *shape), dtype) for key, (shape, dtype) in encoder.layout.items()}
            qualities = []
            first = 0
            for part, count in zip(matrix.parts, rows, strict=True):
                quality = TensorQuality()
                for place, codes, chunk in _encode_chunks(pool, encoder, read, part, count, first=first):
                    for key, values in codes.items():
                        writer.write_rows(arrays[key], place, values)
                    quality += chunk
                    task.advance(next(iter(codes.values())).shape[0])
                first += count
                qualities.append(_checked(part, count, quality, encoder.format))
            stored[matrix.name] = StoredMatrix(
                matrix.name, encoder.format, sum(rows), columns, encoder.group_size, arrays, tuple(qualities)
            )
        for name, values in _vectors(config, read, positions):
            vectors[name] = writer.reserve(values.shape, "float32")
            writer.write_rows(vectors[name], 0, values)
        task.note(f"{len(stored)} matrices, {writer.size / 1e6:.0f} MB")
        return Coefficients(scheme, stored, vectors, writer.size)


@dataclass(frozen=True)
class _Encoder:
    """One format for one number of columns: the arrays that it makes and the function that makes them."""

    format: Format
    columns: int
    group_size: int
    layout: dict[str, tuple[tuple[int, ...], str]]
    encode: Callable[[Float32, int], tuple[dict[str, npt.NDArray[Any]], Float32]]
    """Arrays for rows, given the place of their first in the matrix, and the numbers that these stand for."""


def _encoder(kind: Format, columns: int, asked_group: int | None, rounding: Rounding) -> _Encoder:
    group = group_size_for(columns, asked_group) if kind in ("w4", "w8") else columns
    groups = columns // group

    def w4(rows: Float32, first: int) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        codes, scales = rounding.w4(rows, group, first=first)
        return {"codes": codes, "scales": scales}, dequantize_w4(codes, scales)

    def w8(rows: Float32, first: int) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        codes, scales = rounding.w8(rows, first=first)
        high, low = split_nibbles(codes, group)
        return {"high": high, "low": low, "scales": scales}, dequantize_w8(codes, scales)

    def plain(rows: Float32, first: int) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        with np.errstate(over="ignore"):  # infinity is reported as what it is, with the tensor's name
            values = rows.astype("float16" if kind == "fp16" else "float32")
        return {"values": values}, values.astype(np.float32)

    nibbles = ((groups, group // 2), "uint8")
    if kind == "w4":
        return _Encoder(kind, columns, group, {"codes": nibbles, "scales": ((groups,), "float16")}, w4)
    if kind == "w8":
        return _Encoder(kind, columns, group, {"high": nibbles, "low": nibbles, "scales": ((), "float32")}, w8)
    return _Encoder(kind, columns, group, {"values": ((columns,), "float16" if kind == "fp16" else "float32")}, plain)


_Chunk = tuple[int, dict[str, npt.NDArray[Any]], TensorQuality]


def _encode_chunks(
    pool: ThreadPoolExecutor, encoder: _Encoder, read: RowSource, part: str, count: int, *, first: int
) -> Iterator[_Chunk]:
    """Encode chunks of rows in the pool, at most a few ahead, and give them back in order, each with its place in the
    matrix, where the part's rows begin at ``first``."""

    def work(rows: slice) -> _Chunk:
        values = require_finite(part, read(part, rows))
        codes, after = encoder.encode(values, first + rows.start)
        return first + rows.start, codes, TensorQuality.of(values, after)

    return in_order(pool, work, row_chunks(count, encoder.columns))


def row_chunks(rows: int, columns: int) -> list[slice]:
    """The rows of a tensor in pieces that are worked on one by one."""
    step = max(1, CHUNK_ELEMENTS // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def require_finite(tensor: str, values: Float32) -> Float32:
    """The values, or BuildError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise BuildError("tensor holds NaN or infinity", field=tensor, remedy="the checkpoint is damaged; get it again")
    return values


def _vectors(config: DecoderConfig, read: RowSource, positions: int) -> Iterator[tuple[str, Float32]]:
    for name in decoder.vectors(config):
        yield name, require_finite(name, read(name))
    yield from runtime_form.rotary_vectors(config, positions).items()


def _checked(tensor: str, rows: int, quality: TensorQuality, kind: Format) -> PartQuality:
    """What is recorded of a tensor, or BuildError if it must not be used."""
    if not quality.finite:
        largest = max(-quality.low, quality.high)
        raise BuildError(
            "tensor does not fit the number format",
            field=tensor,
            found=f"values up to {largest:g}",
            expected="at most 65504",
            remedy="choose a quantized scheme",
        )
    before = quality.negatives_before / quality.count
    if quality.count >= _JUDGED_SIZE and quality.negative_share < MIN_NEGATIVE_SHARE < before:
        raise BuildError(
            "quantized tensor lost its negative weights",
            field=tensor,
            found=f"{quality.negative_share:.1%} negative",
            expected=f"about {before:.1%} as in the checkpoint",
            remedy="the tensor was clamped; check the quantizer's settings for this chip",
        )
    if quality.signal and not quality.sqnr_db >= MIN_SQNR_DB[kind]:  # NaN where squares overflow: no weights at all
        raise BuildError(
            "quantized tensor does not resemble the checkpoint's",
            field=tensor,
            found=f"SQNR {quality.sqnr_db:.1f} dB",
            expected=f"at least {MIN_SQNR_DB[kind]:.0f} dB for {kind}",
            remedy="use a smaller group size, or keep this scheme for models whose weights allow it",
        )
    return PartQuality(tensor, rows, quality.sqnr_db, quality.negative_share, quality.low, quality.high)
