"""The double of ``dopt`` for language models: its stages, their texts, and files with the vendor's names."""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from pytest_cannlm.testing.models import DOUBLE_MARK
from pytest_cannlm.testing.pthfile import write_pth

_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_BYTES_PER_GROUP = 54
_LINEAR = "<class 'torch.nn.modules.linear.Linear'>"
_EMBEDDING = "<class 'torch.nn.modules.sparse.Embedding'>"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as ``opt_main.py``; ends it with the status of that."""
    parser = argparse.ArgumentParser()
    for name in ("model-path", "optimize-config", "dopt-config", "quant-stage", "output-dir"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("group-size", "w-bits", "act-bits", "block-size"):
        parser.add_argument(f"--{name}", type=int)
    sys.exit(run(parser.parse_args(arguments)))


def run(given: argparse.Namespace) -> int:
    """One stage; returns the exit status."""
    model = json.loads((Path(given.model_path) / "config.json").read_text(encoding="utf-8"))
    out, listed = Path(given.output_dir), Path(given.dopt_config)
    if not listed.is_file():
        listed.write_text(json.dumps({"layer_strategy": _layers(model)}, indent=4), encoding="utf-8")
        print("generate plugin quang config please set quant strategy firstly")
        return 1
    layers = json.loads(listed.read_text(encoding="utf-8"))["layer_strategy"]
    if all(layer["quant_strategy"] == "float" for layer in layers.values()):
        print("Traceback (most recent call last):\nRuntimeError: all layers are float")
        return 1
    if given.quant_stage == "stage1":
        _write(out / "trained_quant_weight.pth", 4096)
        print("weight quant done!!!")
    elif given.quant_stage == "stage2":
        _need(out / "trained_quant_weight.pth")
        _write(out / "trained.pth", 4096)
        print("quant done !!!")
    else:
        _need(out / "trained.pth")
        write_pth(out / "fake_quant_weight.pth", _weights(model, clamped=_splits_signs(Path(given.optimize_config))))
        _write(out / "quant_params_file", _params_bytes(model, given.group_size))
        print("quant params file build done")
    return 0


def _layers(model: dict[str, Any]) -> dict[str, Any]:
    names = [
        f"model.layers.{layer}.{_part(name)}.{name}"
        for layer in range(model["num_hidden_layers"])
        for name in _MATRICES
    ]
    kinds = {"model.embed_tokens": _EMBEDDING, **dict.fromkeys([*names, "lm_head"], _LINEAR)}
    return {name: {"type": kind, "quant_strategy": "float"} for name, kind in kinds.items()}


def _splits_signs(settings: Path) -> bool:
    """``quant_param_2``, which on KirinX90 makes every negative weight 0."""
    return "quant_param_2: True" in settings.read_text(encoding="utf-8")


def _weights(model: dict[str, Any], *, clamped: bool) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    """Every tensor of a plain decoder, with numbers that mean nothing."""
    pattern = [number / 50 for number in range(0 if clamped else -3, 4)]
    weights = {}
    for name, shape in _shapes(model).items():
        count = prod(shape)
        weights[f"{name}.weight"] = (shape, array("f", (pattern * (count // len(pattern) + 1))[:count]))
    return weights


def _shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = model["hidden_size"], model["intermediate_size"], model["num_attention_heads"]
    size = model.get("head_dim") or hidden // heads
    rows, kv_rows = heads * size, model["num_key_value_heads"] * size
    matrices = {
        "q_proj": (rows, hidden), "k_proj": (kv_rows, hidden), "v_proj": (kv_rows, hidden), "o_proj": (hidden, rows),
        "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (model["vocab_size"], hidden)}
    for layer in range(model["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{_part(name)}.{name}": shape for name, shape in matrices.items()}
        shapes |= {f"{at}.{name}": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    return {**shapes, "model.norm": (hidden,), "lm_head": (model["vocab_size"], hidden)}


def _part(name: str) -> str:
    return "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"


def _params_bytes(model: dict[str, Any], group_size: int) -> int:
    weights = sum(prod(shape) for name, shape in _shapes(model).items() if name.endswith("_proj"))
    return int(weights / group_size * _BYTES_PER_GROUP)


def _need(file: Path) -> None:
    if not file.is_file():
        print(f"FileNotFoundError: [Errno 2] No such file or directory: '{file}'")
        sys.exit(1)


def _write(file: Path, size: int) -> None:
    file.write_bytes((DOUBLE_MARK + b"\n") * (size // (len(DOUBLE_MARK) + 1) + 1))
