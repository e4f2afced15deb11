"""``cannlm explain``: codes, logs and check reports in words, those of engines and converters and our own."""

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
from pytest_cannlm.cli.codes import own_families, own_meaning
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
_NUMBER = re.compile(r"-?\d{1,12}")
_NOT_IN_TEXTS = re.compile(rb"[\0-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_IN_TEXTS = 0.02
"""Share of bytes that are no text; of random ones every tenth is such a byte, of a model most are zeros."""
_JUDGED_BYTES = 1 << 16


def explain(sources: Sequence[str], *, family: str | None, standard_input: BinaryIO) -> Answer:
    """Explain every source: a code or its name, the path of a log or of a JSON report, or ``-`` for standard input.

    The exit code is 4 where anything is not known, and for a source that holds no text.

    :raises UsageError: a source is neither a file nor looks like a code, or there is no such family.
    """
    parts = [_explained(source, family, standard_input) for source in sources]
    found = [explanation for part in parts for explanation in part["explanations"]]
    unknown = sum(not explanation.known for explanation in found) + sum(part["kind"] == "no text" for part in parts)
    lines = list(chain.from_iterable(map(_shown, parts)))
    data = [{**part, "explanations": [_as_data(each) for each in part["explanations"]]} for part in parts]
    return Answer({"sources": data, "unknown": unknown}, lines, UNKNOWN if unknown else GOOD)


def _explained(source: str, family: str | None, standard_input: BinaryIO) -> dict[str, Any]:
    if source == "-":
        return _read(source, standard_input)
    if _CODE.fullmatch(source):
        return {"source": source, "kind": "code", "explanations": _meanings(source, family)}
    path = Path(source)
    if not path.is_file():
        found = _meanings(source, family)  # in small letters only what is a code for sure: the rest is a missing file
        if found[0].known or found[0].family not in (None, family):
            return {"source": source, "kind": "code", "explanations": found}
        raise UsageError(
            "neither a file nor a code", found=source, expected="145000, E19010, OH_NN_FAILED, PKG030, LOGFILE or -"
        )
    with path.open("rb") as stream:
        return _read(source, stream)


def _meanings(code: str, family: str | None) -> tuple[Explanation, ...]:
    ours = next((name for name in own_families() if family and name.casefold() == family.casefold()), None)
    own = own_meaning(code, ours) if ours or family is None else None
    if ours:
        own = own or Explanation(ours, code)
    return (own,) if own else meanings(code, family)


def _read(source: str, stream: BinaryIO) -> dict[str, Any]:
    """A log; or a JSON document, such as the check report of omg, whose values are read as if they were one."""
    start = stream.read(_LARGEST_REPORT + 1)
    document = _document(start)
    if document is None:
        lines = chain(lines_of(io.BytesIO(start + stream.readline(_LONGEST_LINE))), lines_of(stream))
        found = explain_text(lines)
        kind = "log" if found or _is_text(start[:_JUDGED_BYTES]) else "no text"
        return {"source": source, "kind": kind, "explanations": found}
    values = list(_values(document))
    found = explain_text(_as_line(path, text) for path, text in values)
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


def _is_text(start: bytes) -> bool:
    """Whether these first bytes of a file may be a text, in UTF-8, in UTF-16 by its mark, or in an older encoding."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        start = start.decode("utf-16", "replace").encode("utf-8", "replace")
    return bool(start.strip()) and len(_NOT_IN_TEXTS.findall(start)) <= _MOST_IN_TEXTS * len(start)


def _as_line(path: str, text: str) -> str:
    """A value as a log would say it: a number alone says nothing, and its key says whether it is a code."""
    return f"{path.rpartition('.')[2]} = {text}" if _NUMBER.fullmatch(text) else text


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
    if part["kind"] == "no text":
        yield f"{part['source']}: not known: it holds no text"
    elif not explanations:
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
