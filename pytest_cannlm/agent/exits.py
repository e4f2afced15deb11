"""How a process ended, in words, on every system, and what its last log lines point to. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Iterable

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

# What the engine prints before it dies or fails, and what it means.
_LOG_REMEDIES = (
    ("type must be string, but is array", "tokenizer.json has its merges as pairs; join each pair with one space"),
    ("nlohmann::json parse_error", "a JSON file of the package is not valid JSON, or a path was taken for JSON text"),
    ("Pure virtual function called", "a context was used from another thread while it was generating"),
    ("weightFileSize - constSize >= variableSize", "a weight file is shorter than its graph says; copy it again"),
    ("isKvCacheMerge", "executor.json names KV-cache flags that the graph was not compiled with"),
    ("null, return FAIL", "executor.json lacks required llm_config keys, or the graph was not built by the full tool"),
    ("no runtime support the Model", "the graph was built for another version of the device's software; rebuild it"),
    ("CheckCompatibility failed", "the graph was built for another version of the device's software; rebuild it"),
    ("std::bad_alloc", "the engine ran out of memory; use a shorter context, a smaller scheme or a device with more"),
)


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


def remedy_for(exit_text: str, log: Iterable[str]) -> str | None:
    """What to do about a crash, from its last log lines first and from how the process ended second."""
    lines = list(log)
    for needle, remedy in _LOG_REMEDIES:
        if any(needle in line for line in lines):
            return remedy[0].upper() + remedy[1:]
    if exit_text == "SIGKILL":
        return "Nothing of this run killed it: most likely the system was out of memory; see its kernel log"
    if exit_text.startswith("out of memory"):
        return "Use a shorter context, a smaller scheme or a device with more memory"
    return None
