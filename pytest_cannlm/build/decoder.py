"""One description of a decoder-only transformer, from which both exported forms are written.

The architecture stands in :func:`emit` and nowhere else. What differs between the *engine form* (what the converter
takes) and the *runtime form* (what ONNX Runtime runs fast) is behind :class:`Form`: how a matrix is applied, how rows
enter and leave, and how attention reaches its KV cache.

RMSNorm: ``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019). Rotary position embedding in the half-split
form: ``x * cos + rotate_half(x) * sin`` (Su et al., 2021). Attention: ``softmax(q k^T / sqrt(d) + mask) v``, groups of
query heads sharing a KV head. MLP: ``down(silu(gate(x)) * up(x))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from pytest_cannlm.build.graph import EXACT, GraphWriter
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.tensors import EMBEDDING, LM_HEAD


@dataclass(frozen=True)
class Matrix:
    """One matrix multiplication of the decoder. Its rows are those of ``parts``, checkpoint tensors, stacked."""

    name: str
    parts: tuple[str, ...]
    kind: Literal["projection", "lm_head"]


@dataclass(frozen=True)
class Layer:
    """Names of everything in decoder layer ``index``."""

    index: int
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    input_norm: str
    post_attention_norm: str


def layers(config: DecoderConfig) -> Iterator[Layer]:
    """The decoder layers in order."""
    for index in range(config.layers):
        prefix = f"model.layers.{index}."

        def matrix(name: str, *parts: str, prefix: str = prefix) -> Matrix:
            return Matrix(f"{prefix}{name}", tuple(f"{prefix}{part}.weight" for part in parts), "projection")

        yield Layer(
            index=index,
            qkv=matrix("self_attn.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output=matrix("self_attn.o_proj", "self_attn.o_proj"),
            gate_up=matrix("mlp.gate_up", "mlp.gate_proj", "mlp.up_proj"),
            down=matrix("mlp.down_proj", "mlp.down_proj"),
            input_norm=f"{prefix}input_layernorm.weight",
            post_attention_norm=f"{prefix}post_attention_layernorm.weight",
        )


FINAL_NORM = "model.norm.weight"


def lm_head(config: DecoderConfig) -> Matrix:
    """The LM head; the embedding's own rows where the checkpoint ties them."""
    return Matrix("lm_head", (EMBEDDING if config.tie_word_embeddings else LM_HEAD,), "lm_head")


def matrices(config: DecoderConfig) -> list[Matrix]:
    """Every matrix in the order in which the decoder applies them."""
    found = [m for layer in layers(config) for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    return [*found, lm_head(config)]


def vectors(config: DecoderConfig) -> list[str]:
    """Every norm weight in the order in which the decoder applies them."""
    found = [name for layer in layers(config) for name in (layer.input_norm, layer.post_attention_norm)]
    return [*found, FINAL_NORM]


def rope_tables(config: DecoderConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin of the rotary angles, float32 [positions, head_dim], both halves filled.

    angle(p, j) = p * theta^(-2 j / head_dim), computed in float64.
    """
    half = config.head_dim // 2
    inverse = config.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
    angles = np.outer(np.arange(positions, dtype=np.float64), inverse)
    both = np.concatenate([angles, angles], axis=1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


class Form(Protocol):
    """How one exported form does what the forms do differently. Rows are the positions of one step."""

    def rows_in(self, g: GraphWriter) -> str:
        """Embedding rows of the step as float32."""

    def weight(self, g: GraphWriter, name: str) -> str:
        """The norm weight ``name`` as a float32 vector."""

    def linear(self, g: GraphWriter, x: str, matrix: Matrix) -> list[str]:
        """``x @ W^T`` for each part of ``matrix``."""

    def attention(self, g: GraphWriter, layer: int, q: str, k: str, v: str) -> str:
        """Rotate q and k, append k and v to the cache of ``layer``, attend; rows of heads * head_dim."""

    def rows_out(self, g: GraphWriter, x: str) -> str:
        """The rows for which logits are wanted."""


def emit(g: GraphWriter, config: DecoderConfig, form: Form) -> str:
    """Write the decoder into ``g`` in the given form; returns the name of the logits."""
    x = form.rows_in(g)
    for layer in layers(config):
        at = f"/layers.{layer.index}"
        h = _rms_norm(g, x, form.weight(g, layer.input_norm), config.rms_norm_eps, f"{at}/input_norm")
        q, k, v = form.linear(g, h, layer.qkv)
        (attended,) = form.linear(g, form.attention(g, layer.index, q, k, v), layer.output)
        x = g.op("Add", [x, attended], f"{at}/attention_residual")
        h = _rms_norm(g, x, form.weight(g, layer.post_attention_norm), config.rms_norm_eps, f"{at}/mlp_norm")
        gate, up = form.linear(g, h, layer.gate_up)
        silu = g.op("Mul", [gate, g.op("Sigmoid", [gate], f"{at}/mlp/sigmoid{EXACT}")], f"{at}/mlp/silu")
        (mlp,) = form.linear(g, g.op("Mul", [silu, up], f"{at}/mlp/gated"), layer.down)
        x = g.op("Add", [x, mlp], f"{at}/mlp_residual")
    x = _rms_norm(g, x, form.weight(g, FINAL_NORM), config.rms_norm_eps, "/final_norm")
    (logits,) = form.linear(g, form.rows_out(g, x), lm_head(config))
    return logits


def _rms_norm(g: GraphWriter, x: str, weight: str, eps: float, at: str) -> str:
    """The six standard nodes that compilers recognize as one RMSNorm, which keeps its squares in float32."""
    two = g.constant("two", 2.0, "float32")
    epsilon = g.constant("rms_norm_eps", eps, "float32")
    squares = g.op("Pow", [x, two], f"{at}/pow{EXACT}")
    mean = g.op("ReduceMean", [squares], f"{at}/mean{EXACT}", axes=[-1], keepdims=1)
    root = g.op("Sqrt", [g.op("Add", [mean, epsilon], f"{at}/add{EXACT}")], f"{at}/sqrt{EXACT}")
    normed = g.op("Div", [x, root], f"{at}/div{EXACT}")
    return g.op("Mul", [normed, weight], f"{at}/scaled")
