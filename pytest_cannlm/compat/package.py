"""What a package folder says about itself: its files, their sizes, its manifest. Valid for Python 3.10.

Reads ``executor.json`` and the first part of ``manifest.json``, counts what it reads, and never leaves the folder.
What is there must be of the right type: a file that says nonsense about one thing is not believed about another.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR, in_package, inside, spellings
from pytest_cannlm.compat.strictjson import parse, parse_start
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import PackageError

EXECUTOR_LIMIT = 16 * 1024
MANIFEST_LIMIT = 24 * 1024

_INT8 = "int8"
_SCALE_BYTES = 4

LLM_COUNTS = (
    *("kv_cache_max_len", "num_attention_heads", "num_attention_kv_heads", "num_attention_head_dims"),
    *("num_hidden_layers", "prefill_len", "decode_len", "vocab_size", "max_io_tokens", "hidden_size"),
)
"""Members of ``llm_config`` without which the engine does not load, or crashes. All are above 0."""
_LLM_IDS = ("bos_token_id", "eos_token_id")
LARGEST_COUNT = 2**31 - 1
OPEN_LENGTH = ("enable_dynamic_kv_cache", "is_kv_cache_merge")
"""Flags of ``llm_config`` with which the graph's KV caches may have other lengths than ``kv_cache_max_len``."""
_LFS_POINTER = b"version https://git-lfs"


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
class CacheShape:
    """The KV cache of one layer as ``llm_config`` describes it: [length, heads, 1, head size]."""

    length: int | None
    """``kv_cache_max_len``; None where flags say that the compiled lengths may be others."""
    heads: int
    head_size: int

    def __str__(self) -> str:
        length = "" if self.length is None else f"kv_cache_max_len {self.length}, "
        return f"{length}num_attention_kv_heads {self.heads}, num_attention_head_dims {self.head_size}"

    def contradicts(self, compiled: Sequence[int]) -> bool:
        """Whether a compiled cache is another one; what either leaves open (None, or below 1) contradicts nothing."""
        described = (self.length, self.heads, 1, self.head_size)
        return len(compiled) != len(described) or any(
            want is not None and have > 0 and have != want for want, have in zip(described, compiled, strict=True)
        )


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
    layers: int
    cache: CacheShape

    def missing(self) -> dict[str, str | None]:
        """Names of required files that are not there, each with a name that is there and differs in case only.

        The two are one name on some hosts and never on a device.
        """
        missing: dict[str, str | None] = {}
        spelling_of = spellings(self.folder)
        for file in (*self.required, self.weight):
            there = spelling_of(file.name)
            if there is not None or (file is not self.weight and not file.path.is_file()):
                missing[file.name] = there
        return missing

    def hollow(self, count: ReadCount) -> tuple[str, ...]:
        """Required files that are there and hold nothing, or a git-lfs pointer, each with what it holds.

        The model is left out: its container says more about it. May raise ``OSError``.
        """
        found = []
        for file in self.required:
            if file.path != self.model:
                with file.path.open("rb", buffering=0) as stream:
                    start = stream.read(len(_LFS_POINTER))
                count.bytes += len(start)
                if not start or start == _LFS_POINTER:
                    found.append(f"{file.name} is {'a git-lfs pointer' if start else 'empty'}")
        return tuple(found)


def read_package(folder: Path, count: ReadCount) -> PackageFolder:
    """Read ``executor.json`` of a package folder.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it cannot be used, lacks what the
    engine needs, or names a file outside the folder, PACKAGE_PATH_ABSOLUTE if it names one by an absolute path that is
    no place in the package. May raise ``OSError``.
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
    for key in LLM_COUNTS:
        _count(executor, llm, key)
    for key in _LLM_IDS:
        _id(executor, llm, key)
    _text(executor, llm, "llm_config.embedding_input_type")
    _text(executor, tokenizer, "tokenizer.type")
    weights = in_package(data, _text(executor, paths, "autoregressive.weight_path"))
    _inside(folder, weights, "autoregressive.weight_path")
    model, vocabulary = (
        _inside(folder, in_package(data, _text(executor, section, field)), field)
        for section, field in ((paths, "autoregressive.model_path"), (tokenizer, "tokenizer.path"))
    )
    embedding, scale = (
        _inside(folder, _text(executor, llm, field), field, below=weights)
        for field in ("llm_config.embedding_weights", "llm_config.embedding_dequant_scale")
    )
    return PackageFolder(
        folder=folder,
        model=model.path,
        weight=_inside(folder, EXTERNAL_WEIGHT_FILE, below=weights),
        required=(_inside(folder, EXECUTOR), model, _inside(folder, CONTEXT), vocabulary, embedding, scale),
        size_rules=_embedding_rules(llm, embedding.path, scale.path),
        layers=llm["num_hidden_layers"],
        cache=described_cache(llm),
    )


def described_cache(llm: Mapping[str, Any]) -> CacheShape:
    """The KV cache that ``llm_config`` describes; its counts must be there."""
    length = None if any(llm.get(flag) is True for flag in OPEN_LENGTH) else llm["kv_cache_max_len"]
    return CacheShape(length, llm["num_attention_kv_heads"], llm["num_attention_head_dims"])


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


def _inside(folder: Path, name: str, field: str | None = None, *, below: str = "") -> PackageFile:
    """The file that ``field`` of ``executor.json`` names, in the folder ``below`` if the engine looks for it there."""
    joined = os.path.join(below, name)  # noqa: PTH118 - a name from a file, not yet a path to trust
    target = inside(folder, joined)
    if target and "\\" not in name and not (below and posixpath.isabs(name)):
        return PackageFile(Path(os.path.normpath(joined)).as_posix(), target)
    if "\\" in name:
        message = "the package names a file with a backslash, which a device takes for a letter of the name"
        expected, remedy = "a file name, or a path with slashes", "Write the name with slashes"
    elif not posixpath.isabs(name):
        message, expected = "the package names a file outside its folder", "files inside the package folder"
        remedy = "Put the file into the package and name it without a path; links may not lead out"
    elif below:
        message, expected = "the package names a file by a path that the engine puts behind weight_path", "a file name"
        remedy = "Leave the path out: weight_path says where the file lies"
    else:
        message = "the package names a file by an absolute path that is no place in it"
        expected = "model_path, weight_path and tokenizer.path absolute and in one folder, or none of them absolute"
        remedy = "Name all three by the folder in which an app keeps the package, or all without a path"
    raise PackageError(
        message,
        file=folder / EXECUTOR if field else folder,
        field=field,
        found=name,
        expected=expected,
        remedy=remedy,
        code="PACKAGE_PATH_ABSOLUTE" if posixpath.isabs(name) else "PACKAGE_DAMAGED",
    )


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
    if not _is_whole(value) or not 0 < value <= LARGEST_COUNT:
        raise _wrong(path, f"llm_config.{key}", value, f"a whole number from 1 to {LARGEST_COUNT}")


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
        found="nothing" if found is None else (json.dumps(found, ensure_ascii=False) if field else str(found))[:80],
        expected=expected,
        remedy="Build the package again",
        code="PACKAGE_DAMAGED",
    )
