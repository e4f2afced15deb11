"""Read the tensors of a ``.pth`` file without torch: mapped, one at a time, and with nothing in it that could run.

``torch.save`` writes a zip archive: ``data.pkl`` describes the tensors, ``data/KEY`` holds the bytes of each storage,
not compressed. The description is a pickle; of all that a pickle can name, only what makes tensors is let in.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import BadInputError

_DTYPES = {"FloatStorage": "<f4", "HalfStorage": "<f2", "DoubleStorage": "<f8", "BFloat16Storage": "<u2"}
_LARGEST_DESCRIPTION = 1 << 26
_LOCAL_HEADER = 30
_CHUNK = 1 << 22


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: in which storage of which type, from which element, and its shape and strides."""

    storage: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements of the storage from the first to the last of the tensor."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def fits(self, elements: int) -> bool:
        """Whether it is a part of a storage of so many elements, in whatever order."""
        numbers = (self.offset, *self.shape, *self.strides)
        sane = min(numbers) >= 0 and len(self.shape) == len(self.strides) and self.count <= elements
        return sane and self.offset + self.extent <= elements


class TorchFile:
    """The floating-point tensors of a ``.pth`` file by name."""

    def __init__(self, path: Path) -> None:
        """Read the description.

        Raises:
            BadInputError: it is no archive of torch, or describes something else than tensors.
        """
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                described = next(entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
                if described.file_size > _LARGEST_DESCRIPTION:
                    raise ValueError(f"a description of {described.file_size} bytes")
                folder = described.filename.removesuffix("data.pkl") + "data/"
                entries = [entry for entry in archive.infolist() if entry.filename.startswith(folder)]
                self._storages = {entry.filename.removeprefix(folder): entry for entry in entries}
                with archive.open(described) as stream:
                    found = _Unpickler(stream).load()
            tensors = {name: tensor for name, tensor in found.items() if isinstance(tensor, StoredTensor)}
        except Exception as error:  # pickle and zipfile raise whatever the bytes lead them to
            raise self._broken(error) from error
        self.tensors: Mapping[str, StoredTensor] = {
            name: tensor for name, tensor in tensors.items() if tensor.storage in _DTYPES
        }

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32.

        Raises:
            KeyError: there is none of that name.
            BadInputError: its bytes are not there.
        """
        tensor = self.tensors[name]
        return np.ascontiguousarray(_float32(self._mapped(name), tensor.storage)).reshape(tensor.shape)

    def negative(self, name: str) -> int:
        """How many numbers of a tensor are below 0; raises as :meth:`read` does."""
        values = np.atleast_1d(self._mapped(name))
        rows = max(1, _CHUNK * len(values) // max(values.size, 1))
        pieces = (values[start : start + rows] for start in range(0, len(values), rows))
        return sum(int(np.count_nonzero(_float32(piece, self.tensors[name].storage) < 0)) for piece in pieces)

    def _mapped(self, name: str) -> npt.NDArray[Any]:
        """A tensor as it is stored, in the file."""
        tensor = self.tensors[name]
        dtype = np.dtype(_DTYPES[tensor.storage])
        if not tensor.count:
            return np.empty(tensor.shape, dtype)
        entry = self._storages.get(tensor.key)
        if (
            entry is None
            or entry.compress_type != zipfile.ZIP_STORED
            or not tensor.fits(entry.file_size // dtype.itemsize)
        ):
            raise self._broken(f"{name}: the {tensor.count} numbers of storage {tensor.key}")
        with self._path.open("rb") as file:
            file.seek(entry.header_offset)
            header = file.read(_LOCAL_HEADER)
        start = entry.header_offset + _LOCAL_HEADER + sum(struct.unpack_from("<HH", header, 26))
        try:
            mapped = np.memmap(self._path, dtype, "r", start + tensor.offset * dtype.itemsize, (tensor.extent,))
        except (OSError, ValueError) as error:
            raise self._broken(error) from error
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        return np.lib.stride_tricks.as_strided(mapped, tensor.shape, strides, writeable=False)

    def _broken(self, found: object) -> BadInputError:
        return BadInputError(
            "not a file of tensors that torch saved",
            file=self._path,
            found=found,
            expected="an archive of torch.save with nothing but tensors in it",
            remedy="Run the stage that writes it again",
        )


class _Unpickler(pickle.Unpickler):
    """Lets in dictionaries and descriptions of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if module == "torch" and name.endswith("Storage"):
            return name
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> StoredTensor:
    """``storage`` is ("storage", type, key, device, count)."""
    return StoredTensor(
        str(storage[1]), str(storage[2]), int(offset), tuple(int(n) for n in shape), tuple(int(n) for n in strides)
    )


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _float32(values: npt.NDArray[Any], storage: str) -> npt.NDArray[np.float32]:
    if storage == "BFloat16Storage":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
