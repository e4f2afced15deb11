"""Where a generation ends: at an end-of-text id, or at a stop sequence in its text."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Passes text on until a stop sequence is complete in it; the sequence itself is not passed on.

    Text that could be the beginning of a stop sequence is held back until it is decided. Which sequence counts does not
    depend on how the text is cut into tokens: the one that is complete first, of several the one that began first.
    """

    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = [sequence for sequence in sequences if sequence]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What can be passed on now that ``text`` has come; nothing more once ``stopped``."""
        if self.stopped:
            return ""
        self._held += text
        places = ((self._held.find(sequence), len(sequence)) for sequence in self._sequences)
        found = [(at + length, at) for at, length in places if at >= 0]
        if found:
            self.stopped = True
            passed, self._held = self._held[: min(found)[1]], ""
            return passed
        keep = max((self._overlap(sequence) for sequence in self._sequences), default=0)
        cut = len(self._held) - keep
        passed, self._held = self._held[:cut], self._held[cut:]
        return passed

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        passed, self._held = self._held, ""
        return passed

    def _overlap(self, sequence: str) -> int:
        """Length of the longest end of the held text that begins ``sequence``."""
        longest = min(len(sequence) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(sequence[:n])), 0)
