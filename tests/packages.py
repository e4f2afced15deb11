"""Small package folders of the simulated converter, for tests that need one but no model in it."""

import json
from pathlib import Path
from typing import Any

from pytest_cannlm.container.kirin import write_simulated_omc
from pytest_cannlm.container.modeldef import TensorIO

VOCAB, HIDDEN, WEIGHT_BYTES, CONTEXT = 32, 16, 4096, 128
INPUTS = (
    TensorIO("input_embed", "int8", (1, -1, HIDDEN)),
    TensorIO("position_ids", "int32", (1, -1)),
    TensorIO("past_key_in0", "float16", (CONTEXT, 1, 1, 8)),
)
OUTPUTS = (TensorIO("lm_logits", "float", (1, -1, VOCAB)),)


def write_omc(path: Path, *, chip: str = "KirinX90", build_version: str = "6.1.1.0", **extra: Any) -> Path:
    """A simulated model that says it needs ``WEIGHT_BYTES`` of weights."""
    arguments: dict[str, Any] = {
        "name": "tiny",
        "inputs": INPUTS,
        "outputs": OUTPUTS,
        "weight_size": WEIGHT_BYTES,
        "runtime_graph": b"graph",
        **extra,
    }
    write_simulated_omc(path, chip=chip, build_version=build_version, **arguments)
    return path


def write_package(folder: Path, *, chip: str = "KirinX90", build_version: str = "6.1.1.0") -> Path:
    """A complete package folder; its files have the right sizes and no sense."""
    folder.mkdir(parents=True)
    write_omc(folder / "tiny.omc", chip=chip, build_version=build_version)
    (folder / "SubGraph_0.weight").write_bytes(bytes(WEIGHT_BYTES))
    (folder / "tiny_64_2048.embedding_weights").write_bytes(bytes(VOCAB * HIDDEN))
    (folder / "tiny_64_2048.embedding_dequant_scale").write_bytes(bytes(VOCAB * 4))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "context.json").write_text("{}", encoding="utf-8")
    write_json(folder / "executor.json", executor())
    return folder


def executor() -> dict[str, Any]:
    """What ``executor.json`` of that package says, as far as the gate reads it."""
    return {
        "version": 1,
        "llm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "kv_cache_max_len": CONTEXT,
            "num_attention_heads": 2,
            "num_attention_kv_heads": 1,
            "num_attention_head_dims": 8,
            "num_hidden_layers": 1,
            "prefill_len": 64,
            "decode_len": 1,
            "vocab_size": VOCAB,
            "max_io_tokens": 2 * CONTEXT,
            "hidden_size": HIDDEN,
            "embedding_weights": "tiny_64_2048.embedding_weights",
            "embedding_dequant_scale": "tiny_64_2048.embedding_dequant_scale",
            "embedding_input_type": "int8",
        },
        "tokenizer": {"type": "bpe", "path": "tokenizer.json"},
        "autoregressive": {"model_path": "tiny.omc", "weight_path": "./"},
    }


def write_manifest(path: Path, **changes: Any) -> Path:
    """A manifest for that package; ``changes`` replace whole members."""
    data = {
        "schema": 1,
        "simulated": True,
        "build": {"chip": "KirinX90", "cann": "6.1.1.0"},
        "files": {"SubGraph_0.weight": {"bytes": WEIGHT_BYTES, "sha256": "0" * 64}},
        **changes,
    }
    return write_json(path, data)


def write_json(path: Path, data: Any) -> Path:
    """``data`` as a JSON file."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
