"""What the simulated NPU reads of a package: the folder alone, never the checkpoint, the cache or the manifest."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from pytest_cannlm.build.graph import ELEMENT_TYPES
from pytest_cannlm.build.runtime_form import COS
from pytest_cannlm.build.schemes import Format
from pytest_cannlm.build.weights import WEIGHT_FILE
from pytest_cannlm.compat.places import in_package
from pytest_cannlm.container.kirin import SimulatedModel, read_simulated
from pytest_cannlm.errors import EngineCrash, EngineError, PackageError
from pytest_cannlm.simulator.misfits import MERGES_ARE_PAIRS, WEIGHTS_TOO_SHORT, death, executor_not_made
from pytest_cannlm.simulator.session import Shape

_ITEM_BYTES = {ELEMENT_TYPES[name]: np.dtype(name).itemsize for name in ELEMENT_TYPES}
_COUNTS = {
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_attention_kv_heads": 1,
    "num_attention_head_dims": 1,
    "hidden_size": 1,
    "intermediate_size": 1,
    "vocab_size": 1,
    "vocab_real_size": 1,
    "kv_cache_max_len": 1,
    "prefill_len": 1,
    "max_io_tokens": 1,
    "eos_token_id": 0,
}
"""Numbers of ``llm_config`` that are counted with, and the least that each can be."""
_MERGES_AS_PAIRS = re.compile(r'"merges"\s*:\s*\[\s*\[')
_FORMAT_OF_ARRAY: dict[str, Format] = {"codes": "w4", "high": "w8", "low": "w8", "values": "fp16"}


@dataclass(frozen=True)
class Load:
    """What one decode step moves and computes, from the arrays that the graph names."""

    bytes_by_format: Mapping[Format, int]
    """Bytes of matrices, codes and scales, by the format of the matrix."""
    projection_weights: int
    """Weights of all matrices but the LM head."""
    lm_head_weights: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all matrices."""
        return sum(self.bytes_by_format.values())


@dataclass(frozen=True)
class EmbeddingFile:
    """int8 rows with one float32 scale each, mapped from the package's two embedding files."""

    rows: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    half: bool
    """Round what is handed out to fp16, as the NPU holds it."""

    def __call__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """float32 rows [n, hidden]: int8 row times its scale."""
        values = self.rows[ids].astype(np.float32) * self.scales[ids][:, None]
        return values.astype(np.float16).astype(np.float32) if self.half else values


@dataclass(frozen=True)
class LoadedPackage:
    """A package as the engine sees it."""

    folder: Path
    executor: Mapping[str, Any]
    context: Mapping[str, Any]
    tokenizer_json: str
    model: SimulatedModel
    graph: onnx.ModelProto
    load: Load

    @property
    def llm(self) -> Mapping[str, Any]:
        """``llm_config`` of executor.json."""
        config: Mapping[str, Any] = self.executor["llm_config"]
        return config

    @property
    def shape(self) -> Shape:
        """Shape of the KV cache."""
        llm = self.llm
        return Shape(llm["num_hidden_layers"], llm["num_attention_kv_heads"], llm["num_attention_head_dims"])

    def embedding(self, *, half: bool) -> EmbeddingFile:
        """The embedding rows; ``half`` rounds them to fp16."""
        rows, hidden = self.llm["vocab_size"], self.llm["hidden_size"]
        weights, scales = self.embedding_files()
        return EmbeddingFile(
            np.memmap(weights, np.int8, "r", shape=(rows, hidden)),
            np.fromfile(scales, "<f4").astype(np.float32),
            half,
        )

    def embedding_files(self) -> tuple[Path, Path]:
        """Paths of rows and scales."""
        return self.folder / self.llm["embedding_weights"], self.folder / self.llm["embedding_dequant_scale"]

    @property
    def file_bytes(self) -> int:
        """Bytes of all files that lie in the package; what a link leads to is not one of them."""
        return sum(found.st_size for path in self.folder.iterdir() if stat.S_ISREG((found := path.lstat()).st_mode))


def read_package(folder: Path) -> LoadedPackage:
    """Read and cross-check a package folder.

    Raises:
        PackageError: a file is missing or is not JSON; a real package.
        ContainerError: the ``.omc`` is damaged.
        EngineError: a setting is missing or cannot be used; the weight file is missing or too short.
        EngineCrash: the real engine's process would end here, by the signal ``found`` with the words ``log``.
    """
    executor, context = _json(folder / "executor.json"), _json(folder / "context.json")
    _check_numbers(executor, folder / "executor.json")
    try:
        llm, paths = executor["llm_config"], executor["autoregressive"]
        model = read_simulated(folder / in_package(executor, paths["model_path"]))
        tokenizer = (folder / in_package(executor, executor["tokenizer"]["path"])).read_text(encoding="utf-8")
        expected = llm["vocab_size"] * llm["hidden_size"], llm["vocab_size"] * 4
        files = folder / llm["embedding_weights"], folder / llm["embedding_dequant_scale"]
    except KeyError as error:
        raise executor_not_made(folder, field=str(error.args[0]), found=None, expected="a value") from error
    except OSError as error:
        raise PackageError("a file of the package is missing", file=error.filename or folder) from error
    for section in ("generate_options", "sampler"):
        if section not in context:  # the real engine takes its defaults without a word
            raise PackageError("a section of context.json is missing", file=folder / "context.json", field=section)
    for file, size in zip(files, expected, strict=True):
        found = file.stat().st_size if file.is_file() else None
        if found is None:
            raise PackageError("a file of the package is missing", file=file)
        if found != size:
            raise _death_by_settings("vocab_size, hidden_size", f"{found} bytes of {file.name}", f"{size} bytes", file)
    if _MERGES_AS_PAIRS.search(tokenizer):
        raise death("the engine cannot read the tokenizer", "SIGABRT", (MERGES_ARE_PAIRS,), file=folder)
    graph = onnx.load_model_from_string(model.runtime_graph)
    package = LoadedPackage(folder, executor, context, tokenizer, model, graph, _load_of(graph))
    _check_cache(package)
    _check_weights(package)
    return package


