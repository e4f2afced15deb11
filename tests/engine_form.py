"""Runs the engine form on ONNX Runtime as the LM Engine runs it on the device: static KV cache, slots to write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from pytest_cannlm.build.engine_form import HIDDEN, for_onnxruntime
from pytest_cannlm.models.config import DecoderConfig

FLOAT_ROWS = "/embed/scaled"
"""The value behind the two nodes that turn int8 embedding rows into float32."""


class EngineForm:
    """One engine form with its KV cache. With ``float_rows`` it takes embedding rows that were never int8."""

    def __init__(self, path: Path, config: DecoderConfig, context: int, *, float_rows: bool = False) -> None:
        self._context = context
        model = for_onnxruntime(onnx.load(path, load_external_data=False))
        if float_rows:
            _feed_float_rows(model.graph, config.hidden_size)
        fixed = path.with_name("fixed.onnx")
        onnx.save(model, fixed)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self._session = ort.InferenceSession(fixed, options, providers=["CPUExecutionProvider"])
        self._caches = {
            f"past_{kind}_in{i}": np.zeros((context, config.kv_heads, 1, config.head_dim), np.float32)
            for i in range(config.layers)
            for kind in ("key", "value")
        }
        self._at = 0

    def step(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Logits ``[n, vocabulary]`` of the next n positions, whose embedding rows are given by input name."""
        count = len(next(iter(rows.values())))
        positions = np.arange(self._at, self._at + count, dtype=np.int32)
        mask = np.where(np.arange(self._context)[None] <= positions[:, None], 0, HIDDEN).astype(np.float32)
        feeds: dict[str, Any] = {
            **{name: values[None] for name, values in rows.items()},
            "attention_mask": mask[None, None],
            "position_ids": positions[None],
            "new_kv_cache_pos": positions,
            **self._caches,
        }
        outputs = dict(zip([o.name for o in self._session.get_outputs()], self._session.run(None, feeds), strict=True))
        logits = outputs.pop("lm_logits")[0]
        self._caches = {name.replace("key", "key_in").replace("value", "value_in"): v for name, v in outputs.items()}
        self._at += count
        return logits


def cut(ids: Sequence[int], *, prefill: int, single: int) -> list[Sequence[int]]:
    """``ids`` in steps of ``prefill``, the last ``single`` of them one by one."""
    head = len(ids) - single
    return [*(ids[at : min(at + prefill, head)] for at in range(0, head, prefill)), *([i] for i in ids[head:])]


def _feed_float_rows(graph: onnx.GraphProto, hidden_size: int) -> None:
    kept = [node for node in graph.node if not node.name.startswith("/embed/")]
    assert len(graph.node) - len(kept) == 2
    del graph.node[:]
    graph.node.extend(kept)
    inputs = [value for value in graph.input if value.name not in ("input_embed", "embed_scales")]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.input.append(onnx.helper.make_tensor_value_info(FLOAT_ROWS, onnx.TensorProto.FLOAT, [1, "S", hidden_size]))
