"""Activation-aware scaling: channels that carry large activations get larger weights, and so smaller relative errors.

Lin et al., "AWQ: Activation-aware Weight Quantization" (2023). Column j of a matrix is multiplied by ``s_j`` and what
feeds it is divided by ``s_j``, which changes nothing but rounding. The division costs nothing at run time: it goes into
the weights in front:

* q, k, v and gate, up: into the norm before them;
* down: into the rows of up (the gate passes through a nonlinearity, up does not);
* o: into the rows, and biases, of v. Heads that share a v head share its scales.

``s = rms(x)^a``, where ``a`` is the one of :data:`EXPONENTS` whose rounded matrix errs least on the calibration text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build.decoder import Layer, Matrix
from pytest_cannlm.build.quantize import RowSource
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.models.config import DecoderConfig

EXPONENTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_SAMPLE_ROWS = 512
"""Rows of a matrix on which exponents are compared."""
_LEAST = 1e-4
"""Of the largest: channels that are hardly fed do not get smaller scales than this."""

Float64 = npt.NDArray[np.float64]
Hessians = Mapping[str, Float64]
Rounded = Callable[[Matrix, Float32], Float32]
"""Rows of a matrix as they are after rounding to nearest in its format."""


@dataclass
class RescaledRows:
    """The weights that ``read`` gives, with the scales of the layers that were looked at so far."""

    read: RowSource
    columns: dict[str, Float32] = field(default_factory=dict)
    """By tensor, what its columns are multiplied by."""
    rows: dict[str, Float32] = field(default_factory=dict)
    """By tensor or vector, what its rows are divided by."""

    def __call__(self, name: str, rows: slice | None = None) -> Float32:
        """Rows of a tensor, or a whole vector."""
        values = self.read(name, rows)
        if name in self.columns:
            values = values * self.columns[name]
        if name in self.rows:
            divisors = self.rows[name][rows or slice(None)]
            values = values / (divisors[:, None] if values.ndim == 2 else divisors)
        return values


def rescale_layer(
    layer: Layer, config: DecoderConfig, weights: Mapping[str, Float32], hessians: Hessians, rounded: Rounded
) -> tuple[dict[str, Float32], dict[str, Float32]]:
    """The scales of ``layer``: multipliers of columns and divisors of rows, by tensor or vector.

    Args:
        layer: the layer.
        config: its decoder.
        weights: its matrices by name.
        hessians: per matrix ``X^T X`` of the rows that it is multiplied with.
        rounded: rounds rows of a matrix.
    """
    columns: dict[str, Float32] = {}
    rows: dict[str, Float32] = {}
    for matrix in layer.matrices:
        magnitude = np.sqrt(hessians[matrix.name].diagonal())
        if matrix is layer.output:
            magnitude = _over_heads(magnitude, config)
        scales = _best_scales(matrix, weights[matrix.name], hessians[matrix.name], magnitude, rounded)
        columns |= dict.fromkeys(matrix.parts, scales)
        divisors = _of_kv_heads(scales, config) if matrix is layer.output else scales
        rows |= dict.fromkeys(_in_front(layer, matrix), divisors)
    return columns, rows


def _in_front(layer: Layer, matrix: Matrix) -> tuple[str, ...]:
    """The tensors and vectors whose rows are what ``matrix`` is fed, up to factors that differ from row to row."""
    if matrix is layer.qkv:
        return (layer.input_norm,)
    if matrix is layer.gate_up:
        return (layer.post_attention_norm,)
    source = layer.qkv if matrix is layer.output else layer.gate_up
    return (source.parts[-1], *source.biases[-1:])


def _best_scales(
    matrix: Matrix,
    weights: Float32,
    hessian: Float64,
    magnitude: Float64,
    rounded: Rounded,
) -> Float32:
    if not magnitude.any():
        return np.ones(len(magnitude), np.float32)
    magnitude = np.maximum(magnitude, _LEAST * magnitude.max())
    sample = weights[:: -(-len(weights) // _SAMPLE_ROWS)]
    narrow = hessian.astype(np.float32)

    def scales_of(exponent: float) -> Float32:
        scales = magnitude**exponent
        scales /= np.sqrt(scales.max() * scales.min())
        return scales.astype(np.float32)

    def loss(exponent: float) -> float:
        scales = scales_of(exponent)
        error = rounded(matrix, sample * scales) / scales - sample
        return float(((error @ narrow) * error).sum(dtype=np.float64))

    return scales_of(min(EXPONENTS, key=loss))


def _over_heads(magnitude: Float64, config: DecoderConfig) -> Float64:
    """One value for all the channels that the same row of v feeds: the root mean square over them."""
    heads = magnitude.reshape(config.kv_heads, -1, config.head_dim)
    shared = np.sqrt(np.square(heads).mean(axis=1, keepdims=True))
    return np.broadcast_to(shared, heads.shape).reshape(-1)


def _of_kv_heads(scales: Float32, config: DecoderConfig) -> Float32:
    """The scales of o's columns as those of v's rows."""
    return scales.reshape(config.kv_heads, -1, config.head_dim)[:, 0].reshape(-1)
