"""Quantizers that watch the model read a text before they round its weights: GPTQ, AWQ, or AWQ and then GPTQ.

One layer after the other is run on the float weights, so what is held in memory is one layer's weights and Hessians and
the residual stream of the text, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build import decoder
from pytest_cannlm.build.ahead import WORKERS, in_order
from pytest_cannlm.build.awq import RescaledRows, rescale_layer
from pytest_cannlm.build.decoder import FINAL_NORM, Layer, Matrix
from pytest_cannlm.build.gptq import Feedback, FeedbackRounding
from pytest_cannlm.build.layerwise import LayerRunner, Weights, layer_weights
from pytest_cannlm.build.quantize import NEAREST, Formats, Rounding, RowSource, require_finite, row_chunks
from pytest_cannlm.build.schemes import Bytes, Float32, group_size_for
from pytest_cannlm.build.unfinished import Arrays, UnfinishedWork
from pytest_cannlm.models.config import DecoderConfig

Hessian = npt.NDArray[np.float64]

_COLUMNS_OF, _ROWS_OF, _CODES, _SCALES = "columns:", "rows:", "codes:", "scales:"
"""What an array of a finished layer is, before the name of a tensor or a matrix."""

_WINDOWS = 8
"""Windows whose products are added at a time: few large products are quicker than many small ones."""
_COLUMNS = 1024
"""Columns of a Hessian that are added to at a time."""


class CalibratedWeights:
    """The weights of a decoder as a calibrating quantizer wants them read and rounded, layer by layer in order.

    Attributes:
        read: gives the weights to round; with activation-aware scaling those of layers that were reached are scaled.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        read: RowSource,
        windows: Sequence[Float32],
        formats: Formats,
        rescale: bool,
        feedback: bool,
        unfinished: UnfinishedWork,
    ) -> None:
        """Prepare.

        Args:
            config: the decoder.
            read: its float weights.
            windows: embedding rows [positions, hidden] of each window of the calibration text.
            formats: the formats that the weights are rounded to.
            rescale: scale channels by their activations (AWQ).
            feedback: make up for rounding errors (GPTQ); else weights are rounded to nearest.
            unfinished: keeps every layer that is done, and has those that an earlier run did.
        """
        self.read = RescaledRows(read)
        self._config, self._formats, self._unfinished = config, formats, unfinished
        self._rescale, self._feedback = rescale, feedback
        self._layers = decoder.layers(config)
        self._stream = list(windows)
        self._runner = LayerRunner(
            config, positions=max(map(len, windows)), final_norm=require_finite(FINAL_NORM, read(FINAL_NORM))
        )
        self._roundings: dict[str, Rounding] = {}

    def rounding(self, matrix: Matrix) -> Rounding:
        """How to round ``matrix``. Matrices must be asked for in the order in which the decoder applies them."""
        if matrix.kind == "lm_head":
            return NEAREST
        if matrix.name not in self._roundings:
            self._enter(next(self._layers))
        return self._roundings[matrix.name]

    def _enter(self, layer: Layer) -> None:
        """Run the text through ``layer`` and do its work, unless an earlier run did."""
        weights = layer_weights(layer, self.read.read)
        name = f"layer-{layer.index}"
        done = self._unfinished.arrays(name)
        with ThreadPoolExecutor(WORKERS) as pool:
            if done is None:
                done = self._work(layer, weights, pool)
                self._unfinished.keep_arrays(name, done)
            else:
                self._take_scales(done)
                self._stream = list(in_order(pool, partial(self._runner.run, layer, weights), self._stream))
        self._roundings = {matrix.name: _rounding_from(done, matrix) for matrix in layer.matrices}

    def _work(self, layer: Layer, weights: Weights, pool: ThreadPoolExecutor) -> dict[str, npt.NDArray[Any]]:
        """Scales and codes of ``layer``, as they are kept."""
        hessians = self._hessians(layer, weights, pool)
        done: dict[str, npt.NDArray[Any]] = {}
        if self._rescale:
            columns, rows = rescale_layer(layer, self._config, weights, hessians, self._formats.rounded)
            done |= {_COLUMNS_OF + tensor: scales for tensor, scales in columns.items()}
            done |= {_ROWS_OF + tensor: scales for tensor, scales in rows.items()}
            self._take_scales(done)
            for matrix in layer.matrices:
                scales = columns[matrix.parts[0]]
                hessians[matrix.name] /= scales
                hessians[matrix.name] /= scales[:, None]
        if self._feedback:
            for matrix in layer.matrices:
                done |= self._round(matrix, Feedback.of(hessians.pop(matrix.name)), pool)
        return done

    def _hessians(self, layer: Layer, weights: Weights, pool: ThreadPoolExecutor) -> dict[str, Hessian]:
        """Per matrix ``X^T X`` of the rows that it is fed; moves the text on behind ``layer``."""
        hessians = {m.name: np.zeros((weights[m.name].shape[1],) * 2) for m in layer.matrices}
        passes = in_order(pool, partial(self._runner.run_with_inputs, layer, weights), self._stream)
        stream: list[Float32] = []
        while some := list(islice(passes, _WINDOWS)):
            stream += [require_finite(layer.down.name, output) for output, _ in some]
            for matrix in layer.matrices:
                _add_products(hessians[matrix.name], np.concatenate([fed[matrix.name] for _, fed in some]))
        self._stream = stream
        return hessians

    def _round(self, matrix: Matrix, feedback: Feedback, pool: ThreadPoolExecutor) -> dict[str, npt.NDArray[Any]]:
        rows = np.concatenate([self.read(part) for part in matrix.parts])
        kind, columns = self._formats.of(matrix), rows.shape[1]
        group = group_size_for(columns, self._formats.group_size)
        rounding = FeedbackRounding(feedback)

        def work(chunk: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            return rounding.w4(rows[chunk], group) if kind == "w4" else rounding.w8(rows[chunk])

        codes, scales = zip(*in_order(pool, work, row_chunks(len(rows), columns)), strict=True)
        return {_CODES + matrix.name: np.concatenate(codes), _SCALES + matrix.name: np.concatenate(scales)}

    def _take_scales(self, done: Arrays) -> None:
        for key, scales in done.items():
            if key.startswith(_COLUMNS_OF):
                self.read.columns[key.removeprefix(_COLUMNS_OF)] = scales
            elif key.startswith(_ROWS_OF):
                self.read.rows[key.removeprefix(_ROWS_OF)] = scales


class _Rounded:
    """Codes and scales that were found before; see :class:`pytest_cannlm.build.quantize.Rounding`."""

    def __init__(self, codes: npt.NDArray[Any], scales: npt.NDArray[Any]) -> None:
        self._codes, self._scales = codes, scales

    def w4(self, rows: Float32, group_size: int, *, first: int) -> tuple[Bytes, npt.NDArray[np.float16]]:
        return self._of(rows, first)

    def w8(self, rows: Float32, *, first: int) -> tuple[npt.NDArray[np.int8], Float32]:
        return self._of(rows, first)

    def _of(self, rows: Float32, first: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        place = slice(first, first + len(rows))
        return self._codes[place], self._scales[place]


def _rounding_from(done: Arrays, matrix: Matrix) -> Rounding:
    codes = done.get(_CODES + matrix.name)
    return NEAREST if codes is None else _Rounded(codes, done[_SCALES + matrix.name])


def _add_products(hessian: Hessian, rows: Float32) -> None:
    """Add ``rows^T rows``, a stripe of columns at a time: a product of the whole would be a second Hessian."""
    for start in range(0, len(hessian), _COLUMNS):
        hessian[start : start + _COLUMNS] += rows[:, start : start + _COLUMNS].T @ rows
