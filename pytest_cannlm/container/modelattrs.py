"""The few facts of a ModelDef that are wanted without its graph: a walk over the wire that seeks past the rest.

ModelDef: graph 7, attr 11 map<string, AttrDef>. GraphDef: op 6. OpDef: type 2, attr 10. AttrDef: list 1, s 2 (bytes),
i 3, f 4, b 5, bt 7, dt 15. ListValue: s 2, i 3, f 4, b 5, bt 7, dt 12. Valid for Python 3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from pytest_cannlm.container.source import Source
from pytest_cannlm.container.wire import BYTES, FIXED32, VARINT, Field, Walk, WireError

Scalar = str | bytes | int | float | bool
AttributeValue = Scalar | list[Scalar]

MAX_VALUE = 64 * 1024
"""Longer values are no facts about a model but data (kernels, tables); they are left out."""
MAX_TOTAL = 1024 * 1024
"""All values of one answer together; as a list of numbers they take up to forty times as much memory."""
MAX_KEY = 1024

MODEL_GRAPH, MODEL_ATTR = 7, 11
GRAPH_OP, OP_NAME, OP_TYPE, OP_ATTR = 6, 1, 2, 10
ATTR_LIST, ATTR_S, ATTR_I, ATTR_F, ATTR_B, ATTR_BT, ATTR_DT = 1, 2, 3, 4, 5, 7, 15
LIST_S, LIST_I, LIST_F, LIST_B, LIST_BT, LIST_DT = 2, 3, 4, 5, 7, 12

GRAPHOP_WEIGHT_SIZE = "graphop_weight_size"


def read_attributes(
    source: Source, start: int, end: int, *, names: Collection[str] | None, max_value: int
) -> dict[str, AttributeValue]:
    """Attributes of the ModelDef at ``start..end``; :class:`WireError` if it is none or has no graph."""
    found = AttributeValues(max_value)
    graphs = 0
    walk = Walk(source)
    for part in walk.fields(start, end):
        if part.number == MODEL_GRAPH and part.wire_type == BYTES:
            graphs += 1
        if part.number != MODEL_ATTR or part.wire_type != BYTES:
            continue
        key, value_at = read_map_entry(walk, part)
        if value_at is not None and (names is None or key in names):
            found.add(walk, key, value_at)
    if not graphs:
        raise WireError("it has no graph")
    return found.values


class AttributeValues:
    """Attributes as they are read, without those over ``max_value`` bytes, or over ``MAX_TOTAL`` together."""

    def __init__(self, max_value: int) -> None:
        self.values: dict[str, AttributeValue] = {}
        self._max_value = max_value
        self._total = 0

    def add(self, walk: Walk, key: str, value_at: Field) -> None:
        """Read one; the last of two equal keys wins, even if it is one that is left out."""
        self._total += value_at.size if value_at.size <= self._max_value else 0
        value = read_value(walk, value_at, self._max_value) if self._total <= MAX_TOTAL else None
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value


def read_graphop_weight_size(source: Source, start: int, end: int) -> int | None:
    """graphop_weight_size of the main graph's first GraphOp; a model with weights outside has exactly one."""
    walk = Walk(source)
    graph = next((part for part in walk.fields(start, end) if part.number == MODEL_GRAPH), None)
    if graph is None or graph.wire_type != BYTES:
        return None
    for op in walk.fields(graph.start, graph.end):
        if op.number == GRAPH_OP and op.wire_type == BYTES:
            size = _weight_size_of(walk, op)
            if size is not None:
                return size
    return None


def read_map_entry(walk: Walk, entry: Field) -> tuple[str, Field | None]:
    """Key and value field of a map<string, ...> entry; a key that is no text or is too long reads as ''."""
    key, value = "", None
    for part in walk.fields(entry.start, entry.end):
        if part.number == 1 and part.wire_type == BYTES and part.size <= MAX_KEY:
            key = walk.raw(part).decode("utf-8", errors="replace")
        elif part.number == 2 and part.wire_type == BYTES:
            value = part
    return key, value


def read_value(walk: Walk, attribute: Field, max_value: int) -> AttributeValue | None:
    """The value of an AttrDef; None if it is of a kind that is left out."""
    value: AttributeValue | None = None
    for part in walk.fields(attribute.start, attribute.end):
        if part.number == ATTR_LIST and part.wire_type == BYTES:
            value = _read_list(walk, part) if part.size <= max_value else None
        else:
            value = _read_scalar(walk, part, max_value, _ATTR_KINDS)
    return value


_ATTR_KINDS = {ATTR_S: "text", ATTR_BT: "bytes", ATTR_I: "int", ATTR_DT: "int", ATTR_F: "float", ATTR_B: "bool"}
_LIST_KINDS = {LIST_S: "text", LIST_BT: "bytes", LIST_I: "int", LIST_DT: "int", LIST_F: "float", LIST_B: "bool"}


def _read_scalar(walk: Walk, part: Field, max_value: int, kinds: dict[int, str]) -> Scalar | None:
    kind = kinds.get(part.number)
    if kind in ("text", "bytes") and part.wire_type == BYTES and part.size <= max_value:
        raw = walk.raw(part)
        return _text(raw) if kind == "text" else raw
    if kind in ("int", "bool") and part.wire_type == VARINT:
        return bool(part.value) if kind == "bool" else part.signed
    if kind == "float" and part.wire_type == FIXED32:
        number: float = struct.unpack("<f", walk.raw(part))[0]
        return number
    return None


def _read_list(walk: Walk, part: Field) -> list[Scalar]:
    values: list[Scalar] = []
    for item in walk.fields(part.start, part.end):
        kind = _LIST_KINDS.get(item.number)
        if item.wire_type == BYTES and kind in ("int", "bool"):
            values += [bool(v.value) if kind == "bool" else v.signed for v in walk.varints(item)]
        elif item.wire_type == BYTES and kind == "float":
            if item.size % 4:
                raise WireError(f"{item.size} bytes of packed floats at offset {item.start}")
            values += struct.unpack(f"<{item.size // 4}f", walk.raw(item))
        else:
            scalar = _read_scalar(walk, item, part.size, _LIST_KINDS)
            if scalar is not None:
                values.append(scalar)
    return values


def _weight_size_of(walk: Walk, op: Field) -> int | None:
    size = None
    for part in walk.fields(op.start, op.end):
        if part.wire_type != BYTES:
            continue
        if part.number == OP_TYPE and (part.size != 7 or walk.raw(part) != b"GraphOp"):
            return None
        if part.number == OP_ATTR:
            key, value_at = read_map_entry(walk, part)
            if key == GRAPHOP_WEIGHT_SIZE and value_at is not None:
                value = read_value(walk, value_at, MAX_KEY)
                size = value if isinstance(value, int) else None
    return size


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw
