"""Inputs and outputs of a model, by the rules with which the vendor's tools name and order them.

Inputs are ordered by the attribute ``index`` of their ops; what a caller feeds is ``input_desc[0]``, what the graph
makes of it is ``output_desc[0]``. Outputs are the ``input_desc`` of NetOutput, whose ``output_desc`` may hold the type
outside. Where an Ascend file has MODEL_INOUT_INFO, that list is what the vendor's runtime answers with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cannlm.container.graph import INPUT_TYPES
from pytest_cannlm.container.inoutinfo import InOutInfo, InOutTensor
from pytest_cannlm.container.layout import Dialect
from pytest_cannlm.container.ops import SHAPE_OVERRIDES, Graph, Op, TensorFacts

OUT_NODES = "attr_model_out_nodes_name"

Facts = dict[str, Any]


def interface_facts(
    graph: Graph | None, info: InOutInfo | None, *, dialect: Dialect, out_nodes: Sequence[str]
) -> tuple[Facts, list[str]]:
    """``inputs`` and ``outputs``, JSON-ready, with what is odd about them.

    ``out_nodes`` is the model's attribute ``attr_model_out_nodes_name``, by which Ascend names its outputs.
    """
    inputs = graph_inputs(graph) if graph else []
    outputs = graph_outputs(graph, dialect, out_nodes) if graph else []
    if info is None:
        return {"inputs": inputs, "outputs": outputs}, []
    inner = {item["name"]: item["inner"] for item in inputs}
    listed = {
        "inputs": [
            {**_listed(tensor), "index": index, "inner": inner.get(tensor.name)}
            for index, tensor in enumerate(info.inputs)
        ],
        "outputs": [
            {
                **_listed(tensor),
                "source": outputs[index]["source"] if len(outputs) == len(info.outputs) else None,
                "outer": None,
            }
            for index, tensor in enumerate(info.outputs)
        ],
    }
    notes = [
        f"MODEL_INOUT_INFO lists {len(listed[kind])} {kind}, the graph has {len(found)}"
        for kind, found in (("inputs", inputs), ("outputs", outputs))
        if graph and len(found) != len(listed[kind])
    ]
    return {**listed, "choices": _choices(info)} if _choices(info) else dict(listed), notes


def graph_inputs(graph: Graph) -> list[Facts]:
    """The inputs of a graph, in the order in which they are fed."""
    described = []
    for position, op in enumerate(graph.of_type(*INPUT_TYPES)):
        index = op.number("index")
        facts = (op.input_desc or op.output_desc or (TensorFacts("undefined", (), ""),))[0]
        described.append(
            {
                "name": op.name,
                "index": position if index is None else index,
                "dtype": facts.dtype,
                "shape": _overridden_shape(op.attrs) or facts.shape,
                "format": facts.format,
                "inner": _facts(op.output_desc[0]) if op.output_desc else None,
            }
        )
    return sorted(described, key=lambda item: item["index"])


def graph_outputs(graph: Graph, dialect: Dialect, out_nodes: Sequence[str]) -> list[Facts]:
    """The outputs of a graph."""
    op = graph.output
    if op is None:
        return []
    described = []
    for position, inner in enumerate(op.input_desc):
        name, index = _source_of(op, position)
        if dialect == "kirin":
            shown = f"{name}:{index}"
        elif len(out_nodes) == len(op.input_desc):
            node = out_nodes[position]
            shown = node if ":" in node else f"{node}:{index}"
        else:
            shown = f"output_{position}_{name}_{index}"
        outer = _facts(op.output_desc[position]) if position < len(op.output_desc) else None
        described.append({"name": shown, "source": f"{name}:{index}", **_facts(inner), "outer": outer})
    return described


def _facts(tensor: TensorFacts) -> Facts:
    return {"dtype": tensor.dtype, "shape": tensor.shape, "format": tensor.format}


def _listed(tensor: InOutTensor) -> Facts:
    facts: Facts = {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "format": tensor.format}
    facts["bytes"] = tensor.size or None
    if tensor.shape_v2 != tensor.shape and tensor.shape_v2:
        facts["shape_behind_preprocessing"] = tensor.shape_v2
    if tensor.ranges:
        facts["ranges"] = tensor.ranges
    return facts


def _choices(info: InOutInfo) -> Facts:
    offered = {
        "batch": info.batch,
        "image_size": info.image_size,
        "dims": info.dims,
        "output_shapes": info.output_shapes,
        "input_order": info.input_order,
    }
    return {name: values for name, values in offered.items() if values}


def _overridden_shape(attrs: Mapping[str, Any]) -> tuple[int, ...] | None:
    for key in SHAPE_OVERRIDES:
        value = attrs.get(key)
        if isinstance(value, list) and value:
            return tuple(item for item in value if isinstance(item, int))
    return None


def _source_of(op: Op, position: int) -> tuple[str, int]:
    """src_name and src_index; vendor test data can lack them, then the op's own input says it as "op:index"."""
    if position < len(op.src_names):
        return op.src_names[position], op.src_indexes[position] if position < len(op.src_indexes) else 0
    name, _, index = (op.inputs[position] if position < len(op.inputs) else "").rpartition(":")
    return name, int(index) if index.isascii() and index.isdecimal() and len(index) < 10 else 0
