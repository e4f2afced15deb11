"""A text that is used as it is and never shown."""

from __future__ import annotations

HIDDEN = "***"


class Secret(str):
    """A key. Formatting it gives the key, for headers; what shows variables, such as a traceback, shows ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{HIDDEN}'"

    def hidden_in(self, text: str) -> str:
        """``text`` with the key taken out wherever it stands in it."""
        return text.replace(str(self), HIDDEN) if self else text
