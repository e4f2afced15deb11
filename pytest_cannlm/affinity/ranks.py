"""How many dimensions values have, as it follows from node to node where that is beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from pytest_cannlm.affinity.shapes import dims_of

# fmt: off
_KEEP = frozenset((
    "Abs", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Conv", "ConvTranspose", "Cos", "CumSum",
    "DepthToSpace", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "MaxPool",
    "Neg", "Not", "Pad", "Reciprocal", "Relu", "Resize", "Round", "ScatterElements", "ScatterND", "Selu", "Sigmoid",
    "Sign", "Sin", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Tan", "Tanh", "Tile",
    "TopK", "Transpose", "Trilu",
))
_BROADCAST = frozenset((
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod",
    "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
))
# fmt: on
"""Operators whose outputs have as many dimensions as the first input; those where the longest shape counts."""
_REDUCE = ("Reduce", "Arg")
"""How operators begin that take dimensions away, or make them 1."""
_SHAPED = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""The input that holds the shape of the output."""


@dataclass(frozen=True)
class Extent:
    """The number of dimensions, and for one dimension its size, where that is known: shapes are such values."""

    rank: int
    length: int | None = None


def of_dims(dims: Sequence[int | None]) -> Extent:
    """The extent of a shape."""
    return Extent(len(dims), dims[0] if len(dims) == 1 else None)


def declared(value: onnx.ValueInfoProto) -> Extent | None:
    """The extent that a model declares of a value."""
    dims = dims_of(value)
    return None if dims is None else of_dims([dim.dim_value or None for dim in dims])


def follow(node: onnx.NodeProto, known: dict[str, Extent]) -> None:
    """Add the extents of a node's outputs to ``known``, unless they are declared or cannot be told."""
    found = _extent(node, [known.get(name) for name in node.input]) if node.domain in ("", "ai.onnx") else None
    if found is not None:
        for output in node.output:
            if output:
                known.setdefault(output, found)


def _extent(node: onnx.NodeProto, inputs: list[Extent | None]) -> Extent | None:
    operator, first = node.op_type, inputs[0] if inputs else None
    if operator in _SHAPED:
        return _shaped(operator, inputs)
    if first is None:
        return None
    if operator in _KEEP or (operator.startswith(_REDUCE) and _keeps(node)):
        return Extent(first.rank)
    if operator in ("Cast", "Identity"):
        return first
    if operator == "Shape":
        return Extent(1, None if node.attribute else first.rank)
    if operator in ("Squeeze", "Unsqueeze"):
        axes = _axes(node, inputs)
        rank = None if axes is None else first.rank + (axes if operator == "Unsqueeze" else -axes)
        return None if rank is None else Extent(rank, 1 if rank == 1 and first.rank == 0 else None)
    if operator == "Concat":
        lengths = [each.length for each in inputs if each is not None and each.length is not None]
        return Extent(first.rank, sum(lengths) if first.rank == 1 and len(lengths) == len(inputs) else None)
    return _of_all(operator, [each for each in inputs if each is not None]) if None not in inputs else None


def _of_all(operator: str, inputs: list[Extent]) -> Extent | None:
    """Where all inputs have a part in it."""
    found = [each.rank for each in inputs]
    if operator == "Gather" and len(inputs) == 2 and found[0] > 0:
        rank = found[0] + found[1] - 1
        return Extent(rank, inputs[1].length if found == [1, 1] else None)
    if operator in _BROADCAST or (operator == "MatMul" and min(found) > 1):
        return Extent(max(found))
    return None


def _shaped(operator: str, inputs: list[Extent | None]) -> Extent | None:
    number = _SHAPED[operator]
    shape, first = inputs[number] if number < len(inputs) else None, inputs[0] if inputs else None
    if shape is None or shape.length is None:
        return None
    if operator == "Expand":
        return Extent(max(shape.length, first.rank)) if first is not None else None
    return Extent(shape.length)


def _keeps(node: onnx.NodeProto) -> bool:
    """Whether dimensions that are reduced stay as 1, as they do unless an attribute says otherwise."""
    return all(attribute.i for attribute in node.attribute if attribute.name == "keepdims")


def _axes(node: onnx.NodeProto, inputs: list[Extent | None]) -> int | None:
    """How many axes an attribute, up to opset 12, or the second input names."""
    for attribute in node.attribute:
        if attribute.name == "axes":
            return len(attribute.ints)
    axes = inputs[1] if len(inputs) > 1 else None
    return axes.length if axes is not None else None
