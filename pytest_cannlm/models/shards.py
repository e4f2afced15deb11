"""Safetensors files of a checkpoint: their headers read and checked before any weight is.

A safetensors file is 8 bytes header length (little-endian), that many bytes of JSON that give dtype, shape and byte
range of every tensor, then the bytes; see the format section of the safetensors documentation. The library's NumPy side
has no bfloat16 of its own and stops at the first damage, so headers are read here and all problems are told at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models import sniff
from pytest_cannlm.models.fields import read_json
from pytest_cannlm.models.tensors import problems_error, shorten

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: ``offset`` counts from the start of ``file``."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def part(self, number: int, parts: int) -> StoredTensor:
        """One of ``parts`` equal parts, in rows, of a tensor that holds several of one shape stacked."""
        shape = (self.shape[0] // parts, *self.shape[1:])
        nbytes = self.nbytes // parts
        return replace(self, shape=shape, offset=self.offset + number * nbytes, nbytes=nbytes)

    def read(self, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """The tensor, or the contiguous ``rows`` of it, as float32; only those bytes are read."""
        count = self.shape[0] if self.shape else 1
        start, stop, step = (rows or slice(None)).indices(count)
        taken = len(range(start, stop, step))
        if step != 1:
            raise ValueError("rows must be contiguous")
        width = math.prod(self.shape[1:])
        raw = np.fromfile(
            self.file,
            dtype=_NUMPY[self.dtype],
            count=taken * width,
            offset=self.offset + start * width * _ITEM_BYTES[self.dtype],
        )
        if raw.size != taken * width:
            raise BadInputError("this file has become shorter since it was opened", file=self.file)
        shape = (taken, *self.shape[1:]) if self.shape else ()
        return _to_float32(raw, self.dtype).reshape(shape)


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder with one safetensors file or with shards and their index.

    Raises one ``BadInputError`` that lists every problem: missing, damaged or foreign shards, tensors that the index
    promises and the shard lacks, tensors stored twice, a wrong total size, number formats that cannot be read.
    """
    _refuse_two_sets(folder)
    problems: list[str] = []
    index = folder / INDEX
    weight_map, total_size = _read_index(index) if index.is_file() else (None, None)
    names = sorted(set(weight_map.values())) if weight_map is not None else _unindexed_files(folder)
    _check_names(folder, names, problems)
    found: dict[str, StoredTensor] = {}
    for name in names:
        file = folder / name
        if not file.is_file():
            continue
        for tensor, stored in _read_header(file, problems).items():
            if tensor in found:
                problems.append(f"tensor {tensor} is stored twice: in {found[tensor].file.name} and in {name}")
            found[tensor] = stored
    if weight_map is not None:
        _check_index(weight_map, found, total_size, problems)
    unreadable = [tensor for tensor in found.values() if tensor.dtype not in _ITEM_BYTES]
    for dtype in sorted({tensor.dtype for tensor in unreadable}):
        affected = [name for name, tensor in found.items() if tensor.dtype == dtype]
        problems.append(f"number format {dtype} cannot be read, only {', '.join(_ITEM_BYTES)}: {shorten(affected)}")
    if problems:
        raise problems_error(
            f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the weight files",
            problems,
            file=folder,
            remedy="Download the files that are named here again, all from the same revision",
        )
    return found


def _refuse_two_sets(folder: Path) -> None:
    """Of a single file and shards, one is left over from another download, and nothing says which."""
    shards = sorted(file.name for file in folder.glob("model-*-of-*.safetensors"))
    if shards and (folder / SINGLE).is_file():
        raise BadInputError(
            "the folder holds the weights twice: in a single file and in shards",
            file=folder,
            found=f"{SINGLE} and {shorten(shards)}",
            remedy="Remove the ones that do not belong to this model",
        )


def _read_index(index: Path) -> tuple[dict[str, str], Any]:
    data = read_json(index)
    weight_map = data.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise BadInputError("the index has no map from tensors to files", file=index, field="weight_map")
    if not weight_map:
        raise BadInputError(
            "the index lists no tensor", file=index, field="weight_map", remedy=f"Download {INDEX} again"
        )
    for name in set(weight_map.values()):
        if Path(name).name != name:
            raise BadInputError("the index names a file outside the folder", file=index, field="weight_map", found=name)
    metadata = data.get("metadata")
    return weight_map, metadata.get("total_size") if isinstance(metadata, dict) else None


