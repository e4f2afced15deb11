"""How a process ended, in words, on every system."""

from __future__ import annotations

import signal

# Windows reports a crash as an NTSTATUS value in the exit code. Source: ntstatus.h of the Windows SDK.
_NTSTATUS = {
    0xC0000005: "access violation",
    0xC0000017: "out of memory",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC0000374: "heap corruption",
    0xC0000409: "fast fail (abort)",
}


def describe_exit(returncode: int) -> str:
    """``SIGSEGV`` for death by signal, ``access violation (0xC0000005)`` for Windows, else ``exit status N``."""
    if returncode < 0:
        try:
            return signal.Signals(-returncode).name
        except ValueError:
            return f"signal {-returncode}"
    if returncode >= 0xC0000000:
        return f"{_NTSTATUS.get(returncode, 'exception')} (0x{returncode:08X})"
    return f"exit status {returncode}"
