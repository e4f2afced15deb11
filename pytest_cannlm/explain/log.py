"""A log in words: which errors it holds, in order, the first one first. Reads line by line with bounded memory.

A line that is known as noise is dropped. A line with a message code starts a block: the plain lines that follow belong
to it, because converters give the code once and then list the rest without it. What looks like an error and is in no
table is shown as unknown. Error lines that repeat are counted once with what each of them names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from pytest_cannlm.explain.causes import KnownText, causes, named_in
from pytest_cannlm.explain.codes import MESSAGE_CODE, explain_code
from pytest_cannlm.explain.explanation import Explanation

_LONGEST = 4096
_SHOWN = 300
_MOST_LINES = 20
_MOST_ITEMS = 100
_MOST_KINDS = 200
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xef\xbb\xbf")

# A record of a log has its level in front: [ERROR] of CANN, E/TAG of omg, "06-01 12:00:00.000 1 2 E" of hilog.
_RECORD = re.compile(
    r"\s{0,40}(?:\[(ERROR|FATAL|WARNING|WARN|INFO|DEBUG|EVENT|TRACE)\]|([DIWEF])/[A-Z]"
    r"|(?:\d{4}-)?\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{1,6} {1,8}\d{1,10} {1,8}\d{1,10} ([DIWEF]) )"
)
_BAD_LEVELS = {"ERROR", "FATAL", "E", "F"}
# A number is a code only where its digits are those of a family and the words before it say that it is one.
_NUMBER = re.compile(r"(?<![\w.])[1235](?:00|07|45)\d{3}(?!\w|\.\d)")
_SAYS_CODE = re.compile(
    r"(?:ret\w{0,8}|err\w{0,8}|code|result|status|acl\w{1,60})\W{0,8}(?:code|is|was)?\W{0,6}$", re.IGNORECASE
)
_CALL = re.compile(r"(OH_NN|HMS_)(\w{1,60}).{0,20}?(?:ret\w{0,6}|code|=)\W{0,6}(\d{1,2})(?!\d)")


def explain_text(lines: Iterable[str]) -> list[Explanation]:
    """Every error that the lines hold, as they come; the first is marked.

    A line that only repeats that something failed ("ATC run failed") comes behind those that say why.
    """
    log = _Log()
    for number, line in enumerate(lines, 1):
        log.take(number, line[:_LONGEST].rstrip())
    found = sorted(log.findings.values(), key=lambda finding: finding.summary)
    return [replace(finding.explanation(), first=place == 0) for place, finding in enumerate(found)]


def likely_cause(lines: Iterable[str], ended_by: str) -> Explanation | None:
    """What ended a process: what its last lines say first, how it ended (``SIGKILL``) second; None if nothing tells."""
    for explanation in explain_text(lines):
        if explanation.known:
            return explanation
    how = explain_code(ended_by.rpartition("(")[2].rstrip(")"), "process")
    return how if how.known else None


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """The lines of a log of any size and any bytes; of a line that is too long only the beginning is kept.

    Windows redirects into UTF-16, whose plain letters are those of ASCII with a zero beside each.
    """
    while raw := stream.readline(_LONGEST):
        line = raw
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(_LONGEST)
        for mark in _BYTE_ORDER_MARKS:
            line = line.removeprefix(mark)
        yield line.replace(b"\0", b"").decode("utf-8", "replace")


@dataclass
class _Finding:
    """One kind of error while a log is read."""

    what: Explanation
    line: int
    summary: bool = False
    patterns: tuple[re.Pattern[str], ...] = ()
    times: int = 0
    items: dict[str, None] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        if len(self.lines) < _MOST_LINES:
            self.lines.append(" ".join(line.strip()[:_SHOWN].splitlines()))
        for item in named_in(line, self.patterns):
            self.items.setdefault(item if len(self.items) < _MOST_ITEMS else "…")

    def explanation(self) -> Explanation:
        return replace(self.what, line=self.line, times=self.times, items=tuple(self.items), lines=tuple(self.lines))


class _Log:
    """What was found so far, and the block that plain lines belong to."""

    def __init__(self) -> None:
        self.findings: dict[object, _Finding] = {}
        self._block: _Finding | None = None

    def take(self, number: int, line: str) -> None:
        block, self._block = self._block, None
        if not line:
            return
        text = causes().text_in(line)
        codes = MESSAGE_CODE.findall(line)
        error = next((code for code in codes if code[0] == "E"), None)
        if error:
            said = None if text and text.noise else text
            self._block = self._found(number, line, said, explain_code(error, "message"))
            return
        if codes or (text and text.noise):
            return
        record = _RECORD.match(line)
        what = _numeric_code(line)
        if text or what:
            self._found(number, line, text, what)
            self._block = None if record else block
        elif record and _BAD_LEVELS & set(record.groups()):
            self._found(number, line, None, Explanation(None))
        elif block and not record:
            self._block = block
            block.add(line)

    def _found(self, number: int, line: str, text: KnownText | None, coded: Explanation | None) -> _Finding:
        """Count ``line`` to the finding that it repeats, or begin a new one; a known text says more than its code."""
        what = coded or Explanation(None)
        if text:
            what = replace(what, family=text.family, cause=text.cause, next=text.next, place=None)
        # a line that no table knows is told apart by its words: its digits are times, addresses and counts
        key: object = (text.pattern if text else None, what.family, what.code)
        if text is None and what.code is None:
            key = re.sub(r"\d+", "#", line)
        if key not in self.findings and len(self.findings) >= _MOST_KINDS and not what.known:
            key, what = "further", Explanation(None, name="further errors")
        if key not in self.findings:
            self.findings[key] = _Finding(what, number, bool(text and text.summary), _items_of(text, what))
        finding = self.findings[key]
        finding.times += 1
        finding.add(line)
        return finding


def _items_of(text: KnownText | None, what: Explanation) -> tuple[re.Pattern[str], ...]:
    if text and text.items:
        return text.items
    return next((known.items for known in causes().codes if known.code == what.code), ())


def _numeric_code(line: str) -> Explanation | None:
    """The return code that a line speaks of, if any."""
    for match in _NUMBER.finditer(line):
        if _SAYS_CODE.search(line[max(0, match.start() - 80) : match.start()]):
            return explain_code(match[0])
    call = _CALL.search(line) if "OH_NN" in line or "HMS_" in line else None
    if call is None or call[3].strip("0") == "":
        return None
    return explain_code(int(call[3]), "HiAI compatibility" if "HiAICompatibility" in call[2] else "OH_NN")
