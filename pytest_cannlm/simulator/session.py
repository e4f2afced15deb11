"""Runs the runtime form of a decoder on ONNX Runtime with its KV cache, step by step or a whole text at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

Float32 = npt.NDArray[np.float32]

HIDDEN = np.float32(-65504.0)
"""Mask value of a hidden position: the lowest finite fp16, so that a rounded score never becomes a NaN."""

_CACHE_STEP = 256
"""The cache grows by so many positions: attention then works on little more than is filled."""


class EmbeddingRows(Protocol):
    """The embedding table, outside the graph as on the device."""

    def __call__(self, ids: npt.NDArray[np.int64]) -> Float32:
        """float32 rows [n, hidden] of the ids [n]."""


@dataclass(frozen=True)
class Shape:
    """Shape of a KV cache: ``layers`` times keys and values of [kv_heads, positions, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int


class DecoderSession:
    """One decoder with one KV cache. Not thread-safe; positions are appended, and can be taken back by :meth:`rewind`.

    Attributes:
        length: positions in the cache.
        kernel_seconds: time spent inside ONNX Runtime so far, for telling its share from Python's.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        weights_dir: Path,
        shape: Shape,
        embedding: EmbeddingRows,
        chunk: int = 64,
        threads: int | None = None,
    ) -> None:
        """Load ``model``, whose external data lies in ``weights_dir``.

        Args:
            model: the runtime form.
            weights_dir: folder that the external-data entries are relative to.
            shape: shape of its KV cache.
            embedding: gives embedding rows.
            chunk: positions per prefill step.
            threads: threads of ONNX Runtime; None lets it use every physical core.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_dir))
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._shape, self._embedding, self._chunk = shape, embedding, chunk
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._keys: list[Float32] = []
        self._values: list[Float32] = []
        self._capacity = 0
        self._feeds: dict[str, Any] = {}
        self.length = 0
        self.kernel_seconds = 0.0
        self.rewind(0)

    def rewind(self, length: int) -> None:
        """Forget all positions from ``length`` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind from {self.length} to {length} positions")
        self.length = length
        if length == 0:
            self._resize(_CACHE_STEP)

    def feed(self, ids: Sequence[int]) -> Float32:
        """Append ``ids`` and return the logits [vocabulary] behind the last of them."""
        rows = None
        for start in range(0, len(ids), self._chunk):
            piece = ids[start : start + self._chunk]
            rows = self._step(piece, np.array([len(piece) - 1], np.int64))
        if rows is None:
            raise ValueError("no ids to feed")
        last: Float32 = rows[0]
        return last

    def evaluate(self, ids: Sequence[int], first: int = 0, step: int | None = None) -> Iterator[Float32]:
        """Teacher-forced: append ``ids``, yield logits [n, vocabulary] of positions ``first``.. chunk by chunk.

        From ``first`` on ``step`` positions are fed at a time, by default those of a prefill step; 1 is decoding.
        """
        if step:
            yield from self.evaluate(ids[:first], first)
            pieces = [(start, ids[start : start + step]) for start in range(first, len(ids), step)]
        else:
            pieces = [(start, ids[start : start + self._chunk]) for start in range(0, len(ids), self._chunk)]
        for start, piece in pieces:
            wanted = np.arange(max(first - start, 0), len(piece), dtype=np.int64)
            rows = self._step(piece, wanted)
            if len(wanted):
                yield rows

    def _step(self, ids: Sequence[int], wanted: npt.NDArray[np.int64]) -> Float32:
        count, start, past = len(ids), self.length, self._capacity
        self._feeds |= {
            "input_embed": self._embedding(np.asarray(ids, np.int64)),
            "position_ids": np.arange(start, start + count, dtype=np.int64),
            "attention_mask": self._mask(start, count),
            "cache_split": np.array([past, count], np.int64),
            "logit_rows": wanted,
        }
        began = time.perf_counter()
        logits, *fresh = self._session.run(self._outputs, self._feeds)
        self.kernel_seconds += time.perf_counter() - began
        end = start + count
        if end > past:
            self._resize(-(-end // _CACHE_STEP) * _CACHE_STEP)
        for keys, new in zip(self._keys, fresh[0::2], strict=True):
            keys[:, :, start:end] = new
        for values, new in zip(self._values, fresh[1::2], strict=True):
            values[:, start:end] = new
        self.length = end
        result: Float32 = logits
        return result

    def _mask(self, start: int, count: int) -> Float32:
        """[count, capacity + count]: cached positions before ``start`` and new ones up to each row are visible."""
        mask = np.zeros((count, self._capacity + count), np.float32)
        mask[:, start : self._capacity] = HIDDEN
        if count > 1:
            mask[:, self._capacity :][np.triu_indices(count, 1)] = HIDDEN
        return mask

    def _resize(self, capacity: int) -> None:
        c, kept = self._shape, self.length
        keys = [np.zeros((c.kv_heads, c.head_dim, capacity), np.float32) for _ in range(c.layers)]
        values = [np.zeros((c.kv_heads, capacity, c.head_dim), np.float32) for _ in range(c.layers)]
        for i in range(c.layers if kept else 0):
            keys[i][:, :, :kept] = self._keys[i][:, :, :kept]
            values[i][:, :kept, :] = self._values[i][:, :kept, :]
        self._keys, self._values, self._capacity = keys, values, capacity
        # ONNX Runtime reads the arrays where they are: what is written into them later is seen without another feed
        self._feeds |= {f"past_key_in{i}": array for i, array in enumerate(keys)}
        self._feeds |= {f"past_value_in{i}": array for i, array in enumerate(values)}
