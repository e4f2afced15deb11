"""The engine form: the graph that the Kirin converters take, with the LM Engine's input and output names.

Opset 12 and standard operators only. ``S`` is 64 in prefill and 1 in decode (the two gears of the converter's command
line), ``T`` is ``kv_cache_max_len``:

=======================  ========  ===========================  ==================================================
input                    dtype     shape                        meaning
=======================  ========  ===========================  ==================================================
``input_embed``          int8      [1, S, hidden]               rows of the int8 embedding file
``attention_mask``       float32   [1, 1, S, T]                 additive: 0 visible, -3.4028235e38 hidden
``position_ids``         int32     [1, S]
``past_key_in{i}``       float32   [T, kv_heads, 1, head_dim]   float16 after ``--input_type``
``past_value_in{i}``     float32   [T, kv_heads, 1, head_dim]
``new_kv_cache_pos``     int32     [S]                          slots of the cache to write
``embed_scales``         float32   [1, S, 1]                    their scales; used by the first Mul
=======================  ========  ===========================  ==================================================

Outputs are ``lm_logits`` [1, S, vocabulary] and the whole updated ``past_key{i}`` and ``past_value{i}``. Order and
names are those of the vendor's command line for language models.

Index inputs are int32 because the converter refuses int64 there, although ONNX wants int64 indices for ScatterND: ONNX
Runtime takes the graph only through :func:`for_onnxruntime`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from pytest_cannlm.build import decoder
from pytest_cannlm.build.decoder import Matrix
from pytest_cannlm.build.graph import Dims, GraphWriter
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.build.weights import Layout, Stored, WeightWriter
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.tensors import expected_shapes

OPSETS = {"": 12}
IR_VERSION = 7
HIDDEN = -3.4028234663852886e38
"""The engine's value for a masked position, the lowest float32."""

_ABOVE_ZERO = 2.0**-10
"""Added to the divisor of a norm, for rows of zeros; a normal number in fp16."""

TensorRows = Callable[[str], Float32]
"""Gives a checkpoint tensor by its name, float32 [rows, columns] or [n]."""
PlaceTensor = Callable[[str, bool], Stored]
"""Gives the place of a checkpoint tensor in the data file; True: of its transpose."""


def interface(config: DecoderConfig, context: int) -> tuple[list[tuple[str, str, Dims]], list[tuple[str, str, Dims]]]:
    """Inputs and outputs as (name, dtype, shape), in the order of the converter's command line; ``-1`` is S."""
    cache = [context, config.kv_heads, 1, config.head_dim]
    names = [f"past_{kind}" for kind in ("key", "value")]
    caches = [(name, i) for i in range(config.layers) for name in names]
    inputs: list[tuple[str, str, Dims]] = [
        ("input_embed", "int8", [1, -1, config.hidden_size]),
        ("attention_mask", "float32", [1, 1, -1, context]),
        ("position_ids", "int32", [1, -1]),
        *((f"{name}_in{i}", "float32", cache) for name, i in caches),
        ("new_kv_cache_pos", "int32", [-1]),
        ("embed_scales", "float32", [1, -1, 1]),
    ]
    outputs: list[tuple[str, str, Dims]] = [
        ("lm_logits", "float32", [1, -1, config.vocab_size]),
        *((f"{name}{i}", "float32", cache) for name, i in caches),
    ]
    return inputs, outputs


def engine_form(
    config: DecoderConfig, context: int, *, location: str, place: PlaceTensor | None = None
) -> onnx.ModelProto:
    """The engine form, its float32 weights being external data in the file ``location`` beside it.

    Args:
        config: the decoder.
        context: ``kv_cache_max_len``.
        location: name of the data file.
        place: gives each tensor its place in that file, and may write it there; by default places are only laid out.
    """
    g = GraphWriter("decoder")
    inputs, outputs = interface(config, context)
    for name, dtype, dims in inputs:
        g.input(name, dtype, ["S" if d == -1 else d for d in dims])
    logits = decoder.emit(g, config, _Engine(g, config, context, place or _laid_out(config), location))
    g.op("Reshape", [logits, g.constant("logit_shape", [1, -1, config.vocab_size], "int64")], "lm_logits")
    for name, dtype, dims in outputs:
        g.output(name, dtype, ["S" if d == -1 else d for d in dims])
    return g.model(OPSETS, IR_VERSION)


