"""``cannlm explain``: codes, logs and check reports in words."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from pytest_cannlm.cli.answers import GOOD, UNKNOWN, Answer
from pytest_cannlm.errors import UsageError
from pytest_cannlm.explain import Explanation, explain_text, lines_of, meanings

_CODE = re.compile(r"\d{1,12}|0x[0-9A-Fa-f]{1,16}|[A-Z][A-Z0-9_]{2,80}")
_BEFORE_JSON = b"\xff\xfe\xef\xbb\xbf \t\r\n"
"""Byte order marks and blanks."""
_LARGEST_REPORT = 4 * 2**20
_LONGEST_LINE = 4096
_MOST_VALUES = 50
_MOST_LINES = 5
_LONGEST_VALUE = 300


def explain(sources: Sequence[str], *, family: str | None, standard_input: BinaryIO) -> Answer:
    """Explain every source: a code or its name, the path of a log or of a JSON report, or ``-`` for standard input.

    The exit code is 4 where anything is not known.

    :raises UsageError: a source is neither a file nor looks like a code, or there is no such family.
    """
    parts = [_explained(source, family, standard_input) for source in sources]
    found = [explanation for part in parts for explanation in part["explanations"]]
    unknown = sum(not explanation.known for explanation in found)
    lines = list(chain.from_iterable(map(_shown, parts)))
    data = [{**part, "explanations": [_as_data(each) for each in part["explanations"]]} for part in parts]
    return Answer({"sources": data, "unknown": unknown}, lines, UNKNOWN if unknown else GOOD)


def _explained(source: str, family: str | None, standard_input: BinaryIO) -> dict[str, Any]:
    if source == "-":
        return _read(source, standard_input)
    if _CODE.fullmatch(source):
        return {"source": source, "kind": "code", "explanations": meanings(source, family)}
    path = Path(source)
    if not path.is_file():
        raise UsageError(
            "neither a file nor a code", found=source, expected="145000, E19010, OH_NN_FAILED, LOGFILE or -"
        )
    with path.open("rb") as stream:
        return _read(source, stream)


def _read(source: str, stream: BinaryIO) -> dict[str, Any]:
    """A log; or a JSON document, such as the check report of omg, whose values are read as if they were one."""
    start = stream.read(_LARGEST_REPORT + 1)
    document = _document(start)
    if document is None:
        lines = chain(lines_of(io.BytesIO(start + stream.readline(_LONGEST_LINE))), lines_of(stream))
        return {"source": source, "kind": "log", "explanations": explain_text(lines)}
    values = list(_values(document))
    found = explain_text(text for _, text in values)
    return {
        "source": source,
        "kind": "report",
        "explanations": [replace(each, line=None, where=values[(each.line or 1) - 1][0]) for each in found],
        "values": {path: text[:_LONGEST_VALUE] for path, text in values[:_MOST_VALUES]},
        "left_out": max(0, len(values) - _MOST_VALUES),
    }


def _document(start: bytes) -> Any:
    """The object or list that the bytes are in JSON; None for everything else, also for one that is too large."""
    if len(start) > _LARGEST_REPORT or start.lstrip(_BEFORE_JSON)[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(start)
    except (ValueError, RecursionError):
        return None


def _values(document: Any) -> Iterator[tuple[str, str]]:
    """Every single value of a JSON document with its path, in the document's order."""
    waiting = [("", document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += reversed([(f"{path}.{key}" if path else key, member) for key, member in value.items()])
        elif isinstance(value, list):
            waiting += reversed([(f"{path}[{place}]", member) for place, member in enumerate(value)])
        else:
            yield path, value if isinstance(value, str) else json.dumps(value)


def _as_data(explanation: Explanation) -> dict[str, Any]:
    return {**asdict(explanation), "known": explanation.known, "sentence": explanation.sentence()}


def _shown(part: dict[str, Any]) -> Iterator[str]:
    explanations: Sequence[Explanation] = part["explanations"]
    if part["kind"] == "code":
        yield from (explanation.sentence() for explanation in explanations)
        return
    for path, text in part.get("values", {}).items():
        yield f"{path} = {text}"
    if part.get("left_out"):
        yield f"... and {part['left_out']} more values"
    if not explanations:
        yield f"{part['source']}: nothing in it is known as an error"
    for explanation in explanations:
        yield from _paragraph(explanation)


def _paragraph(explanation: Explanation) -> Iterator[str]:
    """One error of a log: where it stands, what it means, what to do, and the lines that say it."""
    place = explanation.where or f"line {explanation.line}"
    if explanation.times > 1:
        place += f" and {explanation.times - 1} more"
    yield f"{'First error' if explanation.first else 'Then'}, {place}: {explanation.sentence()}"
    if explanation.subject != explanation.lines[0]:
        yield from (f"    | {line}" for line in explanation.lines[:_MOST_LINES])
        if len(explanation.lines) > _MOST_LINES:
            yield "    | ..."
