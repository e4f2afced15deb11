"""Element types of values: their names, and how they follow from node to node where that is beyond doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from typing import TypeVar

import onnx

_Item = TypeVar("_Item")
_OPSET = 18
"""The last opset that converters take: by its schemas types follow. Newer operators have those of their first one."""
_CHOOSES = ("to", "dtype", "output_datatype", "value")
"""Attributes that choose the type of the output."""


@dataclass(frozen=True)
class _Signature:
    """What the schema of an operator says of types.

    Attributes:
        inputs, outputs: names of types; those of one name are equal, an empty one is like no other. The last repeats.
        fixed: for each output its type, where the operator knows one only.
        chosen: the attribute of :data:`_CHOOSES` that the operator has; empty if it has none.
        default: the type without that attribute; 0: that of the first input.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fixed: tuple[int | None, ...]
    chosen: str
    default: int


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
    signature = _signature(node.op_type) if node.domain in ("", "ai.onnx") else None
    if signature is None:
        return
    for output, found in zip(node.output, _types(node, signature, known), strict=False):
        if found and output:
            known.setdefault(output, found)


def _types(node: onnx.NodeProto, signature: _Signature, known: dict[str, int]) -> Iterator[int | None]:
    """The types of the outputs, as many as one asks for."""
    if signature.chosen:
        given = next((each for each in node.attribute if each.name == signature.chosen), None)
        first = known.get(node.input[0]) if node.input else None
        yield (given.i or given.t.data_type) if given is not None else signature.default or first
        return
    like: dict[str, int] = {}
    for value, kind in zip(node.input, _endless(signature.inputs), strict=False):
        if value in known:
            like.setdefault(kind, known[value])
    for kind, fixed in zip(_endless(signature.outputs), _endless(signature.fixed), strict=False):
        yield fixed or like.get(kind)


def _endless(items: tuple[_Item, ...]) -> Iterable[_Item]:
    return chain(items, repeat(items[-1])) if items else ()


@lru_cache(maxsize=512)
def _signature(operator: str) -> _Signature | None:
    """None for an operator that the standard domain does not have."""
    if not onnx.defs.has(operator, ""):
        return None
    try:
        schema = onnx.defs.get_schema(operator, _OPSET, "")
    except onnx.defs.SchemaError:
        schema = onnx.defs.get_schema(operator, "")
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    chosen = next((each for each in _CHOOSES if each in schema.attributes), "")
    default = schema.attributes[chosen].default_value.i if chosen else 0
    return _Signature(
        inputs=tuple(each.type_str if each.is_homogeneous else "" for each in schema.inputs),
        outputs=tuple(each.type_str for each in schema.outputs),
        fixed=tuple(_only(allowed.get(each.type_str, [each.type_str])) for each in schema.outputs),
        chosen=chosen,
        default=onnx.TensorProto.FLOAT if operator == "ConstantOfShape" else default,
    )


def _only(types: list[str]) -> int | None:
    """The element type, if these are one type of tensor: ``tensor(int64)``."""
    if len(types) != 1 or not types[0].startswith("tensor("):
        return None
    return int(onnx.TensorProto.DataType.Value(types[0].removeprefix("tensor(").removesuffix(")").upper()))