def write_engine_form(config: DecoderConfig, context: int, tensor: TensorRows, path: Path) -> None:
    """Write the engine form to ``path`` and its weights to ``<path>.data`` beside it, one tensor at a time.

    ``tensor`` gives each checkpoint tensor. What it returns is what the converter will see, so a quantized build passes
    the dequantized values.
    """
    data = path.with_name(path.name + ".data")
    with WeightWriter(data) as writer:

        def place(name: str, transposed: bool) -> Stored:
            values = np.ascontiguousarray(tensor(name).T) if transposed else tensor(name)
            stored = writer.reserve(values.shape, "float32")
            writer.write_rows(stored, 0, values)
            return stored

        onnx.save(engine_form(config, context, location=data.name, place=place), path)


def _laid_out(config: DecoderConfig) -> PlaceTensor:
    layout, shapes = Layout(), expected_shapes(config)

    def place(name: str, transposed: bool) -> Stored:
        return layout.reserve(shapes[name][::-1] if transposed else shapes[name], "float32")

    return place


def for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that ONNX Runtime takes: indices of ScatterND are cast to int64 in front of each use."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    nodes = []
    for node in model.graph.node:
        if node.op_type == "ScatterND":
            wide = f"{node.name}/indices64"
            nodes.append(helper.make_node("Cast", [node.input[1]], [wide], wide, to=onnx.TensorProto.INT64))
            node = helper.make_node("ScatterND", [node.input[0], wide, node.input[2]], list(node.output), node.name)
        nodes.append(node)
    del fixed.graph.node[:]
    fixed.graph.node.extend(nodes)
    return fixed


