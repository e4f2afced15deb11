"""Whether a run of a vendor's tool is believed: what it said, how it ended and what it left must agree.

Tools print their success and write nothing, exit with 0 after a failure, or leave the file of an earlier run: all of it
has been seen. So every sign is looked at, and one that disagrees is enough.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.build.running import ToolRun
from pytest_cannlm.errors import BuildError
from pytest_cannlm.explain import Explanation, explain_text, lines_of

_CLOCK_S = 2.0
"""File systems keep times as coarse as this."""
_TAIL = 15
_REPORT_BYTES = 4000


@dataclass(frozen=True)
class Said:
    """What a tool printed."""

    missing: tuple[str, ...]
    """Expressions of success that nothing matched."""
    errors: tuple[Explanation, ...]
    """Errors that a table knows: each is known to make the result useless."""
    unknown: tuple[Explanation, ...]
    """Lines that look like errors and that nobody knows; tools print harmless ones."""
    tail: tuple[str, ...]


def read_log(log: Path, *, success: Sequence[str]) -> Said:
    """What the log of a run says. ``success`` are expressions for the texts that a good run prints."""
    missing, tail = dict.fromkeys(success), deque[str](maxlen=_TAIL)

    def lines() -> Iterator[str]:
        with log.open("rb") as stream:
            for line in lines_of(stream):
                for text in [text for text in missing if re.search(text, line)]:
                    del missing[text]
                tail.append(line.rstrip())
                yield line

    found = explain_text(lines())
    return Said(
        missing=tuple(missing),
        errors=tuple(one for one in found if one.known),
        unknown=tuple(one for one in found if not one.known),
        tail=tuple(tail),
    )


def disagreements(said: Said, run: ToolRun | None, files: Iterable[str]) -> list[str]:
    """Why the run is not believed, most telling first; nothing: it is. None for a run whose status says nothing."""
    return [
        *(one.cause for one in said.errors if one.cause),
        *(f'it did not say "{text}"' for text in said.missing),
        *([f"it ended with status {run.status}"] if run and run.status else []),
        *files,
    ]


def not_written(file: Path, began: float) -> str | None:
    """Why ``file`` is not what a run that began then wrote; None if it may be."""
    if not file.is_file():
        return f"it wrote no {file.name}"
    status = file.stat()
    if not status.st_size:
        return f"{file.name} is empty"
    if status.st_mtime < began - _CLOCK_S:
        return f"{file.name} is older than this run: it is the file of another one"
    return None


def failure(
    tool: str, reasons: Sequence[str], said: Said, *, log: Path, code: str, report: Path | None = None
) -> BuildError:
    """The error of a run that is not believed: its reasons, each known error in words, and the end of its log.

    Args:
        tool: its name.
        reasons: at least one.
        said: what it printed.
        log: where that is kept.
        code: of the error.
        report: a file in which the tool left details, if it is there.
    """
    cause = next(iter(said.errors), None)
    error = BuildError(
        f"{tool} failed: {reasons[0]}",
        file=log,
        found="; ".join(reasons[1:]) or None,
        remedy=cause.next if cause else f"Read the log: cannlm explain {log}",
        code=code,
    )
    for one in (*said.errors, *said.unknown):
        error.add_note(one.sentence())
    error.add_note("\n".join([f"the end of {log}:", *(f"    | {line}" for line in said.tail)]))
    if report and report.is_file():
        with report.open("rb") as stream:
            error.add_note(f"{report.name}: {stream.read(_REPORT_BYTES).decode('utf-8', 'replace')}")
    return error
