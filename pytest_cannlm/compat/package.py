"""What a package folder says about itself: its files, their sizes, its manifest. Valid for Python 3.10.

Reads ``executor.json`` and the first part of ``manifest.json``, counts what it reads, and never leaves the folder.
What is there must be of the right type: a file that says nonsense about one thing is not believed about another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from pytest_cannlm.compat.strictjson import parse, parse_start
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import PackageError

EXECUTOR_LIMIT = 16 * 1024
MANIFEST_LIMIT = 24 * 1024

_INT8 = "int8"
_SCALE_BYTES = 4

_LLM_COUNTS = (
    *("kv_cache_max_len", "num_attention_heads", "num_attention_kv_heads", "num_attention_head_dims"),
    *("num_hidden_layers", "prefill_len", "decode_len", "vocab_size", "max_io_tokens", "hidden_size"),
)
"""Members of ``llm_config`` without which the engine does not load, or crashes. All are above 0."""
_LLM_IDS = ("bos_token_id", "eos_token_id")
_LARGEST_COUNT = 2**31 - 1
_MOST_NAMES = 4096
"""Folders with more entries are not listed to compare spellings."""

PACKAGE_DIR, MANIFEST, EXECUTOR = "package", "manifest.json", "executor.json"
"""The folder that an engine loads, the manifest beside it, and the file in the folder that names the others."""


@dataclass
class ReadCount:
    """Bytes read so far, counted as they are read: a file that is then refused counts too."""

    bytes: int = 0


@dataclass(frozen=True)
class Manifest:
    """The facts of a manifest that the gate uses; absent ones are None or empty."""

    path: Path
    cann: str | None
    chip: str | None
    simulated: bool | None
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class SizeRule:
    """A file whose size follows from something else."""

    path: Path
    expected: int
    reason: str


@dataclass(frozen=True)
class PackageFile:
    """A file as ``executor.json`` names it, seen from the package folder, and where it lies after all links."""

    name: str
    path: Path


@dataclass(frozen=True)
class PackageFolder:
    """A package as its ``executor.json`` describes it; every path lies inside the folder, whether or not it exists."""

    folder: Path
    model: Path
    weight: PackageFile
    """External weights, which only some models have."""
    required: tuple[PackageFile, ...]
    """Files that must be there, the model among them, the external weights not."""
    size_rules: tuple[SizeRule, ...]
    cache_length: int
    """``kv_cache_max_len``."""

    def missing(self) -> tuple[str, ...]:
        """Names of required files that are not there; a name in other case is another name on a device."""
        missing = []
        names_in = lru_cache(maxsize=None)(partial(_names_in, self.folder))
        for file in (*self.required, self.weight):
            there = _other_case(file.name, names_in)
            if there is not None:
                missing.append(f"{file.name} (there is {there}, which is another name on a device)")
            elif file is not self.weight and not file.path.is_file():
                missing.append(file.name)
        return tuple(missing)


def folder_and_manifest(path: Path) -> tuple[Path, Path | None]:
    """The folder that the engine loads, at ``path`` or in it, and the manifest beside it if there is one.

    Looks at names only: what it finds may be broken, or no package at all.
    """
    inner = path / PACKAGE_DIR
    package = inner if inner.is_dir() and not (path / EXECUTOR).exists() else path
    manifest = package.absolute().parent / MANIFEST
    beside = package.absolute().name == PACKAGE_DIR and package.is_dir() and manifest.is_file()
    return package, manifest if beside else None


def read_package(folder: Path, count: ReadCount) -> PackageFolder:
    """Read ``executor.json`` of a package folder.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it cannot be used, lacks what the
    engine needs, or names a file outside the folder. May raise ``OSError``.
    """
    executor = folder / EXECUTOR
    if not executor.is_file():
        raise PackageError(
            "the package has no executor.json",
            file=folder,
            found="missing: executor.json",
            expected="a package folder with executor.json",
            remedy="Build the package again, or copy it again",
            code="PACKAGE_INCOMPLETE",
        )
    data = _read_object(_inside(folder, executor.name).path, EXECUTOR_LIMIT, count)
    llm = _section(executor, data, "llm_config")
    paths = _section(executor, data, "autoregressive")
    tokenizer = _section(executor, data, "tokenizer")
    for key in _LLM_COUNTS:
        _count(executor, llm, key)
    for key in _LLM_IDS:
        _id(executor, llm, key)
    _text(executor, llm, "llm_config.embedding_input_type")
    _text(executor, tokenizer, "tokenizer.type")
    weights = _text(executor, paths, "autoregressive.weight_path")
    embedding = _inside(folder, weights, _text(executor, llm, "llm_config.embedding_weights"))
    scale = _inside(folder, weights, _text(executor, llm, "llm_config.embedding_dequant_scale"))
    model = _inside(folder, _text(executor, paths, "autoregressive.model_path"))
    return PackageFolder(
        folder=folder,
        model=model.path,
        weight=_inside(folder, weights, EXTERNAL_WEIGHT_FILE),
        required=(
            _inside(folder, EXECUTOR),
            model,
            _inside(folder, "context.json"),
            _inside(folder, _text(executor, tokenizer, "tokenizer.path")),
            embedding,
            scale,
        ),
        size_rules=_embedding_rules(llm, embedding.path, scale.path),
        cache_length=llm["kv_cache_max_len"],
    )


def read_manifest(path: Path, count: ReadCount) -> Manifest:
    """The facts of ``manifest.json`` that stand in its first 24 KiB, whatever its size.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it is no JSON object, or one whose
    facts are of the wrong type. May raise ``OSError``.
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
    data = _read_object(path, MANIFEST_LIMIT, count, start_is_enough=True)
    build = _section(path, data, "build") if "build" in data else {}
    files = _section(path, data, "files") if "files" in data else {}
    simulated = data.get("simulated")
    if not isinstance(simulated, (bool, type(None))):
        raise _wrong(path, "simulated", simulated, "true or false")
    return Manifest(
        path=path,
        cann=_text(path, build, "build.cann") if "cann" in build else None,
        chip=_text(path, build, "build.chip") if "chip" in build else None,
        simulated=simulated,
        sizes={name: _file_size(path, files, name) for name in files},
    )


