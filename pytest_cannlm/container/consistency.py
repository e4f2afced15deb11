"""Whether what a model says of itself agrees with itself; what does not is a note, never an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pytest_cannlm.container import ops
from pytest_cannlm.container.cmdline import soc_asked_for, toolkit_release
from pytest_cannlm.container.layout import TASK_INFO, WEIGHTS_DATA, Dialect
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.ops import Graph, Op
from pytest_cannlm.container.partitions import PartitionEntry

ATC_VERSION, OPP_VERSION, SOC_VERSION, CMDLINE = "atc_version", "opp_version", "soc_version", "atc_cmdline"
SIZE_LIST = "om_info_list"
_SIZE_LIST_TYPES = (
    (1, "WEIGHTS_DATA"),
    (3, "TBE_KERNELS"),
    (4, "CUST_AICPU_KERNELS"),
    (2, "TASK_INFO"),
    (5, "SO_BINS"),
)

_FAMILY = re.compile(r"(\d+)\.(\d+)\b")


def attribute_notes(
    attributes: Mapping[str, AttributeValue], partitions: Sequence[PartitionEntry], dialect: Dialect
) -> Iterator[str]:
    """Contradictions among the attributes of a model, and with its partition table."""
    atc, opp = (_text(attributes, name) for name in (ATC_VERSION, OPP_VERSION))
    if atc and opp and atc != opp:
        yield f"atc_version {atc} and opp_version {opp} differ: the operator package has another version"
    command = _text(attributes, CMDLINE)
    soc = _text(attributes, SOC_VERSION)
    asked = soc_asked_for(command)
    if asked and soc and asked != soc:
        yield f"atc_cmdline has --soc_version={asked}, the attribute soc_version is {soc}"
    release = toolkit_release(command)
    if release and atc and not _may_belong(atc, release):
        yield f"atc_cmdline names the toolkit release {release}, atc_version {atc} is of another one"
    sizes = attributes.get(SIZE_LIST)
    if dialect == "ascend" and isinstance(sizes, list):
        for (kind, name), said in zip(_SIZE_LIST_TYPES, sizes, strict=False):
            there = sum(entry.size for entry in partitions if entry.type == kind)
            if said != there:
                yield f"om_info_list says {said!r} bytes of {name}, the partition table {there}"


def compiled_notes(graph: Graph, partitions: Sequence[PartitionEntry], *, weights_outside: bool) -> Iterator[str]:
    """Whether the slices that GraphOps take of TASK_INFO and WEIGHTS_DATA fit those partitions."""
    compiled = graph.of_type(ops.COMPILED_TYPE)
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


def _may_belong(internal: str, public: str) -> bool:
    """Whether a package number can be of that release: equal families since 8.2; 7.x came out as 8.0 and 8.1."""
    built, folder = _FAMILY.match(internal), _FAMILY.match(public)
    if built is None or folder is None:
        return True
    if (int(built[1]), int(built[2])) >= (8, 2):
        return built.groups() == folder.groups()
    return built[1] != "7" or folder[0] in ("8.0", "8.1")


def _text(attributes: Mapping[str, AttributeValue], name: str) -> str:
    value = attributes.get(name)
    return value if isinstance(value, str) else ""
