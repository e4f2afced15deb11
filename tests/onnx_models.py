"""Small ONNX models for tests of affinity, each of them taken as it is unless a test spoils it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Value = tuple[str, int, Sequence[int | str | None] | None]
FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def value(name: str, element: int = FLOAT, dims: Sequence[int | str | None] | None = (2, 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, None if dims is None else list(dims))


def node(operator: str, *inputs: str, to: str | Sequence[str] = "y", domain: str = "", **attributes: object):
    outputs = [to] if isinstance(to, str) else list(to)
    return helper.make_node(operator, list(inputs), outputs, name=f"n_{outputs[0]}", domain=domain, **attributes)


def integers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def floats(name: str, *dims: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(dims, np.float32), name)


def external(name: str, dims: Sequence[int], element: int = FLOAT, **fields: str) -> onnx.TensorProto:
    """A tensor whose data lies elsewhere; ``fields`` are what the model says of it."""
    tensor = TensorProto(name=name, data_type=element, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in fields.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def graph_of(
    *nodes: onnx.NodeProto,
    inputs: Sequence[onnx.ValueInfoProto] = (value("x"),),
    outputs: Sequence[onnx.ValueInfoProto] = (value("y"),),
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializer=list(constants))


def model_of(*nodes: onnx.NodeProto, opsets: Sequence[tuple[str, int]] = (("", 12),), ir: int = 7, **graph: object):
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph_of(*nodes, **graph), opset_imports=imports, ir_version=ir)


def plain(**changes: object) -> onnx.ModelProto:
    """y = x * x."""
    return model_of(node("Mul", "x", "x"), **changes)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def rope(element: int = FLOAT) -> onnx.ModelProto:
    """x * cos + concat(-x2, x1) * sin of x [2, 4]."""
    bounds = [integers(name, number) for name, number in (("zero", 0), ("two", 2), ("four", 4), ("axis", 1))]
    return model_of(
        node("Slice", "x", "zero", "two", "axis", to="x1"),
        node("Slice", "x", "two", "four", "axis", to="x2"),
        node("Neg", "x2", to="minus"),
        node("Concat", "minus", "x1", to="turned", axis=1),
        node("Mul", "x", "cos", to="straight"),
        node("Mul", "turned", "sin", to="crossed"),
        node("Add", "straight", "crossed"),
        inputs=[value(name, element) for name in ("x", "cos", "sin")],
        outputs=[value("y", element)],
        constants=bounds,
    )


def attention() -> onnx.ModelProto:
    """softmax(q k + mask) v."""
    shapes = {"q": (2, 4), "k": (4, 8), "mask": (2, 8), "v": (8, 4)}
    return model_of(
        node("MatMul", "q", "k", to="scores"),
        node("Add", "scores", "mask", to="masked"),
        node("Softmax", "masked", to="shares", axis=1),
        node("MatMul", "shares", "v"),
        inputs=[value(name, dims=dims) for name, dims in shapes.items()],
    )
