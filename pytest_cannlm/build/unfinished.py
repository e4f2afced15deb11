"""Keeps what is done of a long quantize step, so that a build that was stopped goes on where it was."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.models.hashing import write_atomically

Arrays = Mapping[str, npt.NDArray[Any]]


class UnfinishedWork:
    """Finished pieces of one build in a folder, by name. Whoever holds the lock of the build's cache entry owns it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arrays(self, name: str) -> Arrays | None:
        """The arrays that were kept under ``name``; None if they were not, or cannot be read any more."""
        try:
            with (self._folder / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return {key: kept[key] for key in kept.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def keep_arrays(self, name: str, arrays: Arrays) -> None:
        """Keep ``arrays`` under ``name``."""
        content = io.BytesIO()
        np.savez(content, **dict(arrays))  # type: ignore[arg-type]
        self._write(f"{name}.npz", content.getvalue())

    def numbers(self, name: str) -> dict[str, float] | None:
        """The numbers that were kept under ``name``, or None."""
        try:
            kept = json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
            return {str(key): float(value) for key, value in kept.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return None

    def keep_numbers(self, name: str, numbers: Mapping[str, float]) -> None:
        """Keep ``numbers`` under ``name``."""
        self._write(f"{name}.json", json.dumps(dict(numbers)).encode())

    def _write(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / name, content)
