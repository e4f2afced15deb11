"""What a compiled model declares, and which arrays a simulated one reads from its weight file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from pytest_cannlm.container.core import Container
from pytest_cannlm.container.layout import RUNTIME_GRAPH
from pytest_cannlm.lint.finding import CannotLook

LARGEST_GRAPH = 256 << 20
MOST_TENSORS = 5_000

_DTYPES = {
    onnx.TensorProto.FLOAT: "<f4",
    onnx.TensorProto.FLOAT16: "<f2",
    onnx.TensorProto.INT8: "<i1",
    onnx.TensorProto.UINT8: "<u1",
    onnx.TensorProto.INT32: "<i4",
    onnx.TensorProto.INT64: "<i8",
}


@dataclass(frozen=True)
class Declared:
    """Type and shape of an input or output; -1 is an axis that the graph leaves open."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs by name."""

    file: str
    inputs: Mapping[str, Declared]
    outputs: Mapping[str, Declared]

    def axis(self, name: str, axis: int, *, rank: int) -> int:
        """Size of one axis of an input or output; raises ``CannotLook`` where the graph does not fix it."""
        declared = self.inputs.get(name) or self.outputs.get(name)
        if declared is None:
            raise CannotLook(f"{self.file} declares no {name}")
        if len(declared.shape) != rank or declared.shape[axis] < 1:
            raise CannotLook(f"{self.file} does not fix axis {axis} of {name}")
        return declared.shape[axis]

    def caches(self) -> Mapping[str, Declared]:
        """The KV cache inputs: ``past_key_in{i}`` and ``past_value_in{i}``."""
        found = {name: at for name, at in self.inputs.items() if name.startswith(("past_key_in", "past_value_in"))}
        if not found:
            raise CannotLook(f"{self.file} declares no KV cache by the engine's names")
        return found


@dataclass(frozen=True)
class Stored:
    """An array in the weight file as the graph describes it; None is what the graph does not say in a usable way."""

    name: str
    dtype: str | None
    dims: tuple[int, ...]
    location: str | None
    offset: int | None
    length: int | None

    @property
    def nbytes(self) -> int | None:
        """Bytes that type and shape ask for."""
        if self.dtype is None or any(dim < 1 for dim in self.dims):
            return None
        return prod(self.dims) * int(self.dtype[-1])


@dataclass(frozen=True)
class RuntimeGraph:
    """The graph of a simulated model: KV cache inputs, inner arrays by shape, and the arrays of the weight file."""

    caches: Mapping[str, tuple[int, ...]]
    arrays: tuple[Stored, ...]


def interface_of(file: str, facts: Mapping[str, Any]) -> Interface:
    """The interface by the description of a model; an output is called by the op that makes it, without a number."""
    if "inputs" not in facts or "outputs" not in facts:
        raise CannotLook(f"inputs and outputs of {file} cannot be told")
    inputs = {item["name"]: Declared(item["dtype"], tuple(item["shape"])) for item in facts["inputs"]}
    outputs = {}
    for item in facts["outputs"]:
        outside = item.get("outer") or item
        outputs[item["name"].partition(":")[0]] = Declared(outside["dtype"], tuple(outside["shape"]))
    return Interface(file, inputs, outputs)


def read_runtime_graph(container: Container) -> RuntimeGraph:
    """The graph that the simulator runs."""
    file, entry = container.path.name, container.find(RUNTIME_GRAPH)
    if entry is None:
        raise CannotLook(f"{file} holds no graph for the simulator")
    if entry.size > LARGEST_GRAPH:
        raise CannotLook(f"the graph in {file} is larger than {LARGEST_GRAPH:,} bytes")
    try:
        graph = onnx.load_model_from_string(container.read(entry)).graph
    except DecodeError as error:
        raise CannotLook(f"the graph in {file} is no ONNX model") from error
    if len(graph.initializer) > MOST_TENSORS:
        raise CannotLook(f"the graph in {file} has more than {MOST_TENSORS:,} arrays")
    outside = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    return RuntimeGraph(
        {
            _text(value.name): tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)
            for value in graph.input
            if _text(value.name).startswith("past_")
        },
        tuple(_stored(tensor) for tensor in outside),
    )


def _stored(tensor: onnx.TensorProto) -> Stored:
    places = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    return Stored(
        _text(tensor.name),
        _DTYPES.get(tensor.data_type),
        tuple(tensor.dims),
        places.get("location"),
        _whole(places.get("offset")),
        _whole(places.get("length")),
    )


def _text(value: str | bytes) -> str:
    """A name in a graph; one that is no UTF-8 comes as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else None
