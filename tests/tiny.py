"""The tiny Llama checkpoint that the suite builds from, and variants of it."""

import json
import runpy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def tiny_llama() -> Path:
    """Hugging Face folder: 2 layers, hidden 128, 4 heads over 2 key-value heads, 512 tokens, tied; see make_tiny.py."""
    return Path(__file__).resolve().parent.parent / "fixtures" / "tiny-llama"


def make_tiny(folder: Path, name: str) -> Path:
    """Write the checkpoint ``name`` of fixtures/make_tiny.py into ``folder``; skips without ml_dtypes."""
    pytest.importorskip("ml_dtypes", reason="making bfloat16 files needs ml_dtypes")
    runpy.run_path(str(tiny_llama().parent / "make_tiny.py"))["make"](folder, name)
    return folder


def tiny_copy(folder: Path, *, without: tuple[str, ...] = (), **config: Any) -> Path:
    """A copy of the checkpoint in ``folder``; keyword arguments change ``config.json``, ``without`` takes keys out."""
    shutil.copytree(tiny_llama(), folder)
    file = folder / "config.json"
    data = json.loads(file.read_text()) | config
    file.write_text(json.dumps({key: value for key, value in data.items() if key not in without}))
    return folder


def tensors_of(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every tensor of a safetensors file: format, shape, bytes."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    return {
        name: (
            entry["dtype"],
            tuple(entry["shape"]),
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def write_safetensors(file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """A safetensors file with these formats, shapes and bytes, right or wrong."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def tiny_sharded(folder: Path, shards: int = 3) -> Path:
    """The checkpoint in several shards with an index."""
    tiny_copy(folder)
    tensors = tensors_of(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number::shards]
        write_safetensors(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(data) for _, _, data in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def tiny_gguf(
    file: Path,
    *,
    checkpoint: Path | None = None,
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint, tiny-llama by default, as a GGUF file; ``kind`` is the storage type of the matrices.

    Rows of q and k are in GGUF's order, which for llama is not the checkpoint's. ``metadata`` changes keys (None takes
    one out) and ``tensors`` adds arrays by GGUF name.
    """
    import gguf

    from pytest_cannlm.models.checkpoint import open_checkpoint

    folder = checkpoint or tiny_llama()
    with open_checkpoint(folder) as source:
        config = source.config
        arrays = {name: source.read(name) for name in source.tensors}
    values: dict[str, Any] = {
        f"{config.family}.block_count": config.layers,
        f"{config.family}.context_length": config.max_position_embeddings,
        f"{config.family}.embedding_length": config.hidden_size,
        f"{config.family}.feed_forward_length": config.intermediate_size,
        f"{config.family}.attention.head_count": config.heads,
        f"{config.family}.attention.head_count_kv": config.kv_heads,
        f"{config.family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{config.family}.rope.freq_base": config.rope.theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": json.loads((folder / "tokenizer_config.json").read_text())["chat_template"],
        **_vocabulary(folder, rows=config.vocab_size),
    }
    if config.head_dim * config.heads != config.hidden_size:
        values[f"{config.family}.attention.key_length"] = config.head_dim
    values |= metadata or {}
    writer = gguf.GGUFWriter(file, values.pop("general.architecture", config.family))
    for key, value in values.items():
        _add(writer, key, value)
    quantized = gguf.GGMLQuantizationType[kind]
    for name, array in arrays.items():
        if config.family == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            shape = array.shape
            array = array.reshape(-1, 2, config.head_dim // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if array.ndim == 2 and kind != "F32":
            writer.add_tensor(_gguf_name(name), gguf.quantize(array, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(_gguf_name(name), array)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _vocabulary(folder: Path, *, rows: int) -> dict[str, Any]:
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pieces = sorted(data["model"]["vocab"], key=data["model"]["vocab"].__getitem__)
    special = {entry["content"] for entry in data["added_tokens"]}
    padding = [f"[PAD{number}]" for number in range(len(pieces), rows)]
    return {
        "tokenizer.ggml.tokens": [*pieces, *padding],
        "tokenizer.ggml.token_type": [3 if piece in special else 1 for piece in pieces] + [5] * len(padding),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in data["model"]["merges"]],
    }


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _gguf_name(name: str) -> str:
    words = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "mlp.": "ffn_",
        "_proj": "",
    }
    for theirs, ours in words.items():
        name = name.replace(theirs, ours)
    return name


def bfloat16(array: np.ndarray) -> bytes:
    """The array's bytes in bfloat16, cut."""
    return (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
