"""A log in words: which errors it holds, in order, the first one first. Reads line by line with bounded memory.

What each line is, :func:`pytest_cannlm.explain.line.judge` says. What looks like an error and is in no table is shown
as unknown. Error lines that repeat are counted once with what each of them names. Of a Python traceback the last line
counts, which names the exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from pytest_cannlm.explain.causes import KnownText, causes, named_in
from pytest_cannlm.explain.codes import explanation_of
from pytest_cannlm.explain.explanation import Explanation
from pytest_cannlm.explain.line import judge

_LONGEST = 4096
_SHOWN = 300
_MOST_LINES = 20
_MOST_ITEMS = 100
_MOST_KINDS = 200
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xef\xbb\xbf")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_OF_A_LOG = ": cannlm explain LOGFILE"
_TRACEBACK = "Traceback (most recent call last):"


def explain_text(lines: Iterable[str]) -> list[Explanation]:
    """Every error that the lines hold: the first, which is marked, then the others as they come.

    A line that only repeats that something failed ("ATC run failed") is the first where no other says why.
    """
    found = _findings(lines)
    first = next((finding for finding in found if not finding.summary), found[0] if found else None)
    found.sort(key=lambda finding: (finding is not first, finding.line))
    return [replace(finding.explanation(), first=finding is first) for finding in found]


def likely_cause(lines: Iterable[str], ended_by: str) -> Explanation | None:
    """What ended a process: what its last lines say first, how it ended (``SIGKILL``) second; None if nothing tells."""
    for finding in sorted(_findings(lines), key=lambda finding: finding.summary):
        if finding.what.known:
            return finding.explanation()
    known = causes().named(ended_by.rpartition("(")[2].rstrip(")"))
    return next((explanation_of(how) for how in known if how.family == "process" and not how.summary), None)


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


def _findings(lines: Iterable[str]) -> list[_Finding]:
    """Every error, in the order in which they were understood: a traceback by its end."""
    log = _Log()
    for number, line in enumerate(lines, 1):
        log.take(number, _COLOUR.sub("", line[:_LONGEST]).rstrip())
    log.end()
    return list(log.findings.values())


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
        """What is known, without the advice to read the log that this is."""
        return replace(
            self.what,
            next=self.what.next and self.what.next.removesuffix(_OF_A_LOG),
            line=self.line,
            times=self.times,
            items=tuple(self.items),
            lines=tuple(self.lines),
        )


class _Log:
    """What was found, the block that plain lines belong to, and a traceback that has not yet named its exception."""

    def __init__(self) -> None:
        self.findings: dict[object, _Finding] = {}
        self._block: _Finding | None = None
        self._traceback: tuple[int, str] | None = None

    def take(self, number: int, line: str) -> None:
        if line.startswith(_TRACEBACK) or not line:
            self.end()
            self._traceback = (number, line) if line else None
            return
        if self._traceback and line[0] in " \t":
            return
        judged = judge(line, inside=self._block is not None, raised=self._traceback is not None)
        block, self._block, self._traceback = self._block, None, None
        if judged.error:
            finding = self._found(number, line, judged.text, judged.code)
            self._block = finding if judged.block == "opens" else None
        elif block and judged.block == "goes on":
            block.add(line)
        if judged.block == "goes on":
            self._block = block

    def end(self) -> None:
        """What was open does not go on: a traceback that was cut off is an error too."""
        if self._traceback:
            self._found(*self._traceback, None, None)
        self._block = self._traceback = None

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
