"""One description of a decoder-only transformer, from which both exported forms are written.

The architecture stands in :func:`emit` and nowhere else. What differs between the *engine form* (what the converter
takes) and the *runtime form* (what ONNX Runtime runs fast) is behind :class:`Form`: how a matrix is applied, how rows
enter and leave, and how attention reaches its KV cache.

Families differ in what a layer holds (biases of projections, norms of the heads of q and k), which :class:`Layer` says.

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
    biases: tuple[str, ...] = ()
    """Vectors that are added behind it, one per part; or none."""


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
    head_norms: tuple[str, str] | None
    """Norm weights of the heads of q and of k."""

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """Its matrices in the order in which the layer applies them."""
        return self.qkv, self.output, self.gate_up, self.down

    @property
    def vectors(self) -> Iterator[str]:
        """Every norm weight and bias in the order in which the layer applies them."""
        yield self.input_norm
        yield from self.qkv.biases
        yield from self.head_norms or ()
        yield from self.output.biases
        yield self.post_attention_norm


def layers(config: DecoderConfig) -> Iterator[Layer]:
    """The decoder layers in order."""
    for index in range(config.layers):
        prefix = f"model.layers.{index}."

        def matrix(name: str, *parts: str, bias: bool = False, prefix: str = prefix) -> Matrix:
            names = [f"{prefix}{part}." for part in parts]
            biases = tuple(f"{part}bias" for part in names if bias)
            return Matrix(f"{prefix}{name}", tuple(f"{part}weight" for part in names), "projection", biases)

        attention = f"{prefix}self_attn."
        yield Layer(
            index=index,
            qkv=matrix(
                "self_attn.qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=config.qkv_bias
            ),
            output=matrix("self_attn.o_proj", "self_attn.o_proj", bias=config.output_bias),
            gate_up=matrix("mlp.gate_up", "mlp.gate_proj", "mlp.up_proj"),
            down=matrix("mlp.down_proj", "mlp.down_proj"),
            input_norm=f"{prefix}input_layernorm.weight",
            post_attention_norm=f"{prefix}post_attention_layernorm.weight",
            head_norms=(f"{attention}q_norm.weight", f"{attention}k_norm.weight") if config.qk_norm else None,
        )


FINAL_NORM = "model.norm.weight"


def lm_head(config: DecoderConfig) -> Matrix:
    """The LM head; the embedding's own rows where the checkpoint ties them."""
    return Matrix("lm_head", (EMBEDDING if config.tie_word_embeddings else LM_HEAD,), "lm_head")


def matrices(config: DecoderConfig) -> list[Matrix]:
    """Every matrix in the order in which the decoder applies them."""
    return [*(matrix for layer in layers(config) for matrix in layer.matrices), lm_head(config)]


def vectors(config: DecoderConfig) -> list[str]:
    """Every norm weight and bias in the order in which the decoder applies them."""
    return [*(name for layer in layers(config) for name in layer.vectors), FINAL_NORM]


def rope_tables(config: DecoderConfig, positions: int) -> tuple[Float32, Float32]:
    """cos and sin of the rotary angles, float32 [positions, head_dim], both halves filled.

    angle(p, j) = p * inverse frequency of pair j, computed in float64. Pairs that are not rotated have cos 1 and sin 0.
    """
    inverse = config.rope.inverse_frequencies()
    angles = np.outer(np.arange(positions, dtype=np.float64), inverse)
    padding = (0, 0), (0, config.head_dim // 2 - len(inverse))
    cos = np.pad(np.cos(angles) * config.rope.attention_factor, padding, constant_values=1)
    sin = np.pad(np.sin(angles) * config.rope.attention_factor, padding)
    return np.tile(cos, 2).astype(np.float32), np.tile(sin, 2).astype(np.float32)


class Form(Protocol):
    """How one exported form does what the forms do differently. Rows are the positions of one step."""

    def rows_in(self, g: GraphWriter) -> str:
        """Embedding rows of the step as float32."""

    def weight(self, g: GraphWriter, name: str) -> str:
        """The norm weight or bias ``name`` as a float32 vector."""

    def rms_norm(self, g: GraphWriter, x: str, eps: float, at: str) -> str:
        """``x / sqrt(mean(x^2) + eps)`` over the last axis."""

    def linear(self, g: GraphWriter, x: str, matrix: Matrix) -> list[str]:
        """``x @ W^T`` for each part of ``matrix``."""

    def attention(self, g: GraphWriter, layer: int, q: str, k: str, v: str) -> str:
        """Rotate q and k, append k and v to the cache of ``layer``, attend; rows of heads * head_dim."""

    def rows_out(self, g: GraphWriter, x: str) -> str:
        """The rows for which logits are wanted."""


def emit(g: GraphWriter, config: DecoderConfig, form: Form) -> str:
    """Write the decoder into ``g`` in the given form; returns the name of the logits."""
    x = form.rows_in(g)

    def norm(x: str, weight: str, at: str) -> str:
        return g.op("Mul", [form.rms_norm(g, x, config.rms_norm_eps, at), form.weight(g, weight)], f"{at}/scaled")

    def linear(x: str, matrix: Matrix) -> list[str]:
        outputs = form.linear(g, x, matrix)
        if not matrix.biases:
            return outputs
        biases = zip(outputs, matrix.biases, strict=True)
        return [g.op("Add", [output, form.weight(g, bias)], f"/{bias}/added") for output, bias in biases]

    def norm_heads(x: str, weight: str, heads: int, at: str) -> str:
        x = g.reshape(x, [-1, heads, config.head_dim], f"{at}/heads")
        return g.reshape(norm(x, weight, at), [-1, heads * config.head_dim], f"{at}/rows")

    for layer in layers(config):
        at = f"/layers.{layer.index}"
        q, k, v = linear(norm(x, layer.input_norm, f"{at}/input_norm"), layer.qkv)
        if layer.head_norms:
            q_norm, k_norm = layer.head_norms
            q = norm_heads(q, q_norm, config.heads, f"{at}/q_norm")
            k = norm_heads(k, k_norm, config.kv_heads, f"{at}/k_norm")
        (attended,) = linear(form.attention(g, layer.index, q, k, v), layer.output)
        x = g.op("Add", [x, attended], f"{at}/attention_residual")
        gate, up = linear(norm(x, layer.post_attention_norm, f"{at}/mlp_norm"), layer.gate_up)
        silu = g.op("Mul", [gate, g.op("Sigmoid", [gate], f"{at}/mlp/sigmoid{EXACT}")], f"{at}/mlp/silu")
        (mlp,) = linear(g.op("Mul", [silu, up], f"{at}/mlp/gated"), layer.down)
        x = g.op("Add", [x, mlp], f"{at}/mlp_residual")
    (logits,) = linear(form.rows_out(g, norm(x, FINAL_NORM, "/final_norm")), lm_head(config))
    return logits


def six_node_norm(g: GraphWriter, x: str, epsilon: str, at: str) -> str:
    """The standard nodes that, with the weight behind them, compilers recognize as one RMSNorm."""
    squares = g.op("Pow", [x, g.constant("two", 2.0, "float32")], f"{at}/pow{EXACT}")
    mean = g.op("ReduceMean", [squares], f"{at}/mean{EXACT}", axes=[-1], keepdims=1)
    root = g.op("Sqrt", [g.op("Add", [mean, epsilon], f"{at}/add{EXACT}")], f"{at}/sqrt{EXACT}")
    return g.op("Div", [x, root], f"{at}/div{EXACT}")
