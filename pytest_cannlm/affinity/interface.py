"""Checks of inputs, outputs and declared values: types, shapes, names, number, and the KV cache."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx

from pytest_cannlm.affinity import dtypes
from pytest_cannlm.affinity.shapes import dims_of, real_inputs
from pytest_cannlm.affinity.subject import Problem, Subject

_TYPES = onnx.TensorProto
_TAKEN = {_TYPES.FLOAT, _TYPES.FLOAT16, _TYPES.INT8, _TYPES.UINT8, _TYPES.INT32, _TYPES.INT64, _TYPES.BOOL}
_NAME_PARTERS = re.compile(r"[:;,=\s\"']|[^ -~]")
_FOLDER, _FILE = re.compile(r"[A-Za-z0-9_]+"), re.compile(r"[A-Za-z0-9_.]+")
_CACHE = re.compile(r"past", re.IGNORECASE)
_ENGINE_CACHE = re.compile(r"past_(key|value)_in\d+")


def types(subject: Subject) -> Iterator[Problem]:
    """Element types of every value that has a known one, and inputs that have to be int32."""
    for scope in subject.scopes:
        for name, element in scope.type_of.items():
            if scope.outer is not None and scope.outer.type_of.get(name) == element:
                continue
            if element == _TYPES.BFLOAT16:
                yield Problem("bfloat16", name)
            elif element not in _TAKEN:
                yield Problem("data-type", name, dtypes.name(element))
    graph = subject.model.graph
    for value in real_inputs(graph):
        if value.type.tensor_type.elem_type == _TYPES.INT64:
            yield Problem("int64-input", value.name, "int64", "int32")
    for value in (*real_inputs(graph), *graph.output):
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            yield Problem("no-tensor", value.name, kind.removesuffix("_type"), "a tensor")


def shapes(subject: Subject) -> Iterator[Problem]:
    """Dimensions of the inputs that are open or impossible, and the number of gears."""
    sizes, graph = subject.sizes, subject.model.graph
    for value in real_inputs(graph):
        if value.name in sizes.shapes:
            continue
        dims = dims_of(value)
        if dims is None and value.type.HasField("tensor_type"):
            yield Problem("shape-unnamed", value.name, "no shape")
        for axis, dim in enumerate(dims or ()):
            place = f"{value.name} axis {axis}"
            if dim.dim_param:
                if dim.dim_param not in sizes.gears:
                    yield Problem("shape-open", place, f"dimension {dim.dim_param}", f"--gears {dim.dim_param}=SIZES")
            elif not dim.HasField("dim_value"):
                yield Problem("shape-unnamed", place, "no value and no name")
            elif dim.dim_value < 1:
                yield Problem("shape-not-positive", place, str(dim.dim_value), "a positive number")
    for value in (*graph.output, *graph.value_info):
        for axis, dim in enumerate(dims_of(value) or ()):
            if dim.HasField("dim_value") and dim.dim_value < 1:
                yield Problem(
                    "shape-not-positive", f"{value.name} axis {axis}", str(dim.dim_value), "a positive number"
                )
    most = subject.limit("gears")
    if sizes.gear_count > most:
        yield Problem("gears", ", ".join(sizes.gears), f"{sizes.gear_count} sizes", f"up to {most}")


def ranks(subject: Subject) -> Iterator[Problem]:
    """Tensors of too many dimensions, wherever their number is declared or follows."""
    most = subject.limit("rank")
    for scope in subject.scopes:
        for name, extent in scope.extent_of.items():
            if scope.outer is not None and scope.outer.extent_of.get(name) == extent:
                continue
            if extent.rank > most:
                yield Problem("rank", name, f"{extent.rank} dimensions", f"up to {most}")


def names(subject: Subject) -> Iterator[Problem]:
    """Names and path that a command line cannot hold, and too many inputs."""
    graph = subject.model.graph
    inputs = real_inputs(graph)
    for value in (*inputs, *graph.output):
        if not value.name or _NAME_PARTERS.search(value.name):
            yield Problem("name", value.name or "(no name)")
    most = subject.limit("inputs")
    if len(inputs) > most:
        yield Problem("inputs", "the graph", str(len(inputs)), f"up to {most}")
    if subject.path is not None:
        path = subject.path.absolute()
        if not all(_FOLDER.fullmatch(part) for part in path.parts[1:-1]) or not _FILE.fullmatch(path.name):
            yield Problem("path", str(path))


def kv_cache(subject: Subject) -> Iterator[Problem]:
    """KV caches under other names, or of another shape, than the LM Engine binds."""
    for value in real_inputs(subject.model.graph):
        dims = [dim.dim_param or dim.dim_value for dim in dims_of(value) or ()]
        if not _CACHE.search(value.name) or len(dims) < 3:
            continue
        if not (_ENGINE_CACHE.fullmatch(value.name) and len(dims) == 4 and dims[2] == 1):
            yield Problem("kv-cache", value.name, f"shape [{', '.join(map(str, dims))}]")
