"""The last lines of a process's standard error, collected while it runs so that its pipe never fills up."""

from __future__ import annotations

import itertools
import re
import threading
from collections import deque
from collections.abc import Iterable
from typing import IO

# The engine's temperature-control client repeats this; it says nothing about the run.
HARMLESS = "Unknown class perfgenius_interface"

_KEEP = 40
_LONGEST = 2000
_STACK = re.compile(
    r"Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Floating.point exception|Illegal instruction)"
    r"|Windows fatal exception: |(?:Current t|T)hread 0x"
)
"""How faulthandler begins: with the signal, which the exit tells too, or with the stack."""


def without_stack(lines: Iterable[str]) -> tuple[str, ...]:
    """What the engine said, without the stack that Python's fault handler prints behind it."""
    return tuple(itertools.takewhile(lambda line: not _STACK.match(line), lines))


class LogTail:
    """Reads a binary stream to its end on a thread of its own and remembers the last lines."""

    def __init__(self, stream: IO[bytes], *, name: str) -> None:
        self._lines: deque[str] = deque(maxlen=_KEEP)
        self._stream = stream
        self._thread = threading.Thread(target=self._collect, name=f"{name} log", daemon=True)
        self._thread.start()

    def lines(self, *, wait_s: float = 0.0) -> tuple[str, ...]:
        """The last lines; after the process ended, ``wait_s`` gives the rest of its output time to arrive."""
        if wait_s:
            self._thread.join(wait_s)
        return tuple(self._lines.copy())

    def _collect(self) -> None:
        with self._stream:
            while raw := self._stream.readline(_LONGEST):
                line = raw.decode("utf-8", "replace").rstrip()
                if line and HARMLESS not in line:
                    self._lines.append(line)
