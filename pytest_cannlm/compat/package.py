"""What a package folder says about itself: its files, their sizes, its manifest. Valid for Python 3.10.

Reads ``executor.json`` and the first part of ``manifest.json``, counts what it reads, and never leaves the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import PackageError

EXECUTOR_LIMIT = 16 * 1024
MANIFEST_LIMIT = 24 * 1024

_INT8 = "int8"
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Manifest:
    """The facts of a manifest that the gate uses; absent ones are None or empty."""

    path: Path
    cann: str | None
    chip: str | None
    sizes: Mapping[str, int]
    bytes_read: int


@dataclass(frozen=True)
class SizeRule:
    """A file whose size follows from something else."""

    path: Path
    expected: int
    reason: str


@dataclass(frozen=True)
class PackageFolder:
    """A package as its ``executor.json`` describes it; every path lies inside the folder, whether or not it exists."""

    folder: Path
    model: Path
    weight: Path
    required: tuple[Path, ...]
    """Files that must be there, the model among them, the external weights not (the model says whether)."""
    size_rules: tuple[SizeRule, ...]
    bytes_read: int

    def missing(self) -> tuple[str, ...]:
        """Names of required files that are not there."""
        return tuple(path.name for path in self.required if not path.is_file())


def read_package(folder: Path) -> PackageFolder:
    """Read ``executor.json`` of a package folder.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it cannot be used or names a file
    outside the folder.
    """
    executor = folder / "executor.json"
    if not executor.is_file():
        raise PackageError(
            "the package has no executor.json",
            file=folder,
            found="missing: executor.json",
            expected="a package folder with executor.json",
            remedy="Build the package again, or copy it again",
            code="PACKAGE_INCOMPLETE",
        )
    data, used = _read_object(_inside(folder, executor.name), EXECUTOR_LIMIT)
    llm = _section(executor, data, "llm_config")
    paths = _section(executor, data, "autoregressive")
    tokenizer = _section(executor, data, "tokenizer")
    weights = _text(executor, paths, "autoregressive.weight_path")
    embedding = _inside(folder, weights, _text(executor, llm, "llm_config.embedding_weights"))
    scale = _inside(folder, weights, _text(executor, llm, "llm_config.embedding_dequant_scale"))
    model = _inside(folder, _text(executor, paths, "autoregressive.model_path"))
    return PackageFolder(
        folder=folder,
        model=model,
        weight=_inside(folder, weights, EXTERNAL_WEIGHT_FILE),
        required=(
            model,
            _inside(folder, "context.json"),
            _inside(folder, _text(executor, tokenizer, "tokenizer.path")),
            embedding,
            scale,
        ),
        size_rules=_embedding_rules(executor, llm, embedding, scale),
        bytes_read=used,
    )


def read_manifest(path: Path) -> Manifest:
    """The facts of ``manifest.json`` that stand in its first 24 KiB, whatever its size.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it is no JSON object.
    """
    if not path.is_file():
        raise PackageError(
            "the package's manifest is missing",
            file=path,
            found=f"missing: {path.name}",
            expected="the manifest that the build wrote",
            remedy="Copy the manifest beside the package, or check the package without it",
            code="PACKAGE_INCOMPLETE",
        )
    data, used = _read_object(path, MANIFEST_LIMIT, partial=True)
    build, files = data.get("build"), data.get("files")
    build = build if isinstance(build, dict) else {}
    sizes = {
        name: entry["bytes"]
        for name, entry in (files.items() if isinstance(files, dict) else ())
        if isinstance(entry, dict) and isinstance(entry.get("bytes"), int)
    }
    cann, chip = build.get("cann"), build.get("chip")
    return Manifest(
        path=path,
        cann=cann if isinstance(cann, str) and cann else None,
        chip=chip if isinstance(chip, str) and chip else None,
        sizes=sizes,
        bytes_read=used,
    )


def inside(folder: Path, name: str) -> Path | None:
    """The real path of ``name`` if it lies in ``folder`` after all links are followed, else None."""
    try:
        root = os.path.realpath(folder)
        target = os.path.realpath(folder / name)
        return Path(target) if os.path.commonpath([root, target]) == root else None
    except ValueError:  # another drive, or a NUL in the name
        return None


def _inside(folder: Path, *names: str) -> Path:
    name = os.path.join(*names)  # noqa: PTH118 - a name from a file, not yet a path to trust
    target = inside(folder, name)
    if target is None:
        raise PackageError(
            "the package names a file outside its folder",
            file=folder,
            found=name,
            expected="files inside the package folder",
            remedy="Put the file into the package and name it without a path; links may not lead out",
            code="PACKAGE_DAMAGED",
        )
    return target


def _embedding_rules(executor: Path, llm: Mapping[str, Any], embedding: Path, scale: Path) -> tuple[SizeRule, ...]:
    """int8 [vocab, hidden] and float32 [vocab]; other embedding types have no known rule."""
    if llm.get("embedding_input_type", _INT8) != _INT8:
        return ()
    vocab, hidden = _count(executor, llm, "vocab_size"), _count(executor, llm, "hidden_size")
    return (
        SizeRule(embedding, vocab * hidden, f"vocab_size {vocab} x hidden_size {hidden} x 1 byte in executor.json"),
        SizeRule(scale, vocab * _SCALE_BYTES, f"vocab_size {vocab} x {_SCALE_BYTES} bytes in executor.json"),
    )


def _read_object(path: Path, limit: int, *, partial: bool = False) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
        if len(raw) <= limit:
            data = json.loads(raw.decode("utf-8-sig"))
        elif partial:
            raw = raw[:limit]
            data = dict(_members(raw.decode("utf-8-sig", errors="ignore")))
        else:
            raise ValueError(f"larger than {limit} bytes")
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(
            f"{path.name} cannot be used: {error}",
            file=path,
            expected="a JSON object",
            remedy="Build the package again, or copy it again",
            code="PACKAGE_DAMAGED",
        ) from error
    if not isinstance(data, dict):
        raise _wrong(path, None, type(data).__name__, "a JSON object")
    return data, len(raw)


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Members of a JSON object whose end is cut off, as far as they are whole."""
    decoder = json.JSONDecoder()
    position = text.find("{") + 1
    while True:
        try:
            key, position = decoder.raw_decode(text, _skip(text, position))
            value, position = decoder.raw_decode(text, _skip(text, position, ":"))
        except (ValueError, RecursionError):
            return
        yield str(key), value
        position = _skip(text, position, ",")


def _skip(text: str, position: int, mark: str = "") -> int:
    while position < len(text) and text[position] in " \t\r\n" + mark:
        position += 1
    return position


def _section(path: Path, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise _wrong(path, key, value, "an object")
    return value


def _text(path: Path, data: Mapping[str, Any], key: str) -> str:
    value = data.get(key.rsplit(".", 1)[-1])
    if not isinstance(value, str) or not value:
        raise _wrong(path, key, value, "a file name")
    return value


def _count(path: Path, data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise _wrong(path, f"llm_config.{key}", value, "a positive number")
    return value


def _wrong(path: Path, field: str | None, found: object, expected: str) -> PackageError:
    return PackageError(
        f"{path.name} does not say what it must" if field else f"{path.name} is no JSON object",
        file=path,
        field=field,
        found="nothing" if found is None else str(found)[:80],
        expected=expected,
        remedy="Build the package again",
        code="PACKAGE_DAMAGED",
    )
