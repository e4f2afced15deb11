"""The coefficients of a package as one safetensors file, for tools that know nothing of the package's layout.

Per checkpoint tensor that was quantized, say ``model.layers.0.mlp.up_proj.weight``:

======================  ==========================  =================================================================
name                    dtype, shape                meaning
======================  ==========================  =================================================================
``….codes``             I8 [rows, columns]          -8..7 or -128..127, one per weight
``….scales``            F16 [rows, groups], F32     ``weight = (code - zero point) * scale``; can be negative
``….zero_points``       I8, as the scales           whole numbers; all 0, both formats are symmetric
======================  ==========================  =================================================================

16-bit matrices are the tensor itself. Vectors (norms, biases) are F32 by their checkpoint names: the ones that the
package uses, into which activation-aware scaling folds what it takes from the matrices. The file's metadata holds
``scheme`` and, per tensor, a JSON text with ``format``, ``group_size``, ``sqnr_db``, ``negative_share``, ``low`` and
``high`` (the range of the weights before); ``sqnr_db`` is null where nothing was lost.

Format: https://github.com/huggingface/safetensors (8 bytes of header length, a JSON header, the tensors' bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build.folder import COEFFICIENT_FILE
from pytest_cannlm.build.runtime_form import COS, SIN
from pytest_cannlm.build.schemes import join_nibbles, unpack_w4
from pytest_cannlm.build.weights import WEIGHT_FILE, Coefficients, PartQuality, StoredMatrix, WeightReader

_DTYPES = {"int8": "I8", "float16": "F16", "float32": "F32"}
_ALIGNMENT = 8
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class _Entry:
    """One tensor to write: its place is known before its bytes are made."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: tuple[StoredMatrix, str, int] | None
    """Matrix, kind of array and first row, or None for a vector."""

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def write_coefficients(package: Path, path: Path) -> None:
    """Write the coefficients of a built ``package``, the folder below ``coefficients.json``, a few rows at a time."""
    coefficients = Coefficients.load(package.parent / COEFFICIENT_FILE)
    reader = WeightReader(package / WEIGHT_FILE, coefficients)
    metadata = {"scheme": coefficients.scheme}
    entries: list[_Entry] = []
    for matrix in coefficients.matrices.values():
        first = 0
        for part in matrix.parts:
            entries += _entries(matrix, part, first)
            metadata[part.tensor] = json.dumps(_facts(matrix, part))
            first += part.rows
    for name, stored in coefficients.vectors.items():
        if name not in (COS, SIN):
            entries.append(_Entry(name, stored.dtype, stored.shape, None))
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": _DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [position, position + entry.nbytes],
        }
        position += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            for chunk in _chunks(reader, entry):
                file.write(np.ascontiguousarray(chunk).data)


def _entries(matrix: StoredMatrix, part: PartQuality, first: int) -> Iterator[_Entry]:
    whole = part.rows, matrix.columns
    if "values" in matrix.arrays:
        yield _Entry(part.tensor, matrix.arrays["values"].dtype, whole, (matrix, "values", first))
        return
    scales = matrix.arrays["scales"]
    groups = part.rows, scales.shape[1] if len(scales.shape) > 1 else 1
    yield _Entry(f"{part.tensor}.codes", "int8", whole, (matrix, "codes", first))
    yield _Entry(f"{part.tensor}.scales", scales.dtype, groups, (matrix, "scales", first))
    yield _Entry(f"{part.tensor}.zero_points", "int8", groups, (matrix, "zero_points", first))


def _facts(matrix: StoredMatrix, part: PartQuality) -> dict[str, Any]:
    sqnr_db = part.sqnr_db if math.isfinite(part.sqnr_db) else None
    measured = {"sqnr_db": sqnr_db, "negative_share": part.negative_share, "low": part.low, "high": part.high}
    grouped = matrix.group_size if matrix.format == "w4" else matrix.columns
    return {"format": matrix.format, "group_size": grouped, **measured}


def _chunks(reader: WeightReader, entry: _Entry) -> Iterator[npt.NDArray[Any]]:
    if entry.part is None:
        yield reader.array(reader.coefficients.vectors[entry.name])
        return
    matrix, kind, first = entry.part
    step = max(1, _CHUNK_ELEMENTS // entry.shape[1])
    for start in range(0, entry.shape[0], step):
        rows = slice(first + start, first + min(start + step, entry.shape[0]))
        yield _rows(reader, matrix, kind, rows)


def _rows(reader: WeightReader, matrix: StoredMatrix, kind: str, rows: slice) -> npt.NDArray[Any]:
    arrays = {key: reader.array(stored)[rows] for key, stored in matrix.arrays.items()}
    if kind == "zero_points":
        return np.zeros(arrays["scales"].shape, np.int8)
    if kind != "codes":
        return arrays[kind]
    return unpack_w4(arrays["codes"]) if matrix.format == "w4" else join_nibbles(arrays["high"], arrays["low"])
