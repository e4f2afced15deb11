"""The runtime form: the graph that ONNX Runtime runs fast, used by the references and by the simulated NPU.

One graph serves prefill and decode. ``S`` is the number of positions of a step, ``T`` the capacity of the KV cache that
is passed in, ``R`` the number of rows for which logits are wanted:

======================  ========  ==========================  ====================================================
input                   dtype     shape                       meaning
======================  ========  ==========================  ====================================================
``input_embed``         float32   [S, hidden]                 embedding rows, dequantized
``position_ids``        int64     [S]
``attention_mask``      float32   [S, T + S]                  additive: 0 visible, a large negative number hidden
``cache_split``         int64     [2]                         (T, S): where cached and new columns part
``logit_rows``          int64     [R]                         rows of the step whose logits are computed
``past_key_in{i}``      float32   [kv_heads, head_dim, T]     keys transposed: no transpose per step
``past_value_in{i}``    float32   [kv_heads, T, head_dim]
======================  ========  ==========================  ====================================================

Outputs are ``lm_logits`` [R, vocabulary] and only the *new* ``new_key{i}`` [kv_heads, head_dim, S] and ``new_value{i}``
[kv_heads, S, head_dim]; the caller writes them into its cache, so the cache is never copied.

Weights are read from the weight file by external-data entries; 4-bit matrices go to ``MatMulNBits``, a w8 matrix as the
sum of its two nibble planes, 16-bit and 32-bit ones to ``Gemm``.
"""

from __future__ import annotations

import numpy as np
import onnx

from pytest_cannlm.build import decoder
from pytest_cannlm.build.decoder import Matrix
from pytest_cannlm.build.graph import EXACT, GraphWriter
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.build.weights import WEIGHT_FILE, Coefficients, StoredMatrix
from pytest_cannlm.models.config import DecoderConfig

OPSETS = {"": 17, "com.microsoft": 1}
IR_VERSION = 9
COS, SIN = "rope_cos", "rope_sin"
"""The rotary tables among the vectors of the weight file; the sine's first half is negated (see _rotate)."""

_CONTRIB = "com.microsoft"
_EXACT_ACTIVATIONS = 1
"""accuracy_level of MatMulNBits at which activations stay float32."""


def runtime_form(config: DecoderConfig, coefficients: Coefficients, *, location: str = WEIGHT_FILE) -> onnx.ModelProto:
    """The runtime form over the arrays that ``coefficients`` names in the file ``location``."""
    g = GraphWriter("decoder")
    form = _Runtime(config, coefficients, location)
    form.declare_inputs(g)
    logits = decoder.emit(g, config, form)
    g.op("Identity", [logits], "lm_logits")
    g.output("lm_logits", "float32", ["R", config.vocab_size])
    for i in range(config.layers):
        g.output(f"new_key{i}", "float32", [config.kv_heads, config.head_dim, "S"])
        g.output(f"new_value{i}", "float32", [config.kv_heads, "S", config.head_dim])
    return g.model(OPSETS, IR_VERSION)


def rotary_vectors(config: DecoderConfig, positions: int) -> dict[str, Float32]:
    """The rotary tables as this form reads them, float32 [positions, head_dim] each.

    rotate_half negates the first half; with the sign in the table the graph needs one Gather only.
    """
    cos, sin = decoder.rope_tables(config, positions)
    half = config.head_dim // 2
    return {COS: cos, SIN: np.concatenate([-sin[:, :half], sin[:, half:]], axis=1)}