def _check_numbers(executor: Mapping[str, Any], path: Path) -> None:
    """Every number that the engine counts with must be there and be one; the real engine fails or crashes on it."""
    llm = executor.get("llm_config")
    for key in _COUNTS:
        value = llm.get(key) if isinstance(llm, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int) or value < _COUNTS[key]:
            raise executor_not_made(
                path,
                field=f"llm_config.{key}",
                found=value,
                expected=f"a whole number of at least {_COUNTS[key]}",
            )


def _death_by_settings(field: str, found: str, expected: str, file: Path) -> EngineCrash:
    """Wrong layers, hidden size or vocabulary: the engine believes them, and dies. What it prints then is not known."""
    said = f"simulated engine: {field} of executor.json do not fit: {found}, expected {expected}"
    return death("executor.json does not describe the model", "SIGSEGV", (said,), file=file, field=field)


def _check_cache(package: LoadedPackage) -> None:
    """executor.json must describe the cache that the graph was compiled for."""
    compiled = {
        value.name: tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim)
        for value in package.graph.graph.input
        if value.name.startswith("past_key_in")
    }
    shape = package.shape
    described = {f"past_key_in{i}": (shape.kv_heads, shape.head_dim, -1) for i in range(shape.layers)}
    length = next((tensor.dims[0] for tensor in package.graph.graph.initializer if tensor.name == COS), None)
    if package.llm["kv_cache_max_len"] != length:
        raise executor_not_made(
            package.folder / "executor.json",
            field="kv_cache_max_len",
            found=package.llm["kv_cache_max_len"],
            expected=length,
        )
    if compiled != described:
        heads, size = next(iter(compiled.values()), (0, 0))[:2]
        raise _death_by_settings(
            "num_hidden_layers, num_attention_kv_heads, num_attention_head_dims",
            f"{shape.layers} layers of {shape.kv_heads} heads of {shape.head_dim}",
            f"{len(compiled)} layers of {heads} heads of {size}",
            package.folder / "executor.json",
        )


def _check_weights(package: LoadedPackage) -> None:
    """Weights come from the package's own weight file and are all there."""
    needed = 0
    for tensor in package.graph.graph.initializer:
        places = {entry.key: entry.value for entry in tensor.external_data}
        if not places:
            continue
        if places["location"] != WEIGHT_FILE:
            raise PackageError(
                "the compiled graph reads weights from elsewhere",
                file=package.folder,
                field=tensor.name,
                found=places["location"],
                expected=WEIGHT_FILE,
            )
        needed = max(needed, int(places["offset"]) + int(places["length"]))
    weights = package.folder / WEIGHT_FILE
    size = weights.stat().st_size if weights.is_file() else 0
    if size < needed:
        raise EngineError(
            WEIGHTS_TOO_SHORT,
            file=weights,
            found=f"{size} bytes",
            expected=f"{needed} bytes",
            remedy="the weight file is missing or was cut; build or push the package again",
            code="1",
        )


def _load_of(graph: onnx.ModelProto) -> Load:
    by_format: dict[Format, int] = {}
    weights = {"lm_head": 0, "projections": 0}
    sizes: dict[str, int] = {}
    formats: dict[str, Format] = {}
    for tensor in graph.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        matrix, _, array = tensor.name.rpartition(".")
        count = int(np.prod(tensor.dims))
        sizes[matrix] = sizes.get(matrix, 0) + count * _ITEM_BYTES[tensor.data_type]
        kind = _FORMAT_OF_ARRAY.get(array)
        if kind is None:
            continue
        formats[matrix] = kind
        if array != "low":
            weights["lm_head" if matrix == "lm_head" else "projections"] += count * (1 if array == "values" else 2)
    for matrix, kind in formats.items():
        by_format[kind] = by_format.get(kind, 0) + sizes[matrix]
    return Load(by_format, weights["projections"], weights["lm_head"])


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PackageError("a file of the package is missing", file=path, found=error.strerror) from error
    except ValueError as error:
        raise PackageError("a settings file of the package is not JSON", file=path, found=error) from error
    if not isinstance(data, dict):
        raise PackageError("a settings file of the package is not a JSON object", file=path, found=type(data).__name__)
    return data
