"""The weight file of a package and the coefficient file that says what lies where in it.

``SubGraph_0.weight`` holds arrays back to back, each at a multiple of :data:`ALIGNMENT` so that every one can be mapped
by itself. ``coefficients.json`` names them: per matrix its format, its group size, the checkpoint tensors whose rows
are stacked in it, and offset, dtype and shape of codes and scales, plus what quantization cost. The numbers in the file
are what the package runs on; nothing else holds weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build.schemes import (
    Float32,
    Format,
    dequantize_w4,
    dequantize_w8,
    join_nibbles,
)
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import BuildError

WEIGHT_FILE = EXTERNAL_WEIGHT_FILE
ALIGNMENT = 4096
"""A memory page: mapping an array then never touches a neighbour's page, and storage reads whole blocks."""

SCHEMA = 1


@dataclass(frozen=True)
class Stored:
    """One array in the weight file."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class PartQuality:
    """What became of one checkpoint tensor inside a matrix."""

    tensor: str
    rows: int
    sqnr_db: float
    negative_share: float
    low: float
    high: float


@dataclass(frozen=True)
class StoredMatrix:
    """A stored matrix [rows, columns]; ``arrays``: codes and scales (w4), high, low and scales (w8), or values."""

    name: str
    format: Format
    rows: int
    columns: int
    group_size: int
    arrays: Mapping[str, Stored]
    parts: tuple[PartQuality, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are read when the whole matrix is used once."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class Coefficients:
    """What the weight file holds."""

    scheme: str
    matrices: Mapping[str, StoredMatrix]
    vectors: Mapping[str, Stored]
    total_bytes: int
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    """Per projection what rounding it alone to 4 bits cost, in nats per position, where that was measured."""

    def save(self, path: Path) -> None:
        """Write the coefficient file as JSON, keys in a fixed order."""
        document = {
            "schema": SCHEMA,
            "scheme": self.scheme,
            "total_bytes": self.total_bytes,
            "matrices": {name: asdict(matrix) for name, matrix in self.matrices.items()},
            "vectors": {name: asdict(vector) for name, vector in self.vectors.items()},
            **({"sensitivity": dict(self.sensitivity)} if self.sensitivity else {}),
        }
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Coefficients:
        """Read a coefficient file; BuildError if it is of another schema."""
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != SCHEMA:
            raise BuildError(
                "coefficient file of another schema", file=path, found=document.get("schema"), expected=SCHEMA
            )
        return cls(
            scheme=document["scheme"],
            matrices={name: _matrix(data) for name, data in document["matrices"].items()},
            vectors={name: _stored(data) for name, data in document["vectors"].items()},
            total_bytes=document["total_bytes"],
            sensitivity=document.get("sensitivity", {}),
        )


def _stored(data: Mapping[str, Any]) -> Stored:
    return Stored(data["offset"], data["dtype"], tuple(data["shape"]))


def _matrix(data: Mapping[str, Any]) -> StoredMatrix:
    return StoredMatrix(
        name=data["name"],
        format=data["format"],
        rows=data["rows"],
        columns=data["columns"],
        group_size=data["group_size"],
        arrays={key: _stored(value) for key, value in data["arrays"].items()},
        parts=tuple(PartQuality(**part) for part in data["parts"]),
    )


class Layout:
    """Places for arrays in a weight file, one behind the other."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes up to the end of the last array."""

    def reserve(self, shape: tuple[int, ...], dtype: str) -> Stored:
        """The next aligned place for an array."""
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        stored = Stored(offset, dtype, shape)
        self.size = offset + stored.nbytes
        return stored


class WeightWriter(Layout):
    """Writes arrays into a weight file: reserve a place, then fill it row by row in any order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file: BinaryIO = path.open("w+b")

    def __enter__(self) -> WeightWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.truncate(self.size)
        self._file.close()

    def write_rows(self, stored: Stored, first: int, rows: npt.NDArray[Any]) -> None:
        """Fill rows ``first`` .. of ``stored`` along its first axis."""
        if rows.shape[1:] != stored.shape[1:] or rows.dtype != stored.dtype:
            raise ValueError(f"{rows.dtype}{rows.shape} does not fit {stored}")
        row_bytes = stored.nbytes // stored.shape[0]
        self._file.seek(stored.offset + first * row_bytes)
        self._file.write(np.ascontiguousarray(rows).data)


class WeightReader:
    """Maps a weight file and gives back its arrays, without a copy, and its matrices as float32."""

    def __init__(self, path: Path, coefficients: Coefficients) -> None:
        self.path = path
        self.coefficients = coefficients
        self._bytes = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)

    def array(self, stored: Stored) -> npt.NDArray[Any]:
        """The array at its place in the file."""
        return self._bytes[stored.offset : stored.offset + stored.nbytes].view(stored.dtype).reshape(stored.shape)

    def dequantized(self, name: str, rows: slice = slice(None)) -> Float32:
        """Rows of the matrix ``name`` as the float32 numbers that its codes stand for."""
        matrix = self.coefficients.matrices[name]
        read = {key: self.array(stored)[rows] for key, stored in matrix.arrays.items()}
        if matrix.format == "w4":
            return dequantize_w4(read["codes"], read["scales"])
        if matrix.format == "w8":
            return dequantize_w8(join_nibbles(read["high"], read["low"]), read["scales"])
        return read["values"].astype(np.float32)
