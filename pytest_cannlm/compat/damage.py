"""What happens to a package on its way to a device, who can notice it, and with which code. Valid for Python 3.10."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_KEPT_BYTES = 1 << 20
"""How much of a damaged file is copied at most: what comes behind it is not looked at."""
_HEADER_BYTES = 16


@dataclass(frozen=True)
class Damage:
    """One kind of damage: what it is, to what, how it is done, and who notices it."""

    what: str
    code: str
    """With which the gate refuses it."""
    part: Literal["weights", "model", "manifest"]
    spoil: Callable[[Path, Path], None]
    """(original, where the damaged one shall be, which is not there yet); ``ValueError``: nothing can be damaged so."""
    engine_notices: bool = True


def _cut(original: Path, damaged: Path) -> None:
    damaged.write_bytes(_beginning(original, original.stat().st_size // 2))


def _leave_out(original: Path, damaged: Path) -> None:
    """There is nothing to write."""


def _without_header(original: Path, damaged: Path) -> None:
    damaged.write_bytes(bytes(_HEADER_BYTES) + _beginning(original, _KEPT_BYTES)[_HEADER_BYTES:])
    os.truncate(damaged, original.stat().st_size)


def _empty(original: Path, damaged: Path) -> None:
    damaged.touch()


def _pointer(original: Path, damaged: Path) -> None:
    lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{'0' * 64}", f"size {original.stat().st_size}")
    damaged.write_bytes("".join(f"{line}\n" for line in lines).encode())


def _longer(original: Path, damaged: Path) -> None:
    shutil.copyfile(original, damaged)
    with damaged.open("ab") as file:
        file.write(_beginning(original, 64))


def _other_sizes(original: Path, damaged: Path) -> None:
    data = json.loads(original.read_bytes())
    files = data.get("files") if isinstance(data, dict) else None
    facts = list(files.values()) if isinstance(files, dict) else []
    if not facts or not all(isinstance(each, dict) and isinstance(each.get("bytes"), int) for each in facts):
        raise ValueError("this one names no sizes of files")
    for each in facts:
        each["bytes"] += 1
    damaged.write_text(json.dumps(data, indent=1), encoding="utf-8")


def _beginning(file: Path, length: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(min(length, _KEPT_BYTES))


DAMAGES: Mapping[str, Damage] = {
    "truncate": Damage("the weight file is cut short", "PACKAGE_DAMAGED", "weights", _cut),
    "missing-weights": Damage("the weight file is not there", "PACKAGE_INCOMPLETE", "weights", _leave_out),
    "header": Damage("the first bytes of the model file are zero", "OM_BAD_MAGIC", "model", _without_header),
    "empty": Damage("the model file has no bytes", "OM_EMPTY", "model", _empty),
    "pointer": Damage("the model file is the Git LFS pointer in its place", "OM_BAD_MAGIC", "model", _pointer),
    "trailing": Damage(
        "bytes follow the end of the model, as when it was written over a longer file",
        "OM_LENGTH_MISMATCH",
        "model",
        _longer,
    ),
    "stale-manifest": Damage(
        "the manifest is that of another build, with other sizes",
        "PACKAGE_DAMAGED",
        "manifest",
        _other_sizes,
        engine_notices=False,
    ),
}
"""Kinds by name. A changed byte inside the weights is none of them: every size is right, and only a hash tells."""
