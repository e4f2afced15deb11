"""A text that is used as it is and never shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
_SHORTEST = 12
"""An encoded form with fewer letters may be a part of any word."""


class Secret(str):
    """A key. Formatting it gives the key, for headers; what shows variables, such as a traceback, shows ``***``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{HIDDEN}'"

    def hidden_in(self, text: str) -> str:
        """``text`` with the key taken out wherever it stands in it, plain or in one of the forms of :meth:`is_in`."""
        for form in self._forms():
            text = text.replace(form, HIDDEN)
        return text

    def hidden_in_data(self, data: Any) -> Any:
        """JSON, parsed, with the key taken out of every text and every name."""
        if isinstance(data, str):
            return self.hidden_in(data) if len(data) >= len(self) else data
        if isinstance(data, list):
            return [self.hidden_in_data(part) for part in data]
        if isinstance(data, dict):
            return {self.hidden_in_data(name): self.hidden_in_data(part) for name, part in data.items()}
        return data

    def is_in(self, text: str) -> bool:
        """Whether ``text`` holds the key: plain, quoted for a URL, in hexadecimal, or in base64, also within more."""
        return any(form in text for form in self._forms())

    def _forms(self) -> Iterator[str]:
        if self:
            yield str(self)
            yield quote(self)
            yield quote(self, safe="")
            yield from (form for form in self._encoded() if len(form) >= _SHORTEST)

    def _encoded(self) -> Iterator[str]:
        raw = self.encode()
        yield raw.hex()
        for shift in range(3):  # where the key begins within the three bytes that four letters stand for
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                whole = encode(bytes(shift) + raw).decode()
                # the letters at both ends depend on what stands beside the key too
                yield whole[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6]
