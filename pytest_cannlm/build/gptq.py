"""GPTQ: weights are rounded column by column, and what a column lost is made up for by the columns behind it.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022), in the form
that Chee et al. (QuIP, 2023) showed to be the same. With ``H = X^T X`` over the rows ``X`` that a matrix is multiplied
with, the error of its outputs is ``tr((Q - W) H (Q - W)^T)``. Factor ``H = U D U^T`` with U unit upper triangular and D
diagonal; then column k is best rounded to::

    q_k = round(w_k + sum over i < k of (w_i - q_i) * U[i, k])

which costs ``D[k]`` times the square of that rounding error. No inverse of H is needed, one Cholesky factor is enough.

Scales are those of :mod:`pytest_cannlm.build.schemes`: of a group of 4-bit codes, ``m / -8`` for its value ``m`` of
largest magnitude at the time when its first column is rounded, or a little less where that costs less; of a row of
8-bit codes, ``m / -128``. Columns keep their order.

Results are the same bytes for every number of threads: large products go through BLAS matrix multiplication, which sums
in one order however it is shared out, and only small blocks through LAPACK, whose large factorizations do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build.schemes import Bytes, Float32, extreme, pack_w4, reciprocal

Float64 = npt.NDArray[np.float64]

DAMPING = 0.01
"""Share of its mean diagonal that is added to the diagonal of H, as in the paper: unseen directions count a little."""
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Tried sizes of a group's scale: a finer grid often outweighs a clipped extreme."""

_FACTOR_BLOCK = 64
_COLUMN_BLOCK = 128
"""A multiple of every group size, so that no group lies across two blocks."""


@dataclass(frozen=True)
class Feedback:
    """How the columns [k] of a matrix depend on each other.

    Attributes:
        spread: U, float32 [k, k], unit upper triangular.
        cost: D, float32 [k].
    """

    spread: Float32
    cost: Float32

    @classmethod
    def of(cls, hessian: Float64) -> Feedback:
        """From ``X^T X`` [k, k], which is used up. Columns that were never fed anything are rounded to nearest."""
        h, size = hessian, len(hessian)
        h.flat[:: size + 1] += DAMPING * float(h.trace()) / size or 1.0
        for end in range(size, 0, -_FACTOR_BLOCK):
            start = max(0, end - _FACTOR_BLOCK)
            # numpy factors from the first row on; reversed rows and columns make its lower factor our upper one
            corner = np.linalg.cholesky(h[start:end, start:end][::-1, ::-1])[::-1, ::-1]
            above = h[:start, start:end] @ np.linalg.inv(corner).T
            h[:start, :start] -= above @ above.T
            h[:start, start:end], h[start:end, start:end], h[end:, start:end] = above, corner, 0
        diagonal = h.diagonal().copy()
        h /= diagonal
        return cls(h.astype(np.float32), np.square(diagonal).astype(np.float32))


class FeedbackRounding:
    """Rounds rows of one matrix with its :class:`Feedback`. Rows do not depend on each other."""

    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback

    def w4(self, rows: Float32, group_size: int) -> tuple[Bytes, npt.NDArray[np.float16]]:
        """As :func:`pytest_cannlm.build.schemes.quantize_w4`."""
        n, k = rows.shape
        scales = np.empty((n, k // group_size), np.float16)

        def scales_from(column: int, target: Float32) -> Float32 | None:
            if column % group_size:
                return None
            used = _group_scales(target[:group_size], self._feedback.cost[column : column + group_size])
            scales[:, column // group_size] = used
            return used

        codes = self._codes(rows, zero=8, scales_from=scales_from)
        return pack_w4(codes.reshape(n, k // group_size, group_size)), scales

    def w8(self, rows: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
        """As :func:`pytest_cannlm.build.schemes.quantize_w8`."""
        scales = extreme(rows) / np.float32(-128)
        codes = self._codes(rows, zero=128, scales_from=lambda column, _: None if column else scales)
        return (codes ^ np.uint8(0x80)).view(np.int8), scales

    def _codes(
        self, rows: Float32, *, zero: int, scales_from: Callable[[int, Float32], Float32 | None]
    ) -> npt.NDArray[np.uint8]:
        """Codes + ``zero``, uint8 [n, k].

        ``scales_from(column, target)`` gives the scales [n] from ``column`` on, or None for those of the column before;
        ``target`` [columns, n] is what that column and those behind it are to be.
        """
        spread, weights = self._feedback.spread, np.ascontiguousarray(rows.T)
        errors = np.empty_like(weights)
        codes = np.empty(weights.shape, np.uint8)
        for start in range(0, len(weights), _COLUMN_BLOCK):
            end = min(start + _COLUMN_BLOCK, len(weights))
            target = weights[start:end].copy()
            if start:
                target += spread[:start, start:end].T @ errors[:start]
            for column in range(start, end):
                here = column - start
                scales = scales_from(column, target[here:])
                if scales is not None:
                    used, inverse = scales, reciprocal(scales)
                shifted = np.clip(np.floor(target[here] * inverse + np.float32(zero + 0.5)), 0, 2 * zero - 1)
                codes[column] = shifted
                errors[column] = weights[column] - (shifted - np.float32(zero)) * used
                target[here + 1 :] += spread[column, column + 1 : end, None] * errors[column]
        return np.ascontiguousarray(codes.T)


def _group_scales(group: Float32, cost: Float32) -> Float32:
    """The scales [n] of a group [columns, n], exact in fp16, that cost least when it is rounded to nearest."""
    full = extreme(group.T) / np.float32(-8)
    best = np.full_like(full, np.inf)
    chosen = np.zeros_like(full)
    for shrink in SHRINKS:
        scales = (full * np.float32(shrink)).astype(np.float16).astype(np.float32)
        codes = np.clip(np.floor(group * reciprocal(scales) + np.float32(0.5)), -8, 7)
        loss = (cost[:, None] * np.square(group - codes * scales)).sum(axis=0)
        better = loss < best
        chosen[better], best[better] = scales[better], loss[better]
    return chosen
