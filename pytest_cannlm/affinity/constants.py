"""Checks of constants: integers that have to fit int32, and where external data lies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import numpy as np
import numpy.typing as npt
import onnx

from pytest_cannlm.affinity.subject import Problem, Subject
from pytest_cannlm.affinity.walk import Constant
from pytest_cannlm.compat.places import inside

_INT32 = np.iinfo(np.int32)
_FIELDS = {"location", "offset", "length", "checksum"}
_BITS = {
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.DOUBLE: 64,
    onnx.TensorProto.INT8: 8,
    onnx.TensorProto.UINT8: 8,
    onnx.TensorProto.BOOL: 8,
    onnx.TensorProto.INT32: 32,
    onnx.TensorProto.INT64: 64,
}
"""Sizes of the types whose length can be held against a shape."""
_CLAMPED = {("Slice", 1), ("Slice", 2)}
"""Operator and input for which a value beyond the axis means its end."""


def integers(subject: Subject) -> Iterator[Problem]:
    """int64 constants, by what narrowing to int32 would do to them."""
    large: list[Constant] = []
    for scope in subject.scopes:
        for constant in scope.constants:
            if constant.tensor.data_type != onnx.TensorProto.INT64:
                continue
            if _is_external(constant.tensor):
                yield Problem("int64-unread", constant.place)
            elif _fits(_values(constant.tensor)):
                yield Problem("int64-narrowed", constant.place)
            else:
                large.append(constant)
    uses = _uses(subject, {constant.name for constant in large})
    for constant in large:
        values = _values(constant.tensor)
        used = uses.get(constant.name)
        rule = "int64-clamped" if used and used <= _CLAMPED else "int64-too-large"
        yield Problem(rule, constant.place, f"{values.min()} to {values.max()}")


def external(subject: Subject) -> Iterator[Problem]:
    """External data, wherever a tensor may stand: described rightly, inside the model's folder, there, and whole."""
    files = _DataFiles(subject.path.parent if subject.path is not None else None)
    for scope in subject.scopes:
        for constant in scope.constants:
            if _is_external(constant.tensor):
                yield from _external(constant, files)


def _external(constant: Constant, files: _DataFiles) -> Iterator[Problem]:
    tensor, place = constant.tensor, constant.place
    fields = {entry.key: entry.value for entry in tensor.external_data}
    for key in sorted(fields.keys() - _FIELDS):
        yield Problem("external-field", place, f"field {key}", "location, offset, length or checksum")
    numbers: dict[str, int | None] = {}
    for key in ("offset", "length"):
        text = fields.get(key)
        numbers[key] = int(text) if text and text.isascii() and text.isdecimal() and len(text) < 20 else None
        if text is not None and numbers[key] is None:
            yield Problem("external-field", place, f"{key} {text}", "a whole number")
    needed, length = _size(tensor), numbers["length"]
    if needed is not None and length is not None and length != needed:
        yield Problem("external-size", place, f"length {length}", f"{needed} by its shape")
    location = fields.get("location", "")
    if not location:
        yield Problem("external-field", place, "no location", "a path relative to the model")
    elif files.outside(location):
        yield Problem("external-outside", place, f"location {location}", "a relative path inside the model's folder")
    elif files.folder is not None:
        size, end = files.size(location), (numbers["offset"] or 0) + (needed or length or 0)
        if size is None:
            yield Problem("external-missing", place, str(files.folder.absolute() / location))
        elif end > size:
            yield Problem("external-size", place, f"{location} of {size} bytes", f"{end} bytes at least")


class _DataFiles:
    """The files that locations lead to; each is looked up once, and none is opened."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._outside: dict[str, bool] = {}
        self._sizes: dict[str, int | None] = {}

    def outside(self, location: str) -> bool:
        """Whether a location leads out of the folder, by its text on any system, or by a link."""
        if location not in self._outside:
            leaves = any(_leaves(path(location)) for path in (PurePosixPath, PureWindowsPath))
            linked = self.folder is not None and inside(self.folder, location) is None
            self._outside[location] = leaves or linked
        return self._outside[location]

    def size(self, location: str) -> int | None:
        """Bytes of the file; None if there is none."""
        if location not in self._sizes:
            self._sizes[location] = self._size(location)
        return self._sizes[location]

    def _size(self, location: str) -> int | None:
        path = inside(self.folder, location) if self.folder is not None else None
        try:
            return path.stat().st_size if path is not None and path.is_file() else None
        except OSError:
            return None


def _leaves(path: PurePath) -> bool:
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return bool(path.anchor)


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _size(tensor: onnx.TensorProto) -> int | None:
    bits = _BITS.get(tensor.data_type)
    return math.prod(tensor.dims) * bits // 8 if bits and all(dim >= 0 for dim in tensor.dims) else None


def _values(tensor: onnx.TensorProto) -> npt.NDArray[np.int64]:
    whole = len(tensor.raw_data) // 8 * 8
    if whole:
        return np.frombuffer(tensor.raw_data[:whole], "<i8")
    return np.array(tensor.int64_data, np.int64)


def _fits(values: npt.NDArray[np.int64]) -> bool:
    return not values.size or bool(values.min() >= _INT32.min and values.max() <= _INT32.max)


def _uses(subject: Subject, names: set[str]) -> dict[str, set[tuple[str, int]]]:
    """Operators and input numbers that use each of the names."""
    found: dict[str, set[tuple[str, int]]] = {}
    for scope in subject.scopes if names else ():
        for node in scope.nodes:
            for number, name in enumerate(node.input):
                if name and name in names:
                    found.setdefault(name, set()).add((node.op_type, number))
    return found
