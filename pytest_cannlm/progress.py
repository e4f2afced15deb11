"""How long work reports itself: a rich bar on a terminal, plain lines elsewhere, silence where asked.

Everything that takes longer than a moment accepts a :class:`Progress`; nothing else in the project prints.
Output goes to the given stream (standard error by default), so that ``--json`` on standard output stays one document.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol, TextIO

_SILENCE_S = 5.0
"""How long plain progress may say nothing."""


class Task(Protocol):
    """One running piece of work."""

    def advance(self, amount: float = 1) -> None:
        """Report that ``amount`` more units are done."""

    def note(self, text: str) -> None:
        """Say what became of it; shown when the task ends (for example "cached")."""


class Progress(Protocol):
    """Where tasks are reported to."""

    def task(self, label: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Task]:
        """Open a task; ``total`` in ``unit`` if it is known ("bytes" is shown as MB)."""

    def say(self, text: str) -> None:
        """One line of its own, such as "waiting for another process that builds the same package"."""


class _SilentTask:
    def advance(self, amount: float = 1) -> None: ...

    def note(self, text: str) -> None: ...


class SilentProgress:
    """Reports nothing."""

    def task(self, label: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Task]:
        """A task that nobody sees."""
        return nullcontext(_SilentTask())

    def say(self, text: str) -> None:
        """Nothing is said."""


class _PlainTask:
    """A line every few seconds and one when the task ends: a log of short tasks stays short."""

    def __init__(self, owner: PlainProgress, label: str, total: float | None, unit: str) -> None:
        self._owner, self._label, self._total, self._unit = owner, label, total, unit
        self._done, self._note = 0.0, ""
        self._started = self._spoke = time.monotonic()

    def __enter__(self) -> Task:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds = time.monotonic() - self._started
        outcome = self._note or _outcome(error)
        self._owner.say(f"{self._label}: {outcome} ({seconds:.1f} s)")

    def advance(self, amount: float = 1) -> None:
        self._done += amount
        if not self._total:
            return
        now = time.monotonic()
        if now - self._spoke > _SILENCE_S and self._done < self._total:
            self._spoke = now
            self._owner.say(f"{self._label}: {_share(self._done, self._total, self._unit)}")

    def note(self, text: str) -> None:
        self._note = text


class PlainProgress:
    """Plain lines, for CI logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def task(self, label: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Task]:
        """A task that prints a line every few seconds and one at its end."""
        return _PlainTask(self, label, total, unit)

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, file=self._stream or sys.stderr, flush=True)


class _RichTask:
    def __init__(self, bars: Any, label: str, total: float | None) -> None:
        self._bars, self._label, self._note = bars, label, ""
        self._started = time.monotonic()
        self._id = bars.add_task(label, total=total)

    def __enter__(self) -> Task:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bars.remove_task(self._id)
        if not self._bars.tasks:
            self._bars.stop()
        outcome = self._note or _outcome(error)
        seconds = time.monotonic() - self._started
        self._bars.console.print(f"{self._label}: {outcome} ({seconds:.1f} s)", highlight=False)

    def advance(self, amount: float = 1) -> None:
        self._bars.advance(self._id, amount)

    def note(self, text: str) -> None:
        self._note = text


class RichProgress:
    """Bars on a terminal. rich is imported only when one is made."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream or sys.stderr),
            transient=True,
        )

    def task(self, label: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Task]:
        """A task shown as a bar while it runs and as one line when it ended."""
        return _RichTask(self._bars, label, total)

    def say(self, text: str) -> None:
        """Print one line above the bars."""
        self._bars.console.print(text, highlight=False)


def progress_for(stream: TextIO | None = None) -> Progress:
    """Bars if ``stream`` (standard error by default) is a terminal, plain lines if it is not."""
    target = stream or sys.stderr
    return RichProgress(target) if target.isatty() else PlainProgress(target)


def _outcome(error: BaseException | None) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "failed" if error else "done"


def _share(done: float, total: float, unit: str) -> str:
    if unit == "bytes":
        return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
    return f"{done:.0f} of {total:.0f} {unit}".strip()
