"""The four steps in order, each with a cache entry of its own."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from pytest_cannlm import __version__
from pytest_cannlm.affinity import examine_model
from pytest_cannlm.build.ahead import WORKERS, in_order
from pytest_cannlm.build.cache import BuildCache, files_below, key_of, link_or_copy
from pytest_cannlm.build.convert import LOG, Bench, Exported, converter_for
from pytest_cannlm.build.engine_form import TensorRows, engine_form, for_onnxruntime, write_engine_form
from pytest_cannlm.build.folder import COEFFICIENT_FILE, MANIFEST, PACKAGE_DIR
from pytest_cannlm.build.package import (
    base_name,
    context_settings,
    embedding_stem,
    executor_settings,
    manifest_of,
)
from pytest_cannlm.build.quantize import CHUNK_ELEMENTS
from pytest_cannlm.build.quantizers import quantize_checkpoint
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.build.runtime_form import runtime_form
from pytest_cannlm.build.schemes import Float32, quantize_embedding
from pytest_cannlm.build.source import Source
from pytest_cannlm.build.unfinished import UnfinishedWork
from pytest_cannlm.build.weights import WEIGHT_FILE, Coefficients
from pytest_cannlm.errors import BuildError, UsageError
from pytest_cannlm.lint import lint
from pytest_cannlm.models.checkpoint import Checkpoint, checkpoint_digest, open_checkpoint
from pytest_cannlm.models.hashing import MEMO, still_known
from pytest_cannlm.models.tensors import EMBEDDING
from pytest_cannlm.progress import Progress

STEPS = ("quantize", "export", "convert", "assemble")

_FORMAT = 5
"""Part of every cache key; raised when what a step writes changes."""
_GRAPH = "runtime.onnx"
_ENGINE_GRAPH = "engine.onnx"
_EMBEDDING_ROWS = "embedding.int8"
_EMBEDDING_SCALES = "embedding.scales"


@dataclass(frozen=True)
class StepResult:
    """What became of one step."""

    step: str
    cached: bool
    seconds: float


@dataclass(frozen=True)
class BuiltPackage:
    """A finished build."""

    package: Path
    manifest: Path
    steps: tuple[StepResult, ...]

    @property
    def cached(self) -> bool:
        """Whether nothing had to be built."""
        return all(step.cached for step in self.steps)


def build(recipe: Recipe, *, cache: Path, progress: Progress, out: Path | None = None) -> BuiltPackage:
    """Build a package, or find it in the cache.

    Args:
        recipe: what to build.
        cache: root of the cache folders.
        progress: told about every step.
        out: folder that gets a copy of package and manifest; it must not hold anything yet.

    Raises:
        UsageError, BadInputError, BuildError, EnvironmentFailure: each names file, field and remedy.
    """
    recipe = recipe.validated()
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the output must be a new or an empty folder", file=out, remedy="name another one")
    built = _Build(recipe, cache, progress).run()
    return built if out is None else _copy_to(built, out)


class _Build:
    """One build: the recipe with its cache keys. Every step needs the folder of the one before it."""

    def __init__(self, recipe: Recipe, cache: Path, progress: Progress) -> None:
        bench = Bench(os.environ, progress, logs=cache / "logs", hashes=cache / "hashes")
        self._converter = converter_for(recipe, bench)
        recipe = replace(recipe, cann=self._converter.cann)
        self._recipe, self._progress = recipe, progress
        self._cache = BuildCache(cache / "builds")
        self._memo = cache / MEMO
        self._digest = checkpoint_digest(recipe.checkpoint, memo=self._memo)
        self._keys: dict[str, str] = {}
        facts: dict[str, Any] = {"version": __version__, "format": _FORMAT, "checkpoint": self._digest}
        for step in STEPS:
            facts |= recipe.facts(step)
            if step == "convert" and self._converter.facts:
                facts["tool"] = self._converter.facts
            self._keys[step] = key_of({"step": step, **facts})

    def run(self) -> BuiltPackage:
        label = f"{self._recipe.model} {self._recipe.scheme}"
        began = time.monotonic()
        ready = self._cache.find("assemble", self._keys["assemble"])
        if ready is not None:
            seconds = time.monotonic() - began
            self._progress.say(f"{label}: all four steps cached, nothing to build")
            return self._result(ready, [StepResult(step, True, seconds / len(STEPS)) for step in STEPS])
        self._converter.prepare()
        results: list[StepResult] = []

        def step(name: str, make: Callable[[Path], None]) -> Path:
            found = self._cache.obtain(name, self._keys[name], make, self._progress)
            results.append(StepResult(name, found.cached, found.seconds))
            self._progress.say(f"{label}: {name}: {'cached' if found.cached else f'built in {found.seconds:.1f} s'}")
            return found.folder

        quantized = step("quantize", self._quantize)
        exported = step("export", lambda folder: self._export(quantized, folder))
        converted = step("convert", lambda folder: self._convert(quantized, exported, folder))
        assembled = step("assemble", lambda folder: self._assemble(quantized, converted, folder))
        return self._result(assembled, results)

    def _result(self, folder: Path, steps: list[StepResult]) -> BuiltPackage:
        return BuiltPackage(folder / PACKAGE_DIR, folder / MANIFEST, tuple(steps))

    def _quantize(self, folder: Path) -> None:
        recipe = self._recipe
        with open_checkpoint(recipe.checkpoint) as checkpoint:
            if recipe.context > checkpoint.config.max_position_embeddings:
                raise UsageError(
                    "context is longer than the model was made for",
                    field="context",
                    found=recipe.context,
                    expected=f"at most {checkpoint.config.max_position_embeddings}",
                )
            unfinished = folder.with_suffix(".unfinished")
            coefficients = quantize_checkpoint(
                recipe,
                checkpoint,
                path=folder / WEIGHT_FILE,
                unfinished=UnfinishedWork(unfinished),
                progress=self._progress,
            )
            shutil.rmtree(unfinished, ignore_errors=True)
            coefficients.save(folder / COEFFICIENT_FILE)
            _write_embedding(checkpoint, folder)
            Source(checkpoint.config, checkpoint.tokenizer()).save(folder)

    def _export(self, quantized: Path, folder: Path) -> None:
        """Both forms. The engine form's weights, four bytes each, are written only while a converter reads them."""
        config = Source.load(quantized).config
        runtime = runtime_form(config, Coefficients.load(quantized / COEFFICIENT_FILE))
        engine = engine_form(config, self._recipe.context, location=f"{_ENGINE_GRAPH}.data")
        _require_affinity(engine, self._recipe)
        for name, model, checked in ((_GRAPH, runtime, runtime), (_ENGINE_GRAPH, engine, for_onnxruntime(engine))):
            onnx.checker.check_model(_structure(checked))
            (folder / name).write_bytes(model.SerializeToString(deterministic=True))

    def _convert(self, quantized: Path, exported: Path, folder: Path) -> None:
        recipe, config = self._recipe, Source.load(quantized).config

        def write(path: Path, tensors: TensorRows | None) -> None:
            with open_checkpoint(recipe.checkpoint) as checkpoint:
                write_engine_form(config, recipe.context, tensors or checkpoint.read, path)

        self._converter.convert(
            recipe,
            Exported(
                config=config,
                runtime_graph=exported / _GRAPH,
                weight_size=(quantized / WEIGHT_FILE).stat().st_size,
                write_engine_form=write,
            ),
            folder / f"{base_name(recipe)}.omc",
        )

    def _assemble(self, quantized: Path, converted: Path, folder: Path) -> None:
        recipe, source = self._recipe, Source.load(quantized)
        package = folder / PACKAGE_DIR
        package.mkdir()
        stem = embedding_stem(recipe)
        compiled = (converted / WEIGHT_FILE).is_file()  # a vendor's converter makes weights of its own
        origins = (
            ((converted if compiled else quantized) / WEIGHT_FILE, WEIGHT_FILE),
            (quantized / _EMBEDDING_ROWS, f"{stem}.embedding_weights"),
            (quantized / _EMBEDDING_SCALES, f"{stem}.embedding_dequant_scale"),
            (converted / f"{base_name(recipe)}.omc", f"{base_name(recipe)}.omc"),
        )
        with still_known([origin for origin, _ in origins], memo=self._memo):  # gigabytes that were hashed a moment ago
            for origin, name in origins:
                link_or_copy(origin, package / name)
        (package / "tokenizer.json").write_text(source.spec.engine_json(), encoding="utf-8")
        _write_json(package / "executor.json", executor_settings(recipe, source.config, source.token_count()))
        _write_json(package / "context.json", context_settings(source.end_of_text(), context=recipe.context))
        beside = (converted / LOG) if compiled else (quantized / COEFFICIENT_FILE)
        link_or_copy(beside, folder / beside.name)
        manifest = manifest_of(
            recipe=recipe,
            config=source.config,
            digest=self._digest,
            spec=source.spec,
            coefficients=None if compiled else Coefficients.load(quantized / COEFFICIENT_FILE),
            package=package,
            parents={step: self._keys[step] for step in STEPS[:-1]},
            tool=self._converter.facts,
            memo=self._memo,
        )
        _write_json(folder / MANIFEST, manifest)
        _lint(package)