class _Engine:
    def __init__(self, g: GraphWriter, config: DecoderConfig, context: int, place: PlaceTensor, location: str) -> None:
        self._config, self._place, self._location = config, place, location
        cos, sin = (
            g.constant(name, table, "float32")
            for name, table in zip(("rope_cos", "rope_sin"), decoder.rope_tables(config, context), strict=True)
        )
        flat = g.op("Reshape", ["position_ids", g.constant("flat", [-1], "int64")], "/positions")
        heads = g.constant("rope_shape", [-1, 1, config.head_dim], "int64")
        self._cos = g.op("Reshape", [g.op("Gather", [cos, flat], "/rope/cos_rows", axis=0), heads], "/rope/cos")
        self._sin = g.op("Reshape", [g.op("Gather", [sin, flat], "/rope/sin_rows", axis=0), heads], "/rope/sin")
        self._slots = g.op("Reshape", ["new_kv_cache_pos", g.constant("slots", [-1, 1], "int64")], "/slots")

    def rows_in(self, g: GraphWriter) -> str:
        rows = g.op("Cast", ["input_embed"], "/embed/cast", to=onnx.TensorProto.FLOAT)
        return g.op("Mul", [rows, "embed_scales"], "/embed/scaled")

    def rows_out(self, g: GraphWriter, x: str) -> str:
        return x

    def weight(self, g: GraphWriter, name: str) -> str:
        return g.external(name, self._place(name, False), self._location)

    def rms_norm(self, g: GraphWriter, x: str, eps: float, at: str) -> str:
        """RMSNorm of rows that were divided by their largest magnitude, which changes nothing but the range.

        The square of an activation above 255 overflows fp16, and real models have some in the thousands: such a row
        would come out as zeros. Divided so, squares are at most 1 and sum to at most the length of a row, whichever way
        a compiler adds them up. The result is exact for any divisor, eps being divided with it.
        """
        largest = g.op("ReduceMax", [g.op("Abs", [x], f"{at}/abs")], f"{at}/largest", axes=[-1], keepdims=1)
        divisor = g.op("Add", [largest, g.constant("above_zero", _ABOVE_ZERO, "float32")], f"{at}/divisor")
        divided = g.op("Div", [x, divisor], f"{at}/divided")
        root_eps = g.op("Div", [g.constant("root_eps", eps**0.5, "float32"), divisor], f"{at}/root_eps")
        epsilon = g.op("Mul", [root_eps, root_eps], f"{at}/epsilon")
        return decoder.six_node_norm(g, divided, epsilon, at)

    def linear(self, g: GraphWriter, x: str, matrix: Matrix) -> list[str]:
        outputs = []
        for part in matrix.parts:
            name = matrix.name if matrix.kind == "lm_head" else part.removesuffix(".weight")
            weight = g.external(f"{name}.transposed", self._place(part, True), self._location)  # MatMul: [in, out]
            outputs.append(g.op("MatMul", [x, weight], f"/{name}/matmul"))
        return outputs

    def attention(self, g: GraphWriter, layer: int, q: str, k: str, v: str) -> str:
        c, at = self._config, f"/layers.{layer}/attention"
        groups = c.heads // c.kv_heads
        q = self._rotate(g, g.reshape(q, [-1, c.heads, c.head_dim], f"{at}/q_heads"), f"{at}/q")
        k = self._rotate(g, g.reshape(k, [-1, c.kv_heads, c.head_dim], f"{at}/k_heads"), f"{at}/k")
        rows = [-1, c.kv_heads, 1, c.head_dim]
        key = self._scatter(g, f"past_key_in{layer}", g.reshape(k, rows, f"{at}/k_rows"), f"past_key{layer}")
        value = self._scatter(g, f"past_value_in{layer}", g.reshape(v, rows, f"{at}/v_rows"), f"past_value{layer}")
        scale = g.constant("attention_scale", c.head_dim**-0.5, "float32")
        q = g.op("Mul", [q, scale], f"{at}/q_scaled")
        q = g.reshape(q, [-1, c.kv_heads, groups, c.head_dim], f"{at}/q4")
        q = g.op("Transpose", [q], f"{at}/q_transposed", perm=[1, 2, 0, 3])
        keys = g.op("Transpose", [key], f"{at}/keys", perm=[1, 2, 3, 0])
        scores = g.op("Add", [g.op("MatMul", [q, keys], f"{at}/scores"), "attention_mask"], f"{at}/masked")
        shares = g.op("Softmax", [scores], f"{at}/softmax", axis=3)
        values = g.op("Transpose", [value], f"{at}/values", perm=[1, 2, 0, 3])
        x = g.op("MatMul", [shares, values], f"{at}/attended")
        x = g.op("Transpose", [x], f"{at}/transposed", perm=[2, 0, 1, 3])
        return g.reshape(x, [1, -1, c.heads * c.head_dim], f"{at}/rows")

    def _rotate(self, g: GraphWriter, x: str, at: str) -> str:
        """x * cos + rotate_half(x) * sin, rotate_half by Slice and Concat as RoPE fusions expect it."""
        half = self._config.head_dim // 2
        axis = g.constant("last_axis", [2], "int64")
        bounds = [g.constant(f"bound_{n}", [n], "int64") for n in (0, half, 2 * half)]
        first = g.op("Slice", [x, bounds[0], bounds[1], axis], f"{at}/first_half")
        second = g.op("Slice", [x, bounds[1], bounds[2], axis], f"{at}/second_half")
        minus = g.op("Mul", [second, g.constant("minus_one", -1.0, "float32")], f"{at}/minus_second_half")
        turned = g.op("Concat", [minus, first], f"{at}/rotate_half", axis=2)
        straight = g.op("Mul", [x, self._cos], f"{at}/rope_cos")
        return g.op("Add", [straight, g.op("Mul", [turned, self._sin], f"{at}/rope_sin")], f"{at}/rope")

    def _scatter(self, g: GraphWriter, cache: str, rows: str, name: str) -> str:
        return g.op("ScatterND", [cache, self._slots, rows], name)
