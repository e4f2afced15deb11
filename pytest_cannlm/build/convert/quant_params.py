"""What a dopt run left, held against what is known of runs that went wrong, before a converter takes it.

A wrong ``quant_param_2`` sets every negative weight to 0, and everything after it "works". Names and spellings are
those of the CANN Kit guide; figures are of public projects that measured intact and damaged runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.build.convert.dopt_weights import check_signs, signs_in, weights_of
from pytest_cannlm.build.convert.model import external_files, read_graph
from pytest_cannlm.build.engine_form import TensorRows, interface
from pytest_cannlm.compat.chips import same_chip
from pytest_cannlm.errors import BadInputError, BuildError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.tensors import expected_shapes
from pytest_cannlm.progress import Progress

PARAMS, WEIGHTS, STRATEGIES, SETTINGS = (
    "quant_params_file",
    "fake_quant_weight.pth",
    "dopt_config.json",
    "config.yaml",
)
TRAIN_OUTPUT = "train_output"
"""The folder inside the vendor's output folder that holds everything but the strategies."""
STRATEGY_KEYS = ("layer_strategy", "layer_stategy")
"""Both spellings are in the vendor's pages; a file keeps the one that the tool wrote."""
FLOAT = "float"

QUANT_PARAM_2: Mapping[str, bool] = {"KirinX90": False, "Kirin9020": True}
"""``quant_param_2`` by chip. The wrong one makes every negative weight 0."""

_BYTES_PER_GROUP = 54
"""556 MB at group 128 and 1.1 GB at group 64 for 1.31e9 weights; 690 MB was a run with the wrong quant_param_2."""
_USUAL = 0.15


@dataclass(frozen=True)
class QuantParams:
    """A dopt run whose settings fit the chip.

    Attributes:
        folder: as the user named it.
        file: ``quant_params_file``.
        weights: ``fake_quant_weight.pth``, the float weights that dopt adjusted; None if it is not there.
        group_size: of the 4-bit groups, None where nothing tells.
        model: the ONNX model that the vendor's script exported, if one lies in the folder; its nodes are called as the
            parameters are.
        facts: for the cache key and the manifest.
        doubts: what could not be checked, or is unusual.
    """

    folder: Path
    file: Path
    weights: Path | None
    group_size: int | None
    model: Path | None
    facts: Mapping[str, Any]
    doubts: tuple[str, ...]

    def check_weights(self, progress: Progress) -> None:
        """Say what is in doubt, and look for the sign collapse in ``fake_quant_weight.pth``.

        Raises:
            BuildError: the weights have lost their negative half.
        """
        for doubt in self.doubts:
            progress.say(f"{self.folder}: {doubt}")
        if self.weights is None:
            progress.say(f"{self.folder}: no {WEIGHTS}, so the signs of the weights were not looked at")
        else:
            with progress.task(f"signs of {self.weights.name}"):
                signs = signs_in(self.weights)
            check_signs(signs, file=self.weights)

    def tensors(self, config: DecoderConfig) -> TensorRows | None:
        """What goes into the engine form; None where ``model`` is converted instead. Raises as ``weights_of`` does."""
        return None if self.model or self.weights is None else weights_of(self.weights, config)


def read_quant_params(
    folder: Path, *, chip: str, config: DecoderConfig, context: int | None = None, memo: Path | None = None
) -> QuantParams:
    """The dopt run in ``folder``: its output folder, or ``train_output`` in it.

    Args:
        folder: holds ``quant_params_file``, and where they were kept ``dopt_config.json`` and ``config.yaml``.
        chip: normalized name.
        config: the model that was quantized.
        context: length of the KV cache that an exported model must have; None: any.
        memo: folder that remembers hashes of unchanged files.

    Raises:
        BadInputError: a file is missing, empty or unreadable.
        BuildError: ``quant_param_2`` is that of another chip, or no layer was quantized.
    """
    file = _find(folder, PARAMS)
    if file is None or not file.stat().st_size:
        raise BadInputError(
            "no quantization parameters of dopt",
            file=folder,
            found=f"an empty {PARAMS}" if file else f"no {PARAMS}",
            expected="the output folder of a dopt run that reached stage 3",
            remedy="Run all three stages: cannlm dopt",
        )
    doubts: list[str] = []
    settings, strategies = _find(folder, SETTINGS), _find(folder, STRATEGIES)
    if settings is None:
        doubts.append(f"no {SETTINGS}, so quant_param_2 was not checked")
    else:
        doubts += _check_splits(settings, chip)
    group_sizes: set[int] = set()
    if strategies is None:
        doubts.append(f"no {STRATEGIES}, so group sizes are not known")
    else:
        group_sizes = _group_sizes(strategies)
    group_size = group_sizes.pop() if len(group_sizes) == 1 else None
    model, weights = _exported_model(folder), _find(folder, WEIGHTS)
    if model is None and weights is None:
        raise BadInputError(
            "the parameters are there without the weights that dopt adjusted for them",
            file=folder,
            found=f"no {WEIGHTS} and no ONNX model",
            expected="one of them",
            remedy="Keep what stage 3 leaves together, or export the model with the vendor's script into the folder",
        )
    parts = [model, *(model.parent / name for name in external_files(model))] if model else [weights]
    if model:
        _check_interface(model, config, context)
    if group_size:
        doubts += _unusual_size(file.stat().st_size, config, group_size)
    return QuantParams(
        folder=folder,
        file=file,
        weights=weights,
        group_size=group_size,
        model=model,
        facts={
            "group_size": group_size,
            "bytes": file.stat().st_size,
            "files": {part.name: file_sha256(part, memo=memo) for part in (file, *parts) if part},
        },
        doubts=tuple(doubts),
    )


