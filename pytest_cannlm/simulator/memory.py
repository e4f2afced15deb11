"""How much memory a package takes on the simulated device: what its files hold, not what this host happens to use.

::

    load = matrices and norms + embedding files + static KV cache + tokenizer and graph
    peak = load + workspace of a prefill step

    kv        = 2 * layers * kv_heads * head_dim * 2 bytes * kv_cache_max_len
    workspace = fp16 activations of one step of s positions:
                s * (4 hidden + 2 (heads + 2 kv_heads) head_dim + 3 intermediate) + 2 * heads * s * kv_cache_max_len,
                and the logits of one position in fp32
"""

from __future__ import annotations

from pathlib import Path

from pytest_cannlm.build.weights import WEIGHT_FILE
from pytest_cannlm.compat.places import in_package
from pytest_cannlm.simulator.package import LoadedPackage
from pytest_cannlm.simulator.profile import Profile

_FP16, _FP32 = 2, 4
_MIB = 1 << 20


def parts_of(package: LoadedPackage) -> dict[str, int]:
    """Bytes by part; all but ``workspace`` are there right after load."""
    llm = package.llm
    shape, context, step = package.shape, llm["kv_cache_max_len"], llm["prefill_len"]
    heads, hidden, inner = llm["num_attention_heads"], llm["hidden_size"], llm["intermediate_size"]
    activations = step * (4 * hidden + 2 * (heads + 2 * shape.kv_heads) * shape.head_dim + 3 * inner)
    attention = 2 * heads * step * context
    files = {
        "weights": package.folder / WEIGHT_FILE,
        "graph": package.folder / in_package(package.executor, package.executor["autoregressive"]["model_path"]),
        "tokenizer": package.folder / in_package(package.executor, package.executor["tokenizer"]["path"]),
    }
    return {
        **{part: _size(path) for part, path in files.items()},
        "embedding": sum(_size(path) for path in package.embedding_files()),
        "kv_cache": kv_bytes_per_position(package) * context,
        "workspace": _FP16 * (activations + attention) + _FP32 * llm["vocab_size"],
    }


def kv_bytes_per_position(package: LoadedPackage) -> int:
    """Bytes that one more position of ``kv_cache_max_len`` takes: 2 * layers * kv_heads * head_dim * 2."""
    shape = package.shape
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * _FP16


def base_bytes(profile: Profile) -> int:
    """The engine's process before anything is loaded."""
    return int(profile["base_mib"] * _MIB)


def _size(path: Path) -> int:
    return path.stat().st_size
