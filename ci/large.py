"""A checkpoint with the shapes of a 1.5B model and random weights: what building and rounding it takes."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from environment import ROOT
from safetensors.numpy import save_file

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 151_936, 1536, 8960, 28, 12, 2, 128
NEEDED_BYTES = 6_000_000_000
"""Room for the checkpoint, 3.1 GB, and for its package."""
TOKENIZER = ROOT / "fixtures" / "tiny-llama"
SAMPLED_S = 0.02


@dataclass(frozen=True)
class Built:
    """One build by the command line, from a checkpoint that was just written."""

    seconds: float
    anonymous_bytes: int | None
    """Most anonymous memory at any time; None where the system does not tell (only Linux does)."""


def rows_of(*, quick: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a Qwen2.5-1.5B, or ``quick`` of its first layer."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(1 if quick else LAYERS):
        at = f"model.layers.{layer}."
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, HIDDEN)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield f"{at}self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield f"{at}mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{at}mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{at}mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
        yield f"{at}input_layernorm.weight", (HIDDEN,)
        yield f"{at}post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)


def write_checkpoint(folder: Path) -> None:
    """Seeded bfloat16 weights in one file a layer, the tokenizer of the tests, and Qwen2.5-1.5B's configuration."""
    random = np.random.default_rng(20)
    shards: dict[str, dict[str, np.ndarray]] = {}
    weight_map = {}
    for name, shape in rows_of():
        file = f"model-{name.split('.')[2] if '.layers.' in name else 'rest'}.safetensors"
        weight_map[name] = file
        values = random.standard_normal(shape, np.float32) * np.float32(0.02)
        shards.setdefault(file, {})[name] = (np.ones(shape) if "norm" in name else values).astype(ml_dtypes.bfloat16)
        if name.endswith("post_attention_layernorm.weight"):  # the last one of a layer
            save_file(shards.pop(file), folder / file)
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)


@cache
def built() -> Built:
    """Build the checkpoint once as w4a16, rounded to nearest."""
    with tempfile.TemporaryDirectory() as name:
        free = shutil.disk_usage(name).free
        if free < NEEDED_BYTES:
            raise RuntimeError(f"needs {NEEDED_BYTES / 1e9:.0f} GB in {name}, {free / 1e9:.1f} GB are free")
        checkpoint = Path(name, "checkpoint")
        checkpoint.mkdir()
        write_checkpoint(checkpoint)
        program = "import sys; from pytest_cannlm.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "build", str(checkpoint), "--cache", str(Path(name, "cache"))]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            peaks: list[int] = []
            watcher = threading.Thread(target=_watch, args=(process, peaks))
            watcher.start()
            _, said = process.communicate()
            seconds = time.perf_counter() - began
            watcher.join()
        if process.returncode:
            raise RuntimeError(f"the build ended with {process.returncode}: {said[-300:]}")
        return Built(seconds, max(peaks, default=None))


def _watch(process: "subprocess.Popen[str]", peaks: list[int]) -> None:
    file = Path(f"/proc/{process.pid}/status")
    with suppress(OSError):  # no such file: not Linux, or the process has ended
        while process.poll() is None:
            fields = dict(line.split(":", 1) for line in file.read_text().splitlines())
            if "RssAnon" in fields:
                peaks.append(1024 * int(fields["RssAnon"].split()[0]))
            time.sleep(SAMPLED_S)


def matrices() -> list[np.ndarray]:
    """The projections of one layer as float32."""
    random = np.random.default_rng(20)
    shapes = [shape for _, shape in rows_of(quick=True) if len(shape) == 2 and shape[0] != VOCABULARY]
    return [random.standard_normal(shape, np.float32) * np.float32(0.02) for shape in shapes]


def round_ours(weights: list[np.ndarray]) -> float:
    """Seconds that this project takes to round ``weights`` to 4 bits in groups of 128, in chunks as a build does."""
    from pytest_cannlm.build.ahead import WORKERS, in_order
    from pytest_cannlm.build.quantize import CHUNK_ELEMENTS
    from pytest_cannlm.build.schemes import quantize_w4

    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        for matrix in weights:
            step = CHUNK_ELEMENTS // matrix.shape[1]
            chunks = in_order(
                pool, lambda rows: quantize_w4(rows, 128), np.array_split(matrix, -(-len(matrix) // step))
            )
            codes, scales = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
            assert len(codes) == len(scales) == len(matrix)
    return time.perf_counter() - began


def round_theirs(weights: list[np.ndarray]) -> float:
    """Seconds that ONNX Runtime takes for the same; it wants the input axis first, so weights are turned before."""
    from onnxruntime.capi._pybind_state import quantize_matmul_4bits

    began = time.perf_counter()
    for matrix in weights:
        rows, columns = matrix.shape
        codes = np.zeros((rows, columns // 128, 64), np.uint8)
        scales = np.zeros(rows * columns // 128, np.float32)
        zeros = np.zeros(rows * -(-columns // 256), np.uint8)
        quantize_matmul_4bits(codes, np.ascontiguousarray(matrix.T), scales, zeros, 128, rows, columns, True)
    return time.perf_counter() - began
