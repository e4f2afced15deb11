"""A small writer of ONNX graphs: named nodes in order, initializers inside the file or in an external one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from pytest_cannlm.build.weights import Stored

Dims = Sequence[int | str]

ELEMENT_TYPES: dict[str, int] = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "int8": onnx.TensorProto.INT8,
    "uint8": onnx.TensorProto.UINT8,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
}

EXACT = ".f32"
"""Nodes whose name ends so are float32 on the NPU too; all other results are rounded to its number format."""


class GraphWriter:
    """Collects a graph node by node. A value is named by the node that makes it: names are stable between builds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: str, dims: Dims) -> str:
        """Declare a graph input; returns its name."""
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], list(dims)))
        return name

    def output(self, name: str, dtype: str, dims: Dims) -> None:
        """Declare the value ``name`` as a graph output."""
        self._outputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], list(dims)))

    def constant(self, name: str, value: npt.ArrayLike, dtype: str) -> str:
        """A small constant inside the file; the same name is stored once."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(value, dtype=dtype), name)
        return name

    def external(self, name: str, stored: Stored, location: str, dims: Sequence[int] | None = None) -> str:
        """A constant whose bytes lie in the file ``location`` beside the model; the same name is stored once."""
        if name not in self._initializers:
            tensor = onnx.TensorProto(
                name=name,
                data_type=ELEMENT_TYPES[stored.dtype],
                dims=list(dims or stored.shape),
                data_location=onnx.TensorProto.EXTERNAL,
            )
            for key, value in (("location", location), ("offset", stored.offset), ("length", stored.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            self._initializers[name] = tensor
        return name

    def op(self, kind: str, inputs: Sequence[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, which carries the node's name."""
        return self.ops(kind, inputs, name, [name], domain=domain, **attributes)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        name: str,
        outputs: Sequence[str],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several outputs of the given names."""
        node = helper.make_node(kind, list(inputs), list(outputs), name=name, domain=domain or None, **attributes)
        self._nodes.append(node)
        return list(outputs)

    def reshape(self, x: str, dims: Sequence[int], name: str) -> str:
        """Add a Reshape to ``dims``."""
        shape = self.constant("shape_" + "x".join(map(str, dims)), list(dims), "int64")
        return self.op("Reshape", [x, shape], name)

    def model(self, opsets: Mapping[str, int], ir_version: int) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(
            graph, opset_imports=imports, ir_version=ir_version, producer_name="pytest-cannlm", producer_version=""
        )
