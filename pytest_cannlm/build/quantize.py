"""Step 1: stream a checkpoint into the weight file of a package, chunk by chunk, and check what came out.

Memory is bounded by a few chunks of rows, whatever the model's size. The same code writes the float32 weights of a
reference: only the format differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build import decoder, runtime_form
from pytest_cannlm.build.decoder import Matrix
from pytest_cannlm.build.schemes import (
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

_CHUNK_ELEMENTS = 1 << 20
_IN_FLIGHT = 4
_WORKERS = 2

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


@dataclass(frozen=True)
class Formats:
    """Which format each kind of matrix gets, and the group size asked for."""

    projections: Format
    lm_head: Format
    group_size: int | None = None

    def of(self, matrix: Matrix) -> Format:
        """The format of ``matrix``."""
        return self.lm_head if matrix.kind == "lm_head" else self.projections


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

    Raises:
        BuildError: a tensor came out clamped, not finite or unrecognizable; the message names it.
    """
    matrices = decoder.matrices(config)
    total = sum(rows_of(part) for matrix in matrices for part in matrix.parts)
    stored: dict[str, StoredMatrix] = {}
    vectors: dict[str, Stored] = {}
    with (
        WeightWriter(path) as writer,
        ThreadPoolExecutor(_WORKERS) as pool,
        progress.task(label, total=total, unit="rows") as task,
    ):
        for matrix in matrices:
            columns = read(matrix.parts[0], slice(0, 1)).shape[1]
            rows = [rows_of(part) for part in matrix.parts]
            encoder = _encoder(formats.of(matrix), columns, formats.group_size)
            arrays = {key: writer.reserve((sum(rows), *shape), dtype) for key, (shape, dtype) in encoder.layout.items()}
            qualities = []
            first = 0
            for part, count in zip(matrix.parts, rows, strict=True):
                quality = TensorQuality()
                for start, codes, chunk in _in_order(pool, encoder, read, part, count, columns):
                    for key, values in codes.items():
                        writer.write_rows(arrays[key], first + start, values)
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
    group_size: int
    layout: dict[str, tuple[tuple[int, ...], str]]
    encode: Callable[[Float32], tuple[dict[str, npt.NDArray[Any]], Float32]]


def _encoder(kind: Format, columns: int, asked_group: int | None) -> _Encoder:
    group = group_size_for(columns, asked_group) if kind in ("w4", "w8") else columns
    groups = columns // group

    def w4(rows: Float32) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        codes, scales = quantize_w4(rows, group)
        return {"codes": codes, "scales": scales}, dequantize_w4(codes, scales)

    def w8(rows: Float32) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        codes, scales = quantize_w8(rows)
        high, low = split_nibbles(codes, group)
        return {"high": high, "low": low, "scales": scales}, dequantize_w8(codes, scales)

    def plain(rows: Float32) -> tuple[dict[str, npt.NDArray[Any]], Float32]:
        with np.errstate(over="ignore"):  # infinity is reported as what it is, with the tensor's name
            values = rows.astype("float16" if kind == "fp16" else "float32")
        return {"values": values}, values.astype(np.float32)

    nibbles = ((groups, group // 2), "uint8")
    if kind == "w4":
        return _Encoder(kind, group, {"codes": nibbles, "scales": ((groups,), "float16")}, w4)
    if kind == "w8":
        return _Encoder(kind, group, {"high": nibbles, "low": nibbles, "scales": ((), "float32")}, w8)
    return _Encoder(kind, group, {"values": ((columns,), "float16" if kind == "fp16" else "float32")}, plain)


_Chunk = tuple[int, dict[str, npt.NDArray[Any]], TensorQuality]


def _in_order(
    pool: ThreadPoolExecutor, encoder: _Encoder, read: RowSource, part: str, count: int, columns: int
) -> Iterator[_Chunk]:
    """Encode chunks of rows in the pool, at most a few ahead, and give them back in order."""
    step = max(1, _CHUNK_ELEMENTS // columns)

    def work(start: int) -> _Chunk:
        rows = read(part, slice(start, min(start + step, count)))
        if not np.isfinite(rows).all():
            raise BuildError(
                "tensor holds NaN or infinity", field=part, remedy="the checkpoint is damaged; get it again"
            )
        codes, after = encoder.encode(rows)
        return start, codes, TensorQuality.of(rows, after)

    pending: deque[Future[_Chunk]] = deque()
    for start in range(0, count, step):
        pending.append(pool.submit(work, start))
        if len(pending) >= _IN_FLIGHT:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _vectors(config: DecoderConfig, read: RowSource, positions: int) -> Iterator[tuple[str, Float32]]:
    for name in decoder.vectors(config):
        yield name, read(name)
    cos, sin = decoder.rope_tables(config, positions)
    half = config.head_dim // 2
    yield runtime_form.COS, cos
    # rotate_half negates the first half; with the sign in the table the graph needs one Gather only
    yield runtime_form.SIN, np.concatenate([-sin[:, :half], sin[:, half:]], axis=1)


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
    if quality.signal and quality.sqnr_db < MIN_SQNR_DB[kind]:
        raise BuildError(
            "quantized tensor does not resemble the checkpoint's",
            field=tensor,
            found=f"SQNR {quality.sqnr_db:.1f} dB",
            expected=f"at least {MIN_SQNR_DB[kind]:.0f} dB for {kind}",
            remedy="use a smaller group size, or keep this scheme for models whose weights allow it",
        )
    return PartQuality(tensor, rows, quality.sqnr_db, quality.negative_share, quality.low, quality.high)