def read_strategies(file: Path) -> tuple[dict[str, Any], str]:
    """``dopt_config.json`` and the key under which it has its layers.

    Raises:
        BadInputError: it is not JSON, or has no layers.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        key = next(key for key in STRATEGY_KEYS if isinstance(document.get(key), dict))
    except (ValueError, AttributeError, StopIteration, RecursionError) as error:
        raise BadInputError(
            f"{file.name} does not list the layers",
            file=file,
            expected=f"a JSON object with {' or '.join(STRATEGY_KEYS)}",
            remedy="Delete it and run stage 1 again",
        ) from error
    return document, key


def setting_of(file: Path, name: str) -> str | None:
    """The value of ``name`` in a YAML file, wherever it is nested; None if it is not set."""
    found = re.search(
        rf"^\s*{re.escape(name)}\s*:[ \t]*([^\s#]+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return found[1].strip("'\"") if found else None


def _find(folder: Path, name: str) -> Path | None:
    places = (folder, folder / TRAIN_OUTPUT, *([folder.parent] if folder.name == TRAIN_OUTPUT else []))
    return next((place / name for place in places if (place / name).is_file()), None)


def _check_splits(settings: Path, chip: str) -> Iterator[str]:
    found = setting_of(settings, "quant_param_2")
    expected = next((value for name, value in QUANT_PARAM_2.items() if same_chip(name, chip)), None)
    if found is None or expected is None:
        yield f"quant_param_2 was not checked: {'it is not set' if found is None else f'no value is known for {chip}'}"
    elif found.lower() != str(expected).lower():
        raise BuildError(
            f"dopt was run for another chip: with this quant_param_2 every negative weight becomes 0 on {chip}",
            file=settings,
            field="quant_param_2",
            found=found,
            expected=expected,
            remedy=f"Set quant_param_2 to {expected} and run all three stages again",
            code="QUANT_PARAM_2",
        )


def _group_sizes(strategies: Path) -> set[int]:
    document, key = read_strategies(strategies)
    layers = [layer for layer in document[key].values() if isinstance(layer, dict)]
    quantized = [layer for layer in layers if layer.get("quant_strategy", FLOAT) != FLOAT]
    if not quantized:
        raise BuildError(
            "dopt quantized nothing: every layer is float",
            file=strategies,
            field=key,
            found=f"{len(layers)} layers, all {FLOAT}",
            remedy="Set the strategies and run all three stages again: cannlm dopt does so",
        )
    weights = (layer.get("weight") for layer in quantized)
    sizes = (weight.get("group_size") for weight in weights if isinstance(weight, dict))
    return {size for size in sizes if isinstance(size, int)}


def _unusual_size(size: int, config: DecoderConfig, group_size: int) -> Iterator[str]:
    """Compares with the one model that is known; so it is told and decides nothing."""
    shapes = expected_shapes(config)
    weights = sum(shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2 and ".layers." in name)
    usual = weights / group_size * _BYTES_PER_GROUP
    if abs(size - usual) > _USUAL * usual:
        yield f"{PARAMS} has {size:,} bytes; about {usual:,.0f} are usual for group size {group_size}"


def _exported_model(folder: Path) -> Path | None:
    models = sorted(folder.glob("*.onnx"))
    if len(models) > 1:
        raise BadInputError(
            "several ONNX models lie beside the quantization parameters",
            file=folder,
            found=", ".join(model.name for model in models),
            expected="the one that was exported with these parameters, or none",
            remedy="Move the others away",
        )
    return models[0] if models else None


def _check_interface(model: Path, config: DecoderConfig, context: int | None) -> None:
    """The command line names inputs and outputs of the LM Engine, so the exported model must have these."""
    graph = read_graph(model)
    for which, values, wanted in zip(
        ("inputs", "outputs"), (graph.input, graph.output), interface(config, context or 0), strict=True
    ):
        found, expected = {value.name for value in values}, {name for name, _, _ in wanted}
        if found != expected:
            odd = sorted(found ^ expected)
            raise BadInputError(
                "the exported model is not this one's",
                file=model,
                field=which,
                found=f"{len(found)}, among them or missing: {', '.join(odd[:3])}",
                expected=f"{len(expected)}, as the LM Engine names them",
                remedy="Export the model that was quantized, or move the file away",
            )
    cache = next(value for value in graph.input if value.name.startswith("past_key_in"))
    length = cache.type.tensor_type.shape.dim[0].dim_value if cache.type.tensor_type.shape.dim else 0
    if context is not None and length != context:
        raise BadInputError(
            "the exported model has a KV cache of another length",
            file=model,
            field="kv_cache_max_len",
            found=length,
            expected=context,
            remedy=f"Build with --context {length}, or export it again",
        )