def inside(folder: Path, name: str) -> Path | None:
    """The real path of ``name`` if it lies in ``folder`` after all links are followed, else None."""
    try:
        root = os.path.realpath(folder)
        target = os.path.realpath(folder / name)
        return Path(target) if os.path.commonpath([root, target]) == root else None
    except ValueError:  # another drive, or a NUL in the name
        return None


def _other_case(name: str, names_in: Callable[[str], frozenset[str]]) -> str | None:
    """How the package spells ``name`` where only upper and lower case differ, which some hosts take for the same."""
    place = PurePosixPath()
    for part in PurePosixPath(name).parts:
        names = names_in(str(place))
        if part not in names:
            other = next((each for each in sorted(names) if each.casefold() == part.casefold()), None)
            return None if other is None else str(place / other)
        place /= part
    return None


def _names_in(folder: Path, place: str) -> frozenset[str]:
    """What lies at ``place`` in the folder; nothing where that is outside, cannot be listed, or is too much to list."""
    below = inside(folder, place)
    if below is None:
        return frozenset()
    try:
        with os.scandir(below) as entries:
            names = frozenset(entry.name for entry in islice(entries, _MOST_NAMES + 1))
    except OSError:
        return frozenset()
    return names if len(names) <= _MOST_NAMES else frozenset()


def _inside(folder: Path, *names: str) -> PackageFile:
    name = os.path.join(*names)  # noqa: PTH118 - a name from a file, not yet a path to trust
    if "\\" in name:
        raise PackageError(
            "the package names a file with a backslash, which a device takes for a letter of the name",
            file=folder,
            found=name,
            expected="a file name, or a path with slashes",
            code="PACKAGE_DAMAGED",
        )
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
    return PackageFile(Path(os.path.normpath(name)).as_posix(), target)


def _embedding_rules(llm: Mapping[str, Any], embedding: Path, scale: Path) -> tuple[SizeRule, ...]:
    """int8 [vocab, hidden] and float32 [vocab]; other embedding types have no known rule."""
    if llm["embedding_input_type"] != _INT8:
        return ()
    vocab, hidden = llm["vocab_size"], llm["hidden_size"]
    return (
        SizeRule(embedding, vocab * hidden, f"vocab_size {vocab} x hidden_size {hidden} x 1 byte in executor.json"),
        SizeRule(scale, vocab * _SCALE_BYTES, f"vocab_size {vocab} x {_SCALE_BYTES} bytes in executor.json"),
    )


def _read_object(path: Path, limit: int, count: ReadCount, *, start_is_enough: bool = False) -> dict[str, Any]:
    with path.open("rb", buffering=0) as file:  # a buffer would read more than is counted
        raw = file.read(limit + 1)
    count.bytes += len(raw)
    try:
        if len(raw) > limit and not start_is_enough:
            raise ValueError(
                f"its {path.stat().st_size} bytes are larger than {limit} bytes, more than any engine needs"
            )
        data = parse_start(raw) if len(raw) > limit else parse(raw)
    except (ValueError, RecursionError) as error:
        raise PackageError(
            f"{path.name} cannot be used: {error}",
            file=path,
            expected="a JSON object",
            remedy="Build the package again, or copy it again",
            code="PACKAGE_DAMAGED",
        ) from error
    if not isinstance(data, dict):
        raise _wrong(path, None, type(data).__name__, "a JSON object")
    return data


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


def _count(path: Path, llm: Mapping[str, Any], key: str) -> None:
    value = llm.get(key)
    if not _is_whole(value) or not 0 < value <= _LARGEST_COUNT:
        raise _wrong(path, f"llm_config.{key}", value, f"a whole number from 1 to {_LARGEST_COUNT}")


def _id(path: Path, llm: Mapping[str, Any], key: str) -> None:
    value = llm.get(key)
    if not _is_whole(value):
        raise _wrong(path, f"llm_config.{key}", value, "the id of a token")


def _file_size(path: Path, files: Mapping[str, Any], name: str) -> int:
    entry = files[name]
    size = entry.get("bytes") if isinstance(entry, dict) else None
    if not _is_whole(size) or size < 0:
        raise _wrong(path, f"files.{name}.bytes", size, "a whole number of at least 0")
    return size


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


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
