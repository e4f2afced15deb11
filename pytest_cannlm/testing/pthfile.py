"""Write tensors as ``torch.save`` does, without torch: what the double of dopt leaves for the next stage.

The pickle is written opcode by opcode, because it names functions of torch that need not be installed here.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from array import array
from collections.abc import Mapping
from pathlib import Path


def write_pth(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], array[float]]]) -> None:
    """Write float32 tensors, each its shape and its numbers (an ``array("f")``) row by row."""
    body = b"".join(
        _text(name) + _tensor(str(key), shape, len(values)) + b"s"
        for key, (name, (shape, values)) in enumerate(tensors.items())
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}" + body + b".")
        archive.writestr("archive/version", b"3\n")
        for key, (_, values) in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{key}", values.tobytes())


def _tensor(key: str, shape: tuple[int, ...], count: int) -> bytes:
    """``_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)``; the storage goes by its id."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    storage = _tuple(_text("storage"), _named("torch", "FloatStorage"), _text(key), _text("cpu"), _number(count))
    no_hooks = _named("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = _tuple(
        storage + pickle.BINPERSID,
        _number(0),
        _tuple(*map(_number, shape)),
        _tuple(*map(_number, strides)),
        pickle.NEWFALSE,
        no_hooks,
    )
    return _named("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.REDUCE


def _named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def _text(value: str) -> bytes:
    raw = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw


def _number(value: int) -> bytes:
    return pickle.BININT + struct.pack("<i", value)