class _Runtime:
    def __init__(self, config: DecoderConfig, coefficients: Coefficients, location: str) -> None:
        self._config, self._coefficients, self._location = config, coefficients, location

    def declare_inputs(self, g: GraphWriter) -> None:
        c = self._config
        g.input("input_embed", "float32", ["S", c.hidden_size])
        g.input("position_ids", "int64", ["S"])
        g.input("attention_mask", "float32", ["S", "TS"])
        g.input("cache_split", "int64", [2])
        g.input("logit_rows", "int64", ["R"])
        for i in range(c.layers):
            g.input(f"past_key_in{i}", "float32", [c.kv_heads, c.head_dim, "T"])
            g.input(f"past_value_in{i}", "float32", [c.kv_heads, "T", c.head_dim])
        self._cos = g.op("Gather", [self._vector(g, COS), "position_ids"], f"/rope/cos{EXACT}", axis=0)
        self._sin = g.op("Gather", [self._vector(g, SIN), "position_ids"], f"/rope/sin{EXACT}", axis=0)
        self._mask = g.op("Concat", ["attention_mask"] * (c.heads // c.kv_heads), "/mask", axis=0)

    def rows_in(self, g: GraphWriter) -> str:
        return "input_embed"

    def weight(self, g: GraphWriter, name: str) -> str:
        return self._vector(g, name)

    def rms_norm(self, g: GraphWriter, x: str, eps: float, at: str) -> str:
        return decoder.six_node_norm(g, x, g.constant("rms_norm_eps", eps, "float32"), at)

    def rows_out(self, g: GraphWriter, x: str) -> str:
        return g.op("Gather", [x, "logit_rows"], "/logit_rows", axis=0)

    def linear(self, g: GraphWriter, x: str, matrix: Matrix) -> list[str]:
        stored = self._coefficients.matrices[matrix.name]
        exact = EXACT if matrix.kind == "lm_head" else ""  # the interface returns logits as float32
        whole = self._apply(g, x, stored, exact)
        if len(stored.parts) == 1:
            return [whole]
        sizes = g.constant(f"{matrix.name}.rows", [part.rows for part in stored.parts], "int64")
        outputs = [f"/{part}" for part in matrix.parts]
        return g.ops("Split", [whole, sizes], f"/{matrix.name}/split", outputs, axis=1)

    def attention(self, g: GraphWriter, layer: int, q: str, k: str, v: str) -> str:
        c, at = self._config, f"/layers.{layer}/attention"
        groups = c.heads // c.kv_heads
        both = g.op("Concat", [q, k], f"{at}/qk", axis=1)
        heads = g.reshape(both, [-1, c.heads + c.kv_heads, c.head_dim], f"{at}/qk_heads")
        sizes = g.constant("heads_and_kv_heads", [c.heads, c.kv_heads], "int64")
        q, k = g.ops("Split", [self._rotate(g, heads, at), sizes], f"{at}/split", [f"{at}/q", f"{at}/k"], axis=1)
        scale = g.constant("attention_scale", c.head_dim**-0.5, "float32")
        q = g.op("Mul", [q, scale], f"{at}/q_scaled")
        q = g.reshape(q, [-1, c.kv_heads, groups, c.head_dim], f"{at}/q_grouped")
        q = g.op("Transpose", [q], f"{at}/q_transposed", perm=[1, 2, 0, 3])
        q = g.reshape(q, [c.kv_heads, -1, c.head_dim], f"{at}/q_rows")
        new_key = g.op("Transpose", [k], f"new_key{layer}", perm=[1, 2, 0])
        v = g.reshape(v, [-1, c.kv_heads, c.head_dim], f"{at}/v_heads")
        new_value = g.op("Transpose", [v], f"new_value{layer}", perm=[1, 0, 2])

        cached = g.op("MatMul", [q, f"past_key_in{layer}"], f"{at}/scores_cached")
        fresh = g.op("MatMul", [q, new_key], f"{at}/scores_new")
        scores = g.op("Concat", [cached, fresh], f"{at}/scores", axis=2)
        shares = g.op("Softmax", [g.op("Add", [scores, self._mask], f"{at}/masked{EXACT}")], f"{at}/softmax", axis=-1)
        split = [f"{at}/shares_cached", f"{at}/shares_new"]
        cached, fresh = g.ops("Split", [shares, "cache_split"], f"{at}/shares_split", split, axis=2)
        cached = g.op("MatMul", [cached, f"past_value_in{layer}"], f"{at}/values_cached{EXACT}")
        fresh = g.op("MatMul", [fresh, new_value], f"{at}/values_new{EXACT}")
        x = g.op("Add", [cached, fresh], f"{at}/values")
        x = g.reshape(x, [c.kv_heads, groups, -1, c.head_dim], f"{at}/grouped")
        x = g.op("Transpose", [x], f"{at}/transposed", perm=[2, 0, 1, 3])
        return g.reshape(x, [-1, c.heads * c.head_dim], f"{at}/rows")

    def _rotate(self, g: GraphWriter, x: str, at: str) -> str:
        """x * cos + rotate_half(x) * sin with rotate_half as one Gather: its sign is in the table."""
        c, half = self._config, self._config.head_dim // 2
        swapped = g.constant("swap_halves", np.roll(np.arange(c.head_dim), half), "int64")
        axis = g.constant("heads_axis", [1], "int64")
        cos = g.op("Unsqueeze", [self._cos, axis], f"{at}/cos{EXACT}")
        sin = g.op("Unsqueeze", [self._sin, axis], f"{at}/sin{EXACT}")
        straight = g.op("Mul", [x, cos], f"{at}/rope_cos{EXACT}")
        turned = g.op("Mul", [g.op("Gather", [x, swapped], f"{at}/rope_swap", axis=2), sin], f"{at}/rope_sin{EXACT}")
        return g.op("Add", [straight, turned], f"{at}/rope")

    def _apply(self, g: GraphWriter, x: str, m: StoredMatrix, exact: str) -> str:
        if m.format == "w4":
            scales = self._wide_scales(g, m)
            return self._matmul_4bit(g, [x, self._array(g, m, "codes"), scales], m, f"/{m.name}/matmul{exact}")
        if m.format == "w8":
            return self._matmul_8bit(g, x, m, exact)
        values = self._array(g, m, "values")
        if m.format == "fp16":
            values = g.op("Cast", [values], f"/{m.name}/values{EXACT}", to=onnx.TensorProto.FLOAT)
        return g.op("Gemm", [x, values], f"/{m.name}/matmul{exact}", transB=1)

    def _matmul_8bit(self, g: GraphWriter, x: str, m: StoredMatrix, exact: str) -> str:
        """scale * (code) as scale * 16 * (high - 8) + scale * low: two exact 4-bit products."""
        blocks = m.columns // m.group_size
        shape = g.constant(f"{m.name}.blocks", [m.rows, blocks], "int64")
        column = g.reshape(self._array(g, m, "scales"), [m.rows, 1], f"/{m.name}/scale_column{EXACT}")
        low_scales = g.op("Expand", [column, shape], f"/{m.name}/low_scales{EXACT}")
        sixteen = g.constant("sixteen", 16.0, "float32")
        high_scales = g.op("Mul", [low_scales, sixteen], f"/{m.name}/high_scales{EXACT}")
        zeros_shape = g.constant(f"{m.name}.zeros", [m.rows, -(-blocks // 2)], "int64")
        zero = onnx.helper.make_tensor("zero", onnx.TensorProto.UINT8, [1], [0])
        zeros = g.op("ConstantOfShape", [zeros_shape], f"/{m.name}/zeros{EXACT}", value=zero)
        high = self._matmul_4bit(g, [x, self._array(g, m, "high"), high_scales], m, f"/{m.name}/high_matmul{EXACT}")
        low = self._matmul_4bit(g, [x, self._array(g, m, "low"), low_scales, zeros], m, f"/{m.name}/low_matmul{EXACT}")
        return g.op("Add", [high, low], f"/{m.name}/matmul{exact}")

    def _matmul_4bit(self, g: GraphWriter, inputs: list[str], m: StoredMatrix, name: str) -> str:
        return g.op(
            "MatMulNBits",
            inputs,
            name,
            domain=_CONTRIB,
            K=m.columns,
            N=m.rows,
            bits=4,
            block_size=m.group_size,
            accuracy_level=_EXACT_ACTIVATIONS,
        )

    def _wide_scales(self, g: GraphWriter, m: StoredMatrix) -> str:
        return g.op("Cast", [self._array(g, m, "scales")], f"/{m.name}/scales{EXACT}", to=onnx.TensorProto.FLOAT)

    def _array(self, g: GraphWriter, m: StoredMatrix, key: str) -> str:
        return g.external(f"{m.name}.{key}", m.arrays[key], self._location)

    def _vector(self, g: GraphWriter, name: str) -> str:
        return g.external(name, self._coefficients.vectors[name], self._location)
