"""The NPU's number formats, put into a graph that ONNX Runtime computes in float32.

*faithful*: 4-bit kernels keep their activations exact, and every result that the NPU would hold in fp16 is rounded to
fp16 (to nearest even, overflow to infinity) by a pair of Casts behind the node that makes it. Nodes whose name ends in
``.f32`` are the inside of what the NPU runs as one operator (RMSNorm, RoPE, SiLU, partial sums of one matrix product),
and the logits, which the engine's interface returns as float32. That those operators keep float32 inside is assumed.

*fast*: kernels quantize activations to int8 and nothing is rounded. For trying a suite out: numbers and texts differ
from those of the NPU, most of all with 4-bit weights.

*exact*: neither; what the same weights would give in float32. References use it.
"""

from __future__ import annotations

from typing import Literal

import onnx
from onnx import helper

from pytest_cannlm.build.graph import EXACT

Mode = Literal["faithful", "fast", "exact"]
MODES: tuple[Mode, ...] = ("faithful", "fast")
"""What a user can ask of a simulated NPU."""

_INT8_ACTIVATIONS = 4
_ROUNDED = frozenset({"MatMul", "MatMulNBits", "Gemm", "Add", "Mul", "Softmax", "Sigmoid"})


def with_number_formats(model: onnx.ModelProto, mode: Mode) -> onnx.ModelProto:
    """Change ``model`` in place to compute as ``mode`` says, and return it."""
    if mode == "faithful":
        _round_results(model.graph)
    elif mode == "fast":
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = _INT8_ACTIVATIONS
    return model


def _round_results(graph: onnx.GraphProto) -> None:
    nodes = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type not in _ROUNDED or node.name.endswith(EXACT):
            continue
        rounded = node.output[0]
        node.output[0] = f"{rounded}/wide"
        half = f"{rounded}/fp16"
        nodes.append(helper.make_node("Cast", [node.output[0]], [half], half, to=onnx.TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [half], [rounded], f"{rounded}/rounded", to=onnx.TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
