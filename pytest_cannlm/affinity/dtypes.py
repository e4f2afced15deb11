"""Element types of values: their names, and how they follow from node to node where that is beyond doubt."""

from __future__ import annotations

import onnx

# fmt: off
_KEEP = frozenset((
    "Abs", "Add", "Ceil", "Clip", "Concat", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "Gemm", "Identity", "LeakyRelu", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg",
    "Pad", "Pow", "PRelu", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus",
    "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze",
))
# fmt: on
"""Operators whose outputs have the type of the first input."""
_GIVES = {
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"), onnx.TensorProto.INT64),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), onnx.TensorProto.INT32),
    **dict.fromkeys(
        ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf"),
        onnx.TensorProto.BOOL,
    ),
}
"""Operators that give one type, whatever they take."""


def name(element_type: int) -> str:
    """The type in lower case, as in ``float16``; an unknown number stays one.

    >>> name(1), name(99)
    ('float', 'type 99')
    """
    try:
        return str(onnx.TensorProto.DataType.Name(element_type)).lower()
    except ValueError:
        return f"type {element_type}"


def follow(node: onnx.NodeProto, known: dict[str, int]) -> None:
    """Add the types of a node's outputs to ``known``, unless they are declared or cannot be told."""
    found = _output_type(node, known)
    if found:
        for output in node.output:
            known.setdefault(output, found)


def _output_type(node: onnx.NodeProto, known: dict[str, int]) -> int | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Cast":
        return next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
    if node.op_type == "Where":
        return known.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type in _KEEP:
        return known.get(node.input[0]) if node.input else None
    return _GIVES.get(node.op_type)
