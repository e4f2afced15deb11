"""Every place of a model that holds nodes or tensors: the graph, graphs inside nodes, local functions, attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from pytest_cannlm.affinity import dtypes, ranks

STANDARD = ("", "ai.onnx")
"""Both names of the standard domain."""
_SPELLED = {
    "value_int": (onnx.TensorProto.INT64, "int64_data", "i"),
    "value_ints": (onnx.TensorProto.INT64, "int64_data", "ints"),
    "value_float": (onnx.TensorProto.FLOAT, "float_data", "f"),
    "value_floats": (onnx.TensorProto.FLOAT, "float_data", "floats"),
    "value_string": (onnx.TensorProto.STRING, "string_data", "s"),
    "value_strings": (onnx.TensorProto.STRING, "string_data", "strings"),
}
"""Attributes of Constant that hold its value without a tensor: element type, and the fields of tensor and attribute."""


def domain_of(node: onnx.NodeProto) -> str:
    """The domain of a node's operator; the standard one is the empty text."""
    return "" if node.domain in STANDARD else str(node.domain)


def name_of(node: onnx.NodeProto) -> str:
    """What a message calls a node; nameless ones go by their first output."""
    return str(node.name) or (f"{node.op_type} of {node.output[0]}" if node.output else f"a {node.op_type}")


@dataclass(frozen=True)
class Constant:
    """A tensor whose values the model holds. ``name`` is empty where nothing refers to it by name."""

    name: str
    place: str
    tensor: onnx.TensorProto


@dataclass(frozen=True, eq=False)
class Scope:
    """One list of nodes, with the names that they can see.

    Attributes:
        nodes: in the order in which they run.
        graph: the graph; None for the body of a local function.
        outer: the scope around it, whose names are seen too.
    """

    nodes: Sequence[onnx.NodeProto]
    graph: onnx.GraphProto | None
    outer: Scope | None

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Initializers, sparse ones too, and every tensor in an attribute."""
        return tuple(self._constants())

    def _constants(self) -> Iterator[Constant]:
        if self.graph is not None:
            for tensor in self.graph.initializer:
                yield Constant(tensor.name, f"initializer {tensor.name}", tensor)
            for sparse in self.graph.sparse_initializer:
                name = sparse.values.name
                yield Constant(name, f"sparse initializer {name}", sparse.values)
                yield Constant("", f"indices of sparse initializer {name}", sparse.indices)
        for node in self.nodes:
            for attribute in node.attribute:
                name = node.output[0] if node.op_type == "Constant" and node.output else ""
                tensors = _spelled(attribute) if name and attribute.name in _SPELLED else _tensors(attribute)
                for tensor in tensors:
                    yield Constant(name, f"{attribute.name} of {name_of(node)}", tensor)
                    name = ""  # what follows the values of a sparse tensor are their indices

    @cached_property
    def constant_of(self) -> dict[str, onnx.TensorProto]:
        """The constants by the name that nodes use, those of outer scopes too."""
        seen = dict(self.outer.constant_of) if self.outer else {}
        return seen | {constant.name: constant.tensor for constant in self.constants if constant.name}

    @cached_property
    def maker(self) -> dict[str, onnx.NodeProto]:
        """The node that computes each value."""
        return {output: node for node in self.nodes for output in node.output if output}

    @cached_property
    def given(self) -> frozenset[str]:
        """Names that this scope has before its first node; those of outer scopes are seen besides."""
        if self.graph is None:
            return frozenset()
        held = (*self.graph.input, *self.graph.initializer, *(each.values for each in self.graph.sparse_initializer))
        return frozenset(each.name for each in held)

    @cached_property
    def type_of(self) -> dict[str, int]:
        """Element types by name, as far as they are declared or follow without doubt."""
        known = dict(self.outer.type_of) if self.outer else {}
        if self.graph is not None:
            for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
                if value.type.HasField("tensor_type"):
                    known[value.name] = value.type.tensor_type.elem_type
        known |= {constant.name: constant.tensor.data_type for constant in self.constants if constant.name}
        for node in self.nodes:
            dtypes.follow(node, known)
        return known

    @cached_property
    def extent_of(self) -> dict[str, ranks.Extent]:
        """Numbers of dimensions by name, as far as they are declared or follow without doubt."""
        known = dict(self.outer.extent_of) if self.outer else {}
        if self.graph is not None:
            for value in (*self.graph.input, *self.graph.value_info, *self.graph.output):
                extent = ranks.declared(value)
                if extent is not None:
                    known[value.name] = extent
        known |= {each.name: ranks.of_dims(each.tensor.dims) for each in self.constants if each.name}
        for node in self.nodes:
            ranks.follow(node, known)
        return known


def scopes(model: onnx.ModelProto) -> list[Scope]:
    """All scopes of a model, the main graph first."""
    found: list[Scope] = []
    waiting = [Scope(function.node, None, None) for function in reversed(model.functions)]
    waiting.append(Scope(model.graph.node, model.graph, None))
    while waiting:
        scope = waiting.pop()
        found.append(scope)
        for node in scope.nodes:
            for attribute in node.attribute:
                graphs = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
                waiting.extend(Scope(graph.node, graph, scope) for graph in graphs)
    return found


def _spelled(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """The tensor that such an attribute stands for: a number, or a list of one dimension."""
    element, field, source = _SPELLED[attribute.name]
    held = getattr(attribute, source)
    dims, values = ([len(held)], held) if attribute.name.endswith("s") else ([], [held])
    yield onnx.TensorProto(data_type=element, dims=dims, **{field: values})


def _tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in ([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []) + [
        *attribute.sparse_tensors
    ]:
        yield sparse.values
        yield sparse.indices