def _require_affinity(engine: onnx.ModelProto, recipe: Recipe) -> None:
    """A node that the LM Engine's converter refuses is found here, and not minutes into a conversion."""
    gears = {"S": tuple(sorted({1, recipe.prefill}))}
    toolchain = "atc" if recipe.converter == "atc" else "omg"
    for refused in examine_model(engine, chip=recipe.chip, toolchain=toolchain, gears=gears).of("refused"):
        raise BuildError(
            f"the converter would refuse the exported graph: {refused.title}",
            field=", ".join(refused.where),
            found=f"{refused.count} such places",
            remedy=f"{refused.why} {refused.instead}",
        )


def _write_embedding(checkpoint: Checkpoint, folder: Path) -> None:
    """The two embedding files: int8 rows and one float32 scale per row, scale = max(abs(row)) / 127."""
    rows, columns = checkpoint.tensors[EMBEDDING].shape
    step = max(1, CHUNK_ELEMENTS // columns)

    def quantized(start: int) -> tuple[npt.NDArray[np.int8], Float32]:
        return quantize_embedding(checkpoint.read(EMBEDDING, slice(start, min(start + step, rows))))

    with (
        (folder / _EMBEDDING_ROWS).open("wb") as codes_file,
        (folder / _EMBEDDING_SCALES).open("wb") as scales_file,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        for codes, scales in in_order(pool, quantized, range(0, rows, step)):
            codes_file.write(codes.data)
            scales_file.write(np.ascontiguousarray(scales, "<f4").data)


def _lint(package: Path) -> None:
    """A package with an error of its own never leaves the build. Its hashes were taken a moment ago."""
    for finding in lint(package, hashes=False).of("error"):
        raise BuildError(
            f"the package that was built would not work: {finding.title}",
            file=finding.file,
            field=finding.field,
            found=finding.found,
            expected=finding.expected,
            remedy=finding.fix,
            code=finding.code,
        )


def _structure(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its external weights as inputs, so that the checker looks at the graph and not for files."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            bare.graph.initializer.append(tensor)
    return bare


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")


def _copy_to(built: BuiltPackage, out: Path) -> BuiltPackage:
    """Copy a cached package out; links would let an edit of the copy damage the cache.

    The copy is made beside ``out`` and takes its place when it is whole: what somebody put there meanwhile stays.
    """
    source = built.manifest.parent
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.unfinished")
    try:
        for path in files_below(source):
            target = unfinished / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, target)
        if out.exists():
            out.rmdir()
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return BuiltPackage(out / PACKAGE_DIR, out / MANIFEST, built.steps)
