"""Which matrices deserve 8 bits where the others get 4: measured, one matrix after the other.

The model reads some positions of the calibration text; then again with one single matrix rounded to 4 bits, for every
matrix. What that costs is the mean Kullback-Leibler divergence, in nats, between the next-token distributions. 8 bits
go to the matrices that cost most per byte that they save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build import decoder
from pytest_cannlm.build.ahead import WORKERS, in_order
from pytest_cannlm.build.decoder import FINAL_NORM
from pytest_cannlm.build.layerwise import LayerRunner, layer_weights
from pytest_cannlm.build.quantize import Formats, RowSource, require_finite
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.tensors import expected_shapes
from pytest_cannlm.progress import Progress, Task

_WINDOWS, _POSITIONS = 4, 64
"""Few, because every matrix needs the rest of the model to be run anew; from several places of the text."""
_EVERY = 2
"""Distributions are compared at every second position."""
_HEAD_ROWS = 8192


def measure_sensitivity(
    config: DecoderConfig,
    *,
    read: RowSource,
    windows: Sequence[Float32],
    formats: Formats,
    label: str,
    progress: Progress,
) -> dict[str, float]:
    """What rounding each projection alone costs, in nats per position.

    Args:
        config: the decoder.
        read: its float weights.
        windows: embedding rows [positions, hidden] of the calibration text; a few positions of some are used.
        formats: how the projections are rounded.
        label: what progress is reported as.
        progress: told about every layer.
    """
    layers = list(decoder.layers(config))
    texts = [window[:_POSITIONS] for window in windows[:: -(-len(windows) // _WINDOWS)]]
    runner = LayerRunner(config, positions=_POSITIONS, final_norm=require_finite(FINAL_NORM, read(FINAL_NORM)))
    names = [""]  # the first variant is the model as it is
    streams = [texts]
    with ThreadPoolExecutor(WORKERS) as pool, progress.task(label, total=len(layers), unit="layers") as task:
        for layer in layers:
            weights = layer_weights(layer, read)
            run = partial(runner.run_last if layer is layers[-1] else runner.run, layer)
            before = streams[0]
            streams = [list(in_order(pool, partial(run, weights), variant)) for variant in streams]
            for matrix in layer.matrices:
                worse = weights | {matrix.name: formats.rounded(matrix, weights[matrix.name])}
                names.append(matrix.name)
                streams.append(list(in_order(pool, partial(run, worse), before)))
            task.advance()
    exact, *variants = [np.concatenate(variant)[::_EVERY] for variant in streams]
    head, rows = decoder.lm_head(config).parts[0], config.vocab_size
    chunks = (read(head, slice(start, min(start + _HEAD_ROWS, rows))) for start in range(0, rows, _HEAD_ROWS))
    with progress.task(f"{label}: next-token distributions", total=rows, unit="rows of the LM head") as task:
        losses = _divergences(exact, variants, chunks, task)
    return {name: float(loss) for name, loss in zip(names[1:], losses, strict=True)}


def choose_eight_bit(config: DecoderConfig, sensitivity: Mapping[str, float], *, share: float) -> frozenset[str]:
    """Names of the projections that keep 8 bits: at most ``share`` of all weights in projections."""
    shapes = expected_shapes(config)
    sizes = {
        matrix.name: sum(shapes[part][0] for part in matrix.parts) * shapes[matrix.parts[0]][1]
        for matrix in decoder.matrices(config)
        if matrix.kind == "projection"
    }
    left = share * sum(sizes.values())
    chosen = set()
    for name in sorted(sizes, key=lambda name: sensitivity[name] / sizes[name], reverse=True):
        if sizes[name] <= left:
            chosen.add(name)
            left -= sizes[name]
    return frozenset(chosen)


def _divergences(
    exact: Float32, variants: Sequence[Float32], head: Iterable[Float32], task: Task
) -> npt.NDArray[np.float64]:
    """Mean KL(exact || variant) of the distributions that the LM head makes of hidden rows [positions, hidden].

    The head is read once, in chunks. With logits z and w, KL = mean of z - w under softmax(z) - lse(z) + lse(w).
    """
    shape = len(variants), len(exact)
    peak, total = np.full(len(exact), -np.inf, np.float32), np.zeros(len(exact))
    peaks, totals, gaps = np.full(shape, -np.inf, np.float32), np.zeros(shape), np.zeros(shape)
    for chunk in head:
        z = exact @ chunk.T
        higher, shrink, shares = _raised(peak, z)
        peak, total = higher, total * shrink + shares.sum(axis=1, dtype=np.float64)
        for i, variant in enumerate(variants):
            w = variant @ chunk.T
            gaps[i] = gaps[i] * shrink + (shares * (z - w)).sum(axis=1, dtype=np.float64)
            higher, lower, terms = _raised(peaks[i], w)
            peaks[i], totals[i] = higher, totals[i] * lower + terms.sum(axis=1, dtype=np.float64)
        task.advance(len(chunk))
    losses: npt.NDArray[np.float64] = (gaps / total - (peak + np.log(total)) + peaks + np.log(totals)).mean(axis=1)
    return losses


def _raised(peak: Float32, logits: Float32) -> tuple[Float32, Float32, Float32]:
    """The highest logit so far, what sums of terms before it are multiplied with, and the terms of ``logits``."""
    higher = np.maximum(peak, logits.max(axis=1))
    return higher, np.exp(peak - higher), np.exp(logits - higher[:, None])
