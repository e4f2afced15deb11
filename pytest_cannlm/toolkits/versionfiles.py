"""The vendor's version files: ``version.info``, ``version.cfg``, ``ascend_toolkit_install.info``, ``scene.info``.

Keys and values as public dumps of installations show them; both ``key=value`` and ``key: value`` occur.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pytest_cannlm.toolkits.files import MAX_BYTES, read_start
from pytest_cannlm.toolkits.model import Problem

_LINE = re.compile(r"^\s*([\w.\-]+)\s*[=:]\s*(.*?)\s*$")
_RUNNING = re.compile(r"^(\w+)_running_version$")
_PAIR = re.compile(r"\[\s*([^\[\]:]+?)\s*:\s*([^\[\]:]+?)\s*\]")
_REINSTALL = "Install this toolkit again; until then its version is unknown"


def read_keys(path: Path) -> Mapping[str, str] | Problem:
    """Keys (in lower case) and values of a file; a problem if it cannot be read or is no such file.

    Lines that begin with ``#`` are comments; of a key that comes twice the first counts.
    """
    try:
        content = read_start(path, MAX_BYTES + 1)
    except OSError as error:
        return unreadable(path, error.strerror or type(error).__name__)
    if len(content) > MAX_BYTES or b"\0" in content:
        found = f"more than {MAX_BYTES} bytes" if len(content) > MAX_BYTES else "binary data"
        return unreadable(path, found)
    keys: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match:
            keys.setdefault(match[1].lower(), match[2])
    return keys


def running_versions(keys: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    """Of ``version.cfg`` by part ("compiler"): key, internal and public version, ``[7.3.0.1.231:8.0.RC2]`` there."""
    found = {}
    for key, value in keys.items():
        part, pair = _RUNNING.match(key), _PAIR.match(value)
        if part and pair:
            found[part[1]] = (key, pair[1], pair[2])
    return found


def unreadable(path: Path, found: str) -> Problem:
    """The problem of a version file that says nothing."""
    return Problem("a version file cannot be read", path, found, "lines of key=value", _REINSTALL)


def unknown_version(path: Path, key: str, found: str | None) -> Problem:
    """The problem of a version file without a version, or with a text that is none."""
    return Problem(
        "a version file holds no version",
        path,
        f"{key}={found}" if found else f"no {key}",
        f"{key}= and a version such as 8.0.0 or 7.6.0.1.220",
        _REINSTALL,
    )
