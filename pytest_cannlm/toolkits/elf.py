"""Which loader an ELF program asks for. A program whose loader is missing looks to a shell as if it were not there."""

from __future__ import annotations

import struct
from pathlib import Path

from pytest_cannlm.toolkits.files import read_start

_PT_INTERP = 3
_LONGEST = 4096
_START = 64 * 1024
"""Program headers and the name of the loader stand at the start of every program that a linker wrote."""


def interpreter(path: Path) -> Path | None:
    """The loader that a 64-bit little-endian ELF program names (``PT_INTERP``).

    None for a script, a static program, another ELF class, and a file that cannot be read or is cut short.
    """
    try:
        start = read_start(path, _START)
        if start[:6] != b"\x7fELF\x02\x01":
            return None
        table, size, count = *struct.unpack_from("<Q", start, 32), *struct.unpack_from("<HH", start, 54)
        for number in range(count):
            at = table + number * size
            kind, offset, length = *struct.unpack_from("<I", start, at), *_extent(start, at)
            name = start[offset : offset + length]
            if kind == _PT_INTERP:
                return Path(name.rstrip(b"\0").decode()) if 1 < length <= _LONGEST and len(name) == length else None
    except (OSError, struct.error, OverflowError, UnicodeDecodeError):
        pass
    return None


def _extent(start: bytes, at: int) -> tuple[int, int]:
    """Offset and length in the file of the segment whose program header stands ``at``."""
    offset, _, _, length = struct.unpack_from("<QQQQ", start, at + 8)
    return offset, length
