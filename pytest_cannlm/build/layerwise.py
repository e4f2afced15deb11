"""Runs a decoder one layer at a time on weights that are handed in, and shows what each matrix is fed.

The graph is the runtime form of a decoder with a single layer, so the architecture stands nowhere twice. Its weights
are inputs: one session serves every layer, and never more than one layer's weights are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort

from pytest_cannlm.build import decoder
from pytest_cannlm.build.decoder import FINAL_NORM, Layer, Matrix
from pytest_cannlm.build.quantize import RowSource, require_finite
from pytest_cannlm.build.runtime_form import rotary_vectors, runtime_form
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.build.weights import Coefficients, Layout, PartQuality, StoredMatrix
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.tensors import expected_shapes

_HIDDEN = np.float32(-65504.0)
"""Mask value of a position that is not visible."""
_RESIDUAL, _NORMED = "/layers.0/mlp_residual", "/final_norm/scaled"

Weights = Mapping[str, Float32]
"""What one layer computes with: its matrices by name, the parts stacked, and its vectors by name."""


def layer_weights(layer: Layer, read: RowSource) -> dict[str, Float32]:
    """The weights of ``layer`` in float32; BuildError if one is NaN or infinite."""

    def stacked(matrix: Matrix) -> Float32:
        return np.concatenate([require_finite(part, read(part)) for part in matrix.parts])

    matrices = {matrix.name: stacked(matrix) for matrix in layer.matrices}
    return matrices | {name: require_finite(name, read(name)) for name in layer.vectors}


class LayerRunner:
    """Any layer of a decoder on ONNX Runtime in float32. One thread per call, so that every run gives the same numbers;
    calls may come from several threads."""

    def __init__(self, config: DecoderConfig, *, positions: int, final_norm: Float32) -> None:
        """For windows of at most ``positions`` positions; ``final_norm`` weighs the norm before the LM head."""
        one = replace(config, layers=1)
        (self._layer,) = decoder.layers(one)
        model = runtime_form(one, _placed(one, positions))
        fed = {node.name: node.input[0] for node in model.graph.node}
        self._taps = [fed[f"/{matrix.name}/matmul"] for matrix in self._layer.matrices]
        self._session = _session(model, [*self._taps, _RESIDUAL, _NORMED])
        cache = [value for value in self._session.get_inputs() if value.name.startswith("past_")]
        self._constant = {
            FINAL_NORM: final_norm,
            **rotary_vectors(one, positions),
            **{past.name: np.zeros([d if isinstance(d, int) else 1 for d in past.shape], np.float32) for past in cache},
        }

    def run(self, layer: Layer, weights: Weights, rows: Float32) -> Float32:
        """The residual stream behind ``layer``, given the one before it: [positions, hidden], from position 0 on."""
        return self._run(layer, weights, rows, [_RESIDUAL])[0]

    def run_last(self, layer: Layer, weights: Weights, rows: Float32) -> Float32:
        """What the LM head is multiplied with, [positions, hidden], if ``layer`` is the last."""
        return self._run(layer, weights, rows, [_NORMED])[0]

    def run_with_inputs(self, layer: Layer, weights: Weights, rows: Float32) -> tuple[Float32, dict[str, Float32]]:
        """As :meth:`run`, and by matrix name the rows [positions, columns] that each matrix is multiplied with."""
        output, *inputs = self._run(layer, weights, rows, [_RESIDUAL, *self._taps])
        return output, {matrix.name: values for matrix, values in zip(layer.matrices, inputs, strict=True)}

    def _run(self, layer: Layer, weights: Weights, rows: Float32, wanted: list[str]) -> list[Float32]:
        count = len(rows)
        mask = np.zeros((count, 1 + count), np.float32)
        mask[:, 0] = _HIDDEN  # the graph wants a cache; its one position is hidden
        mask[:, 1:][np.triu_indices(count, 1)] = _HIDDEN
        feeds = {
            "input_embed": rows,
            "position_ids": np.arange(count, dtype=np.int64),
            "attention_mask": mask,
            "cache_split": np.array([1, count], np.int64),
            **self._constant,
        }
        for here, there in zip(self._layer.matrices, layer.matrices, strict=True):
            feeds[f"{here.name}.values"] = weights[there.name]
        for vector, name in zip(self._layer.vectors, layer.vectors, strict=True):
            feeds[vector] = weights[name]
        results: list[Float32] = self._session.run(wanted, feeds)
        return results


def _session(model: onnx.ModelProto, outputs: Sequence[str]) -> ort.InferenceSession:
    """The part of ``model`` that ``outputs`` need, its external weights being inputs."""
    graph, needed = model.graph, set(outputs)
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.insert(0, node)
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    inputs = [
        *graph.input,
        *(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in external),
    ]
    part = onnx.helper.make_graph(
        nodes,
        "layer",
        [value for value in inputs if value.name in needed],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [t for t in graph.initializer if t.name in needed and t.data_location != onnx.TensorProto.EXTERNAL],
    )
    whole = onnx.helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _placed(config: DecoderConfig, positions: int) -> Coefficients:
    """Float32 matrices and vectors at places of a file that is never written."""
    shapes, layout = expected_shapes(config), Layout()
    matrices = {}
    for matrix in decoder.matrices(config):
        rows, columns = [shapes[part][0] for part in matrix.parts], shapes[matrix.parts[0]][1]
        arrays = {"values": layout.reserve((sum(rows), columns), "float32")}
        parts = [PartQuality(part, n, math.inf, math.nan, 0, 0) for part, n in zip(matrix.parts, rows, strict=True)]
        matrices[matrix.name] = StoredMatrix(matrix.name, "f32", sum(rows), columns, columns, arrays, tuple(parts))
    vectors = {name: layout.reserve(shapes[name], "float32") for name in decoder.vectors(config)}
    tables = rotary_vectors(config, positions)
    vectors |= {name: layout.reserve(table.shape, "float32") for name, table in tables.items()}
    return Coefficients("float32", matrices, vectors, layout.size)
