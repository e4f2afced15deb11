"""Teacher-forced logits of a decoder that is too large to be loaded: one layer after the other, on all texts at once.

Memory is one layer's float32 weights and the residual stream of the texts, whatever the number of layers. The weights
are read where they are, so the disk holds no second copy of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build import decoder
from pytest_cannlm.build.ahead import WORKERS, in_order
from pytest_cannlm.build.decoder import FINAL_NORM
from pytest_cannlm.build.layerwise import LayerRunner, layer_weights
from pytest_cannlm.build.reference import StreamedReference

Float32 = npt.NDArray[np.float32]

Text = tuple[Sequence[int], int]
"""Ids, and the first of their positions whose logits are wanted."""

_HEAD_ELEMENTS = 1 << 25
"""Weights of the LM head that are read at a time: 128 MB as float32."""


class LayerwiseDecoder:
    """Evaluates a :class:`StreamedReference`. Every call reads all the weights once, however many texts it gets."""

    def __init__(self, reference: StreamedReference) -> None:
        self._reference = reference
        self._config = reference.source.config

    def evaluate(self, texts: Sequence[Text]) -> Iterator[Float32]:
        """Logits [n, vocabulary] of each text in order, from its first wanted position on.

        Raises:
            BuildError: a weight is NaN or infinite.
        """
        reference, runner = self._reference, self._runner
        stream = [self._embedded(ids) for ids, _ in texts]
        *others, last = decoder.layers(self._config)
        with (
            ThreadPoolExecutor(WORKERS) as pool,
            reference.progress.task("reference", total=len(others) + 1, unit="layers") as task,
        ):
            for layer in others:
                stream = list(in_order(pool, partial(runner.run, layer, layer_weights(layer, reference.read)), stream))
                task.advance(1)
            run_last = partial(runner.run_last, last, layer_weights(last, reference.read))
            rows = [normed[first:] for normed, (_, first) in zip(in_order(pool, run_last, stream), texts, strict=True)]
            task.advance(1)
        return map(self._head, rows)

    def _embedded(self, ids: Sequence[int]) -> Float32:
        known, places = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        rows = [self._reference.embedding(slice(int(token), int(token) + 1)) for token in known]
        embedded: Float32 = np.concatenate(rows)[places]
        return embedded

    def _head(self, rows: Float32) -> Float32:
        """The logits of normed rows; the LM head is read in chunks for each text, since it can outweigh a layer."""
        (tensor,) = decoder.lm_head(self._config).parts
        step = max(1, _HEAD_ELEMENTS // self._config.hidden_size)
        logits = np.empty((len(rows), self._config.vocab_size), np.float32)
        for start in range(0, self._config.vocab_size, step):
            chunk = slice(start, min(start + step, self._config.vocab_size))
            np.matmul(rows, self._reference.read(tensor, chunk).T, out=logits[:, chunk])
        return logits

    @cached_property
    def _runner(self) -> LayerRunner:
        reference = self._reference
        return LayerRunner(self._config, positions=reference.context, final_norm=reference.read(FINAL_NORM))
