"""How numbers become codes: the arithmetic of each weight format, pure functions on float32 rows.

A *format* says how one matrix is stored (``w4``, ``w8``, ``fp16``, ``f32``); a *scheme* (``w4a16``, ``w8a16``,
``fp16``) says which format each matrix of a model gets. Both quantized formats are symmetric:

``w4``
    Groups of ``g`` neighbours along the input axis share one fp16 scale. The scale is chosen so that the value of
    largest magnitude maps to code -8 exactly (one more level is used than with a range of -7..7)::

        scale = fp16(m / -8),   m = value of largest magnitude in the group
        code  = clip(round(w / scale), -8, 7);   stored as code + 8, two per byte, lower nibble first

``w8``
    One fp32 scale per output row, chosen in the same way::

        scale = m / -128,   m = value of largest magnitude in the row
        code  = clip(round(w / scale), -128, 127);   stored as u = code + 128 in two planes of nibbles

    ``u = 16 * high + low``, so a w8 matrix is two 4-bit matrices; the planes take one byte per weight together.
    4-bit kernels then compute int8 weights exactly.

Embedding rows are int8 as the engine's files hold them: ``scale = max(abs(row)) / 127``, ``code = round(row / scale)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import UnsupportedModelError, UsageError

Format = Literal["w4", "w8", "fp16", "f32"]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_PAIRS = np.dtype("<u2")
"""Two neighbouring codes as one number: arithmetic on pairs is many times quicker than on every second byte."""
_SHORT_AXIS = 128
"""Along an axis up to this long NumPy's own reduction mostly pays for its calls; halving the axis does not."""

GROUP_SIZES = (128, 64, 32)
"""Group sizes along the input axis, best first; 4-bit kernels take these."""


@dataclass(frozen=True)
class Scheme:
    """Which format the projections and the LM head get. The embedding rows are int8 in every package."""

    name: str
    projections: Format
    lm_head: Format
    weight_bits: int


SCHEMES: dict[str, Scheme] = {
    "fp16": Scheme("fp16", projections="fp16", lm_head="fp16", weight_bits=16),
    "w8a16": Scheme("w8a16", projections="w8", lm_head="w8", weight_bits=8),
    "w4a16": Scheme("w4a16", projections="w4", lm_head="w8", weight_bits=4),
}
SCHEME_ALIASES = {"int8": "w8a16"}


def scheme_named(name: str) -> Scheme:
    """The scheme of that name; ``int8`` means ``w8a16``. UsageError for any other name."""
    try:
        return SCHEMES[SCHEME_ALIASES.get(name, name)]
    except KeyError:
        known = ", ".join([*SCHEMES, *SCHEME_ALIASES])
        raise UsageError("unknown scheme", field="scheme", found=name, expected=f"one of {known}") from None


def group_size_for(columns: int, asked: int | None = None) -> int:
    """The group size along an input axis of ``columns``: the asked one, else the largest of 128, 64, 32 that divides.

    Raises:
        UsageError: the asked size is not one that kernels take.
        UnsupportedModelError: no size divides ``columns``.
    """
    if asked is not None and asked not in GROUP_SIZES:
        raise UsageError("group size not supported", field="group_size", found=asked, expected="128, 64 or 32")
    for size in GROUP_SIZES:
        if size <= (asked or GROUP_SIZES[0]) and columns % size == 0:
            return size
    raise UnsupportedModelError(
        "no group size divides the input axis", found=f"{columns} columns", expected="a multiple of 32"
    )


def quantize_w4(rows: Float32, group_size: int) -> tuple[Bytes, npt.NDArray[np.float16]]:
    """Quantize ``rows`` [n, k] to 4 bits.

    Returns:
        codes: uint8 [n, k / group_size, group_size / 2], lower nibble first.
        scales: float16 [n, k / group_size].
    """
    n, k = rows.shape
    groups = rows.reshape(n, k // group_size, group_size)
    scales = (extreme(groups) / np.float32(-8.0)).astype(np.float16)
    inverse = reciprocal(scales.astype(np.float32))
    # +8.5 and truncation is round-half-up of code + 8; clipping keeps +8 (which fp16 rounding can produce) at +7
    shifted = groups * inverse[:, :, None]
    shifted += np.float32(8.5)
    np.clip(shifted, 0.0, 15.0, out=shifted)
    return pack_w4(shifted.astype(np.uint8)), scales


def pack_w4(codes: Bytes) -> Bytes:
    """Codes + 8, uint8 [n, groups, group_size], two per byte: the lower nibble is the first of the two."""
    pairs = codes.view(_PAIRS)
    return (pairs | (pairs >> np.uint16(4))).astype(np.uint8)


def dequantize_w4(codes: Bytes, scales: npt.NDArray[np.float16]) -> Float32:
    """The float32 rows [n, k] that 4-bit ``codes`` and ``scales`` stand for."""
    n, groups, half = codes.shape
    pairs = codes.astype(_PAIRS)
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    values = pairs.view(np.uint8).astype(np.float32)
    values -= np.float32(8.0)
    values *= scales.astype(np.float32)[:, :, None]
    return values.reshape(n, groups * 2 * half)


def unpack_w4(codes: Bytes) -> npt.NDArray[np.int8]:
    """The codes -8..7, int8 [n, k], that are packed in ``codes``; see :func:`pack_w4`."""
    n, groups, half = codes.shape
    values = np.empty((n, groups, 2 * half), np.int8)
    values[:, :, 0::2] = codes & 15
    values[:, :, 1::2] = codes >> 4
    values -= 8
    return values.reshape(n, groups * 2 * half)


def quantize_w8(rows: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """Quantize ``rows`` [n, k] to int8 with one scale per row.

    Returns:
        codes: int8 [n, k].
        scales: float32 [n]; negative where the extreme value is positive, 0 for a row of zeros.
    """
    return _int8(rows, extreme(rows) / np.float32(-128.0))


def quantize_embedding(rows: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """Quantize embedding ``rows`` [n, hidden] as the engine's embedding files hold them.

    Returns:
        codes: int8 [n, hidden] in -127..127.
        scales: float32 [n]; 0 for a row of zeros.
    """
    return _int8(rows, np.abs(rows).max(axis=-1) / np.float32(127.0))


def extreme(values: Float32) -> Float32:
    """The value of largest magnitude along the last axis, sign kept."""
    highest = lowest = values
    while highest.shape[-1] <= _SHORT_AXIS and highest.shape[-1] % 2 == 0:
        highest = np.maximum(highest[..., 0::2], highest[..., 1::2])
        lowest = np.minimum(lowest[..., 0::2], lowest[..., 1::2])
    highest, lowest = highest.max(axis=-1), lowest.min(axis=-1)
    found: Float32 = np.where(highest > -lowest, highest, lowest)
    return found


def reciprocal(scales: Float32) -> Float32:
    """``1 / scales``, and 0 where a scale is 0: all codes of that group or row are 0 then."""
    return np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)


def _int8(rows: Float32, scales: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    codes = np.clip(np.rint(rows * reciprocal(scales)[:, None]), -128, 127)
    return codes.astype(np.int8), scales


def dequantize_w8(codes: npt.NDArray[np.int8], scales: Float32) -> Float32:
    """The float32 rows [n, k] that int8 ``codes`` and per-row ``scales`` stand for."""
    return codes.astype(np.float32) * scales[:, None]


def split_nibbles(codes: npt.NDArray[np.int8], block: int) -> tuple[Bytes, Bytes]:
    """int8 ``codes`` [n, k] as nibble planes (high, low) of ``code + 128``, each uint8 [n, k / block, block / 2]."""
    shifted: Bytes = (codes.view(np.uint8) ^ np.uint8(0x80)).reshape(codes.shape[0], -1, block)
    return pack_w4(shifted >> np.uint8(4)), pack_w4(shifted & np.uint8(0x0F))


def join_nibbles(high: Bytes, low: Bytes) -> npt.NDArray[np.int8]:
    """The int8 codes [n, k] of two nibble planes; the inverse of :func:`split_nibbles`."""
    n, blocks, half = high.shape
    shifted = np.empty((n, blocks, 2 * half), np.uint8)
    shifted[:, :, 0::2] = (high << 4) | (low & 0x0F)
    shifted[:, :, 1::2] = (high & 0xF0) | (low >> 4)
    return (shifted ^ np.uint8(0x80)).reshape(n, -1).view(np.int8)


@dataclass(frozen=True)
class TensorQuality:
    """How much of a tensor survived quantization, from sums that can be added up chunk by chunk."""

    count: int = 0
    negatives: int = 0
    negatives_before: int = 0
    signal: float = 0.0
    noise: float = 0.0
    low: float = 0.0
    high: float = 0.0
    finite: bool = True

    @classmethod
    def of(cls, before: Float32, after: Float32) -> TensorQuality:
        """Compare float32 rows before quantization with the dequantized rows after it."""
        return cls(
            count=before.size,
            negatives=int(np.count_nonzero(after < 0)),
            negatives_before=int(np.count_nonzero(before < 0)),
            signal=_energy(before),
            noise=_energy(before - after),
            low=float(before.min()),
            high=float(before.max()),
            finite=bool(np.isfinite(before).all() and np.isfinite(after).all()),
        )

    def __add__(self, other: TensorQuality) -> TensorQuality:
        if not self.count:
            return other
        return TensorQuality(
            self.count + other.count,
            self.negatives + other.negatives,
            self.negatives_before + other.negatives_before,
            self.signal + other.signal,
            self.noise + other.noise,
            min(self.low, other.low),
            max(self.high, other.high),
            self.finite and other.finite,
        )

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio, 10 log10(sum w^2 / sum (w - q)^2); +inf without noise."""
        if self.noise == 0:
            return float("inf")
        return float(10 * np.log10(self.signal / self.noise)) if self.signal else float("-inf")

    @property
    def negative_share(self) -> float:
        """Share of negative values after quantization."""
        return self.negatives / self.count if self.count else float("nan")


def _energy(rows: Float32) -> float:
    """Sum of squares. A row is summed in float32, which is right to about 1e-6; rows are added up in float64."""
    return float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