def _unindexed_files(folder: Path) -> list[str]:
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    if len(names) == 1:
        return names
    if SINGLE in names:
        return [SINGLE]
    if names:
        raise BadInputError(
            "several safetensors files but no index that says which tensor is where",
            file=folder / INDEX,
            found=shorten(names),
            remedy=f"Download {INDEX} too",
        )
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    raise BadInputError(
        "the folder holds no weights",
        file=folder,
        found=f"only {shorten(pickles)} (Python pickles)" if pickles else "no *.safetensors file",
        expected=f"{SINGLE}, or shards with {INDEX}",
        remedy="Convert the weights to safetensors" if pickles else "Download the weights too",
    )


def _check_names(folder: Path, names: list[str], problems: list[str]) -> None:
    """Shards that are not there or, by their own names, belong to sets of different sizes."""
    missing = [name for name in names if not (folder / name).is_file()]
    stray = sorted({file.name for file in folder.glob("*.safetensors")} - set(names))
    for name in missing:
        problems.append(f"{name} is not there" + (f" (the folder has {shorten(stray)})" if stray else ""))
    totals = {int(match[1]) for name in names if (match := re.search(r"-of-(\d+)\.safetensors$", name))}
    if len(totals) > 1:
        problems.append(f"shards of different downloads are mixed: sets of {shorten(map(str, sorted(totals)))} files")
    elif totals and totals != {len(names)}:
        problems.append(f"the index names {len(names)} files of a set of {totals.pop()}")


def _read_header(file: Path, problems: list[str]) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    content = sniff.sniff(file)
    if content.kind != "safetensors":
        problems.append(f"{file.name} is {content.words}. {content.remedy}")
        return {}
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        text = stream.read(length) if length <= min(_HEADER_LIMIT, size - 8) else b""
    if not text:
        problems.append(f"{file.name} is cut inside its header: {size:,} bytes there, the header alone has {length:,}")
        return {}
    try:
        return _tensors_of(file, json.loads(text), start=8 + length, size=size, problems=problems)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problems.append(f"{file.name} has a damaged header: {error}")
        return {}


def _tensors_of(
    file: Path, header: Mapping[str, Any], *, start: int, size: int, problems: list[str]
) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = map(int, entry["data_offsets"])
        tensors[name] = StoredTensor(
            file=file,
            dtype=str(entry["dtype"]),
            shape=tuple(map(int, entry["shape"])),
            offset=start + first,
            nbytes=last - first,
        )
    expected = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        needed = math.prod(tensor.shape) * _ITEM_BYTES.get(tensor.dtype, 0)
        if tensor.offset - start != expected or (tensor.dtype in _ITEM_BYTES and tensor.nbytes != needed):
            raise ValueError(f"tensor {name} claims {tensor.nbytes} bytes at {tensor.offset - start}")
        expected += tensor.nbytes
    if size != start + expected:
        state = "cut short" if size < start + expected else "longer than its header says"
        problems.append(f"{file.name} is {state}: {size:,} bytes there, {start + expected:,} described")
    return tensors


def _check_index(
    weight_map: Mapping[str, str], found: Mapping[str, StoredTensor], total_size: Any, problems: list[str]
) -> None:
    readable = {tensor.file.name for tensor in found.values()}
    for tensor, name in weight_map.items():
        if name not in readable:
            continue  # the file itself is already among the problems
        if tensor not in found:
            problems.append(f"the index puts tensor {tensor} into {name}, which does not have it")
        elif found[tensor].file.name != name:
            problems.append(f"the index puts tensor {tensor} into {name}, but it is in {found[tensor].file.name}")
    unlisted = [tensor for tensor in found if tensor not in weight_map]
    if unlisted:
        problems.append(f"tensors that the index does not list: {shorten(unlisted)}")
    stored = sum(tensor.nbytes for tensor in found.values())
    if isinstance(total_size, int) and total_size != stored and readable == set(weight_map.values()):
        problems.append(f"the index gives a total size of {total_size:,} bytes, the shards hold {stored:,}")


def _to_float32(raw: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":  # bfloat16 is the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)
