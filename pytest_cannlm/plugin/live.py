"""Progress inside pytest: shown while the test that waits for it runs, past pytest's capturing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TextIO

import pytest

from pytest_cannlm.progress import PlainProgress, Progress, Task, progress_for


class LiveProgress:
    """A progress whose lines reach the terminal although pytest captures what tests print."""

    def __init__(self, config: pytest.Config, *, worker: str | None = None) -> None:
        """``worker`` is the id of a worker of a parallel run; its lines start with it, and there are no bars."""
        self._config = config
        self._prefix = f"[{worker}] " if worker else ""
        self._depth = 0

    @contextmanager
    def task(self, label: str, total: float | None = None, unit: str = "") -> Iterator[Task]:
        """A task; capturing is suspended until it ends."""
        with self._uncaptured() as stream, self._on(stream).task(self._prefix + label, total, unit) as task:
            yield task

    def say(self, text: str) -> None:
        """Print one line."""
        with self._uncaptured() as stream:
            self._on(stream).say(self._prefix + text)

    def _on(self, stream: TextIO) -> Progress:
        return PlainProgress(stream) if self._prefix else progress_for(stream)

    @contextmanager
    def _uncaptured(self) -> Iterator[TextIO]:
        """Standard error as it was before pytest took it. Nested tasks suspend capturing once."""
        manager: Any = self._config.pluginmanager.getplugin("capturemanager")
        suspended: AbstractContextManager[Any] = nullcontext()
        if manager is not None and self._depth == 0:
            suspended = manager.global_and_fixture_disabled()
        self._depth += 1
        try:
            with suspended:
                terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
                if terminal is not None and self._depth == 1:
                    terminal.ensure_newline()
                    if self._config.get_terminal_writer().width_of_current_line:  # the dots of -q
                        terminal.line("")
                yield sys.stderr
        finally:
            self._depth -= 1


def progress_of(config: pytest.Config) -> Progress:
    """Bars on a terminal, plain lines elsewhere and in the workers of a parallel run, whose bars would fight."""
    return LiveProgress(config, worker=getattr(config, "workerinput", {}).get("workerid"))
