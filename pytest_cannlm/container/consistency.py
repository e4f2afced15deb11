"""Whether what a model says of itself agrees with itself; what does not is a note, never an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_cannlm.container import ops
from pytest_cannlm.container.layout import TASK_INFO, WEIGHTS_DATA, Dialect
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.ops import Graph, Op
from pytest_cannlm.container.partitions import PartitionEntry
from pytest_cannlm.container.validate import one_line

SIZE_LIST = "om_info_list"
_SIZE_LIST_TYPES = (
    (1, "WEIGHTS_DATA"),
    (3, "TBE_KERNELS"),
    (4, "CUST_AICPU_KERNELS"),
    (2, "TASK_INFO"),
    (5, "SO_BINS"),
)


def size_notes(
    attributes: Mapping[str, AttributeValue], partitions: Sequence[PartitionEntry], dialect: Dialect
) -> Iterator[str]:
    """Where the sizes that a model lists are not those of its partition table."""
    sizes = attributes.get(SIZE_LIST)
    if dialect == "ascend" and isinstance(sizes, list):
        for (kind, name), said in zip(_SIZE_LIST_TYPES, sizes, strict=False):
            there = sum(entry.size for entry in partitions if entry.type == kind)
            if said != there:
                yield f"om_info_list says {said!r} bytes of {name}, the partition table {there}"


def compiled_notes(graph: Graph, partitions: Sequence[PartitionEntry], *, weights_outside: bool) -> Iterator[str]:
    """Whether the slices that GraphOps take of TASK_INFO and WEIGHTS_DATA fit those partitions."""
    yield from one_line(_misfits(graph.of_type(ops.COMPILED_TYPE), partitions, weights_outside=weights_outside))


def _misfits(compiled: Sequence[Op], partitions: Sequence[PartitionEntry], *, weights_outside: bool) -> Iterator[str]:
    slices = [("task", TASK_INFO, ops.TASK_OFFSET, ops.TASK_SIZE)]
    if not weights_outside:
        slices.append(("weight", WEIGHTS_DATA, ops.WEIGHT_OFFSET, ops.WEIGHT_SIZE))
    for what, kind, offset_name, size_name in slices:
        found = [entry for entry in partitions if entry.type == kind]
        if len(found) > 1:  # one per shape: which of them a GraphOp means is not said
            continue
        there = found[0].size if found else 0
        for op in compiled:
            offset, size = op.number(offset_name) or 0, op.number(size_name)
            if size is None:
                continue
            if offset < 0 or size < 0 or offset + size > there:
                yield f"{op.name} takes {what} bytes {offset} to {offset + size}, the partition has {there}"
            elif len(compiled) == 1 and size != there:
                yield f"{op.name} takes {size} {what} bytes, the partition has {there}"


def weight_files(graph: Graph) -> dict[str, int | None]:
    """Files that FileConstant ops read their weights from, and their least size in bytes; None where not said."""
    needed: dict[str, int | None] = {}
    for op in graph.of_type(ops.FILE_TYPE):
        name = _location(op)
        offset, length = op.number(ops.FILE_OFFSET) or 0, op.number(ops.FILE_LENGTH)
        end = offset + length if length else None
        known = needed.get(name)
        needed[name] = known if end is None else max(end, known or 0)
    return needed


def _location(op: Op) -> str:
    named = (op.attrs.get(name) for name in ops.FILE_LOCATION)
    return next((value for value in named if isinstance(value, str) and value), f"(not named by {op.name})")
