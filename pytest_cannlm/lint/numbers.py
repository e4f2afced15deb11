"""What the numbers of a tensor look like, from rows spread evenly over it: signs, constants, NaN.

Only so many bytes are read of a tensor, from plain files and never through a map, so that a package of any size is
looked at in moments. Where the sample looks bad the whole tensor is read before anything is said about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pytest_cannlm.lint.finding import CannotLook
from pytest_cannlm.lint.graph import Stored

JUDGED_SIZE = 10_000
"""Tensors with fewer numbers say nothing about signs."""
LEAST_NEGATIVE = 0.30
"""Share of negative weights below which a tensor was probably clamped; sound ones have 43 % or more."""

_BUDGET = 48 * 1024
"""Bytes that a sample reads of a tensor; enough to judge signs in any format."""
_RUNS = 8
_CHUNK = 4 << 20
_LONGEST_ROW = 16 << 20

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[np.generic]
Decode = Callable[[Mapping[str, Array]], Floats]


@dataclass(frozen=True)
class Region:
    """Where an array lies: ``shape`` from ``offset`` of ``file``, row after row."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, that is of one index of the first axis."""
        return math.prod(self.shape[1:]) * int(self.dtype[-1])

    def rows(self, first: int, last: int) -> Array:
        """Rows ``first`` to ``last`` - 1."""
        wanted = (last - first) * self.row_bytes
        with self.file.open("rb") as file:
            file.seek(self.offset + first * self.row_bytes)
            raw = file.read(wanted)
        if len(raw) < wanted:
            raise CannotLook(f"{self.file.name} is too short")
        return np.frombuffer(raw, self.dtype).reshape(last - first, *self.shape[1:])


@dataclass(frozen=True)
class Matrix:
    """A tensor and how its stored arrays become numbers; all arrays have one first axis."""

    name: str
    arrays: Mapping[str, Region]
    decode: Decode

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return min(region.shape[0] for region in self.arrays.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, over all arrays."""
        return sum(region.row_bytes for region in self.arrays.values())


@dataclass(frozen=True)
class Look:
    """What was seen of a tensor."""

    numbers: int
    negative: int
    low: float
    high: float
    bad: int
    """NaN and infinite ones, left out of everything else."""

    @property
    def negative_share(self) -> float:
        """Share of numbers below zero."""
        return self.negative / self.numbers if self.numbers else 0.0

    @property
    def constant(self) -> bool:
        """Whether all numbers are the same."""
        return self.numbers > 1 and self.low == self.high

    @property
    def clamped(self) -> bool:
        """Whether there are enough numbers to tell, and too few of them are negative."""
        return self.numbers >= JUDGED_SIZE and self.negative_share < LEAST_NEGATIVE


def look_at(matrix: Matrix) -> Look:
    """A sample of ``matrix``, or all of it where the sample looks bad."""
    if matrix.row_bytes > _LONGEST_ROW:
        raise CannotLook(f"a row of {matrix.name} has more than {_LONGEST_ROW:,} bytes")
    sample = _over(matrix, _spread(matrix))
    if sample.bad or sample.constant or sample.clamped:
        return _over(matrix, _everything(matrix))
    return sample


def nibbles(codes: Array) -> npt.NDArray[np.uint8]:
    """Two numbers per byte, the lower one first, along the last axis."""
    packed = codes.astype(np.uint8, copy=False)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def w4(read: Mapping[str, Array]) -> Floats:
    """Codes [n, groups, group / 2] with one scale per group."""
    values = nibbles(read["codes"]).astype(np.float32) - np.float32(8)
    return values * read["scales"].astype(np.float32)[:, :, None]


def w8(read: Mapping[str, Array]) -> Floats:
    """Two planes of nibbles with one scale per row."""
    high = nibbles(read["high"]).astype(np.float32)
    values = high * np.float32(16) + nibbles(read["low"]) - np.float32(128)
    return values * read["scales"].astype(np.float32)[:, None, None]


def values(read: Mapping[str, Array]) -> Floats:
    """Numbers as they are."""
    return read["values"].astype(np.float32)


def matrix_of(name: str, arrays: Mapping[str, Stored], file: Path) -> Matrix | None:
    """The matrix that arrays of a weight file make up, by their names; None where they make up none that is known."""
    regions: dict[str, Region] = {}
    for key, stored in arrays.items():
        if stored.dtype is None or stored.offset is None or not stored.nbytes:
            return None
        regions[key] = Region(file, stored.offset, stored.dtype, stored.dims)
    for decode, ranks in _FORMATS:
        if ranks == {key: len(region.shape) for key, region in regions.items()}:
            matrix = Matrix(name, regions, decode)
            return matrix if _fits(matrix) else None
    return None


_FORMATS: tuple[tuple[Decode, Mapping[str, int]], ...] = (
    (w4, {"codes": 3, "scales": 2}),
    (w8, {"high": 3, "low": 3, "scales": 1}),
    (values, {"values": 2}),
    (values, {"values": 1}),
)
"""Arrays of each known format with the number of their axes."""


def _fits(matrix: Matrix) -> bool:
    shapes = {key: region.shape for key, region in matrix.arrays.items()}
    codes, scales = shapes.get("codes"), shapes.get("scales")
    same_rows = len({shape[0] for shape in shapes.values()}) == 1
    return same_rows and (codes is None or codes[:2] == scales) and shapes.get("high") == shapes.get("low")


def _spread(matrix: Matrix) -> Iterator[tuple[int, int]]:
    rows = max(1, _BUDGET // max(1, matrix.row_bytes))
    if rows >= matrix.rows:
        yield 0, matrix.rows
        return
    runs = min(_RUNS, rows)
    length = rows // runs
    for run in range(runs):
        first = run * (matrix.rows - length) // max(1, runs - 1)
        yield first, first + length


def _everything(matrix: Matrix) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // max(1, matrix.row_bytes))
    for first in range(0, matrix.rows, step):
        yield first, min(first + step, matrix.rows)


def _over(matrix: Matrix, runs: Iterator[tuple[int, int]]) -> Look:
    numbers = negative = bad = 0
    low, high = math.inf, -math.inf
    for first, last in runs:
        with np.errstate(all="ignore"):
            found = matrix.decode({key: region.rows(first, last) for key, region in matrix.arrays.items()})
        finite = np.isfinite(found)
        if not finite.all():
            bad += found.size - int(np.count_nonzero(finite))
            found = found[finite]
        if found.size:
            numbers += found.size
            negative += int(np.count_nonzero(found < 0))
            low, high = min(low, float(found.min())), max(high, float(found.max()))
    return Look(numbers, negative, low, high, bad)
