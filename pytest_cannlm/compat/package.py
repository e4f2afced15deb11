"""What a package folder says about itself: its files, their sizes, its manifest. Valid for Python 3.10.

Reads ``executor.json`` and the first part of ``manifest.json``, counts what it reads, and never leaves the folder.
What is there must be of the right type: a file that says nonsense about one thing is not believed about another.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

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
_LONGEST_TOKEN = len("-Infinity")


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
class PackageFolder:
    """A package as its ``executor.json`` describes it; every path lies inside the folder, whether or not it exists."""

    folder: Path
    model: Path
    weight: Path
    required: tuple[Path, ...]
    """Files that must be there, the model among them, the external weights not (the model says whether)."""
    size_rules: tuple[SizeRule, ...]
    cache_length: int
    """``kv_cache_max_len``."""

    def missing(self) -> tuple[str, ...]:
        """Names of required files that are not there."""
        return tuple(path.name for path in self.required if not path.is_file())


def read_package(folder: Path, count: ReadCount) -> PackageFolder:
    """Read ``executor.json`` of a package folder.

    Raises ``PackageError`` PACKAGE_INCOMPLETE if it is missing, PACKAGE_DAMAGED if it cannot be used, lacks what the
    engine needs, or names a file outside the folder. May raise ``OSError``.
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
    data = _read_object(_inside(folder, executor.name), EXECUTOR_LIMIT, count)
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
        model=model,
        weight=_inside(folder, weights, EXTERNAL_WEIGHT_FILE),
        required=(
            model,
            _inside(folder, "context.json"),
            _inside(folder, _text(executor, tokenizer, "tokenizer.path")),
            embedding,
            scale,
        ),
        size_rules=_embedding_rules(llm, embedding, scale),
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
    data = _read_object(path, MANIFEST_LIMIT, count, partial=True)
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


def _embedding_rules(llm: Mapping[str, Any], embedding: Path, scale: Path) -> tuple[SizeRule, ...]:
    """int8 [vocab, hidden] and float32 [vocab]; other embedding types have no known rule."""
    if llm["embedding_input_type"] != _INT8:
        return ()
    vocab, hidden = llm["vocab_size"], llm["hidden_size"]
    return (
        SizeRule(embedding, vocab * hidden, f"vocab_size {vocab} x hidden_size {hidden} x 1 byte in executor.json"),
        SizeRule(scale, vocab * _SCALE_BYTES, f"vocab_size {vocab} x {_SCALE_BYTES} bytes in executor.json"),
    )


def _read_object(path: Path, limit: int, count: ReadCount, *, partial: bool = False) -> dict[str, Any]:
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    count.bytes += len(raw)
    try:
        if len(raw) <= limit:
            data = json.loads(raw.decode("utf-8-sig"))
        elif partial:
            data = dict(_members(codecs.getincrementaldecoder("utf-8-sig")().decode(raw)))
        else:
            raise ValueError(f"larger than {limit} bytes")
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


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Members of a JSON object whose end is cut off, as far as they are whole; ``ValueError`` if it is none."""
    decoder = json.JSONDecoder()
    position = _after(text, 0, "{")
    while position < len(text):
        try:
            key, position = decoder.raw_decode(text, position)
            value, position = decoder.raw_decode(text, _after(text, position, ":"))
        except json.JSONDecodeError as error:
            # The cut is inside a string, or so near that a number, a word or an escape could go on behind it.
            if error.msg.startswith("Unterminated string") or error.pos >= len(text) - _LONGEST_TOKEN:
                return
            raise
        if not isinstance(key, str):
            raise ValueError("a member without a name")
        position = _after(text, position, ",")
        if position < len(text):  # else the value may be a number that goes on
            yield key, value


def _after(text: str, position: int, mark: str) -> int:
    """The position behind ``mark`` and the blanks around it; the end if the text ends before."""
    start = _blanks(text, position)
    if start < len(text) and text[start] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, start)
    return _blanks(text, start + 1)


def _blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return min(position, len(text))


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
