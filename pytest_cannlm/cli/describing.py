"""What ``cannlm inspect`` found, as a page for people: sections with a heading, what is odd about the file last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_cannlm.compat.chips import DEFAULT_PLATFORM_CHIP, chip_of_platform, same_chip
from pytest_cannlm.compat.origin import contradiction_notes
from pytest_cannlm.compat.versions import Pairs
from pytest_cannlm.measure.units import format_bytes

Facts = Mapping[str, Any]

_HEADER = (
    ("model_name", "name"),
    ("header_version", "container"),
    ("platform_version", "platform"),
    ("variable_bytes", "variables"),
    ("need_check_os_cpu_info", "checks host"),
)
_ORIGIN = (
    ("soc_version", "chip"),
    ("kirin_platform", "platform code"),
    ("kirin_ids", "platform ids"),
    ("arch_type", "architecture"),
    ("atc_version", "CANN version"),
    ("opp_version", "of operators"),
    ("framework_type", "from"),
    ("host_env_os", "host system"),
    ("host_env_cpu", "host CPU"),
    ("atc_cmdline", "command"),
)
_SHOWN_TYPES = 20
_LABEL = 16
_LONGEST_VALUE = 120
"""Characters; the whole stands in the JSON."""


def described(facts: Facts) -> list[str]:
    """Lines for what ``pytest_cannlm.container.inspect.describe`` returns; what the file does not say is left out."""
    return list(_page(facts))


def with_contradictions(facts: Facts, version_pairs: Pairs = ()) -> dict[str, Any]:
    """The facts with a note on whatever a model says of its origin in two ways, as the gate judges it too."""
    models = facts.get("models") or [facts]
    platform = facts.get("kirin_platform")
    found = [
        f"model {number}: {note}" if len(models) > 1 else note
        for number, model in enumerate(models)
        for note in contradiction_notes(model, platform=platform, version_pairs=version_pairs)
    ]
    return {**facts, "notes": [*facts["notes"], *found]} if found else dict(facts)


def _page(facts: Facts) -> Iterator[str]:
    if facts["error"]:
        yield f"{facts['error']}: {facts['message']}"
        yield from _section("", _pairs(facts, (("field", "field"), ("found", "found"), ("expected", "expected"))))
        if facts.get("remedy"):
            yield f"  {facts['remedy']}."
    if "kind" in facts:
        if facts["error"]:
            yield ""
        yield from _container(facts)
    elif facts.get("bytes") is not None:
        yield from _section("", [("size", _size(facts["bytes"]))])


def _container(facts: Facts) -> Iterator[str]:
    kind = facts["modeltype_name"] or f"model type {facts['modeltype']}"
    yield f"{facts['kind']} ({facts['dialect']}, layout {facts['layout']}, {kind}), {_size(facts['bytes'])}"
    yield from _section("", _pairs(facts, _HEADER))
    origin = {**facts, "kirin_platform": _platform(facts.get("kirin_platform"), facts.get("soc_version"))}
    yield from _section("Made with and for", _pairs(origin, _ORIGIN))
    several = facts.get("models")
    if several:
        for number, model in enumerate(several):
            yield from _heading(f"Model {number} {model.get('name', '')}".rstrip())
            yield from _indented(_model(model))
    else:
        yield from _model(facts)
    yield from _submodels(facts.get("submodels", ()))
    yield from _section("TASK_INFO", _records(facts.get("task_sections", ())))
    yield from _section("Notes", facts.get("notes", ()))


def _platform(code: int | None, soc: str | None) -> str | None:
    """A platform code with its chip; converters also write the default one for chips that they do not know."""
    if not code:
        return None
    chip = chip_of_platform(code)
    doubted = chip and chip == DEFAULT_PLATFORM_CHIP and not same_chip(soc or "", chip)
    doubt = " or a chip without a code" if doubted else ""
    return f"{code}, {chip or 'no known name'}{doubt}"


def _model(facts: Facts) -> Iterator[str]:
    rows = [(name, f"{format_bytes(size):>10} at {offset:,}") for _, name, offset, size in facts.get("partitions", ())]
    yield from _section("Partitions", rows)
    for key in ("inputs", "outputs"):
        yield from _section(key.capitalize(), [(tensor["name"], _tensor(tensor)) for tensor in facts.get(key, ())])
    yield from _section("Choices", [(name, str(values)) for name, values in facts.get("choices", {}).items()])
    if "graph" in facts:
        yield from _graph(facts["graph"])
    yield from _section("Compiled parts", [(op["name"], _compiled(op)) for op in facts.get("graph_ops", ())])
    files = [(item["file"], _needed(item["bytes"])) for item in facts.get("external_weights", ())]
    yield from _section("Weights outside the file", files)
    yield from _section("Attributes", list(_attributes(facts.get("attributes", {}))))
    if "message" in facts and "kind" not in facts:
        yield f"  {facts['message']}"


def _attributes(attributes: Facts) -> Iterator[tuple[str, str]]:
    """Attributes that are not empty and do not stand under their own heading already."""
    for name, value in attributes.items():
        if value not in ("", []) and name not in dict(_ORIGIN):
            yield name, _short(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _graph(graph: Facts) -> Iterator[str]:
    types = list(graph["op_types"].items())
    rest = sum(count for _, count in types[_SHOWN_TYPES:])
    rows = [(kind, f"{count:>6}") for kind, count in types[:_SHOWN_TYPES]]
    if rest:
        rows.append((f"{len(types) - _SHOWN_TYPES} more types", f"{rest:>6}"))
    title = f"Graph {graph['name']}: {graph['ops']} ops"
    if graph["subgraphs"]:
        title += f", {graph['subgraphs']} subgraphs beside it"
    yield from _section(title, rows)


def _submodels(submodels: Sequence[Facts]) -> Iterator[str]:
    for number, submodel in enumerate(submodels):
        name = submodel.get("name") or submodel.get("model_name") or ""
        yield from _heading(f"Submodel {number} {name}".rstrip())
        if submodel.get("error"):
            yield f"  {submodel['error']}: {submodel['message']}"
        elif "message" in submodel:
            yield f"  {submodel['message']}"
        labels = (("type", "type"), ("file", "file"), ("dialect", "dialect"), ("layout", "layout"))
        rows = _pairs(submodel, (*labels, ("modeltype_name", "model type")))
        if "bytes" in submodel:
            rows.append(("size", _size(submodel["bytes"])))
        yield from _rows([*rows, *((name, format_bytes(size)) for _, name, _, size in submodel.get("partitions", ()))])
        yield from _indented(_submodels(submodel.get("submodels", ())))
        yield from _rows(submodel.get("notes", ()))


def _tensor(tensor: Facts) -> str:
    shape = ", ".join(map(str, tensor["shape"]))
    size = f", {format_bytes(tensor['bytes'])}" if tensor.get("bytes") else ""
    other = tensor.get("inner") or tensor.get("outer")
    text = f"{tensor['dtype']} [{shape}] {tensor['format']}{size}"
    if other and (other["dtype"], list(other["shape"])) != (tensor["dtype"], list(tensor["shape"])):
        where = "inside" if tensor.get("inner") else "outside"
        text += f"; {where} {other['dtype']} [{', '.join(map(str, other['shape']))}] {other['format']}"
    return text


def _compiled(op: Facts) -> str:
    slices = [
        f"{what} {format_bytes(op[f'{what}_bytes'])} at {op[f'{what}_offset'] or 0:,}"
        for what in ("task", "weight")
        if op[f"{what}_bytes"] is not None
    ]
    return ", ".join([op["cl_name"] or "no executor named", *slices])


def _needed(size: int | None) -> str:
    return "size not said" if size is None else _size(size)


def _records(records: Sequence[Sequence[int]]) -> list[tuple[str, str]]:
    return [(f"record of type {kind}", format_bytes(size)) for kind, size in records]


def _size(size: int) -> str:
    return format_bytes(size) if size < 1024 else f"{format_bytes(size)} ({size:,} bytes)"


def _pairs(facts: Facts, labels: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, _short(str(facts[key]))) for key, label in labels if facts.get(key) not in (None, "", [], 0)]


def _short(text: str) -> str:
    """A value on one line that people read."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text):,} characters)"


def _section(title: str, rows: Sequence[tuple[str, str] | str]) -> Iterator[str]:
    """A heading and its rows; nothing without rows."""
    if rows:
        if title:
            yield from _heading(title)
        yield from _rows(rows)


def _heading(title: str) -> Iterator[str]:
    yield ""
    yield title


def _rows(rows: Sequence[tuple[str, str] | str]) -> Iterator[str]:
    width = min(max((len(row[0]) for row in rows if isinstance(row, tuple)), default=0), 3 * _LABEL)
    for row in rows:
        yield f"  {row}" if isinstance(row, str) else f"  {row[0]:<{max(width, _LABEL)}}  {row[1]}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else line for line in lines)
