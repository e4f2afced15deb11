"""The user's list of version pairs: which version of one number space is which of another, each with its source.

The file has the shape of the bundled ``versions.json``, as JSON or as TOML::

    [[pairs]]
    versions = ["6.1.1.0", "108.631.120.010"]
    source = "read on our bench, 2026-11-30"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_cannlm.compat.versions import Pair, Version, covers, parse
from pytest_cannlm.errors import UsageError

MAX_BYTES = 1 << 20
"""Some thousands of pairs; a larger file is another one, given by mistake."""

_KEYS = {"versions", "source"}
_REMEDY = "See the example in docs/how-to/host-toolkits.md"


def read_pairs(path: Path | None) -> tuple[Pair, ...]:
    """The pairs of a file, in its order; none without a file. A file is read once.

    :raises UsageError: the file cannot be read, is not JSON or TOML, or holds what is no pair of two known versions of
        different number spaces, or two pairs that contradict each other: a release may have several builds, and a
        toolkit several devices, but not the other way round. Names the field, or the line.
    """
    return () if path is None else _read(path)


@lru_cache(maxsize=8)
def _read(path: Path) -> tuple[Pair, ...]:
    data = _load(path)
    entries = data.get("pairs")
    if not isinstance(entries, list) or set(data) != {"pairs"}:
        raise _wrong(path, "", found=", ".join(map(str, data)) or "nothing", expected="one list, named pairs")
    pairs: list[Pair] = []
    meanings: dict[tuple[Version, str], tuple[Version, int]] = {}
    for number, entry in enumerate(entries):
        pair, (one, other) = _pair(path, number, entry)
        for version, meaning in ((one, other), (other, one)):
            if covers(version.space, meaning.space):
                continue
            before, where = meanings.setdefault((version, meaning.space), (meaning, number))
            if before != meaning:
                expected = f"{before}, as pairs[{where}] says of {version}"
                raise _wrong(path, f"pairs[{number}].versions", found=str(meaning), expected=expected)
        pairs.append(pair)
    return tuple(pairs)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(path, "", found=error.strerror or str(error), expected="a file that can be read") from None
    if len(content) > MAX_BYTES:
        raise _wrong(path, "", found=f"more than {MAX_BYTES} bytes", expected="a list of version pairs")
    try:
        text = content.decode("utf-8-sig")
        data: Any = _loads_toml(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:  # both parsers' own errors, and that of a wrong encoding
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        raise _wrong(path, "", found=str(error), expected=f"{kind} in UTF-8") from None
    if not isinstance(data, dict):
        raise _wrong(path, "", found=f"a {type(data).__name__}", expected="one list, named pairs")
    return data


def _loads_toml(text: str) -> Mapping[str, Any]:
    import tomllib  # not on the device's Python 3.10, where only pairs that were read already arrive

    return tomllib.loads(text)


def _pair(path: Path, number: int, entry: object) -> tuple[Pair, tuple[Version, Version]]:
    where = f"pairs[{number}]"
    if not isinstance(entry, Mapping) or set(entry) != _KEYS:
        found = ", ".join(map(str, entry)) if isinstance(entry, Mapping) else repr(entry)
        raise _wrong(path, where, found=found or "nothing", expected="versions and source")
    versions, source = entry["versions"], entry["source"]
    if not isinstance(versions, Sequence) or isinstance(versions, str) or len(versions) != 2:
        raise _wrong(path, f"{where}.versions", found=repr(versions), expected="a list of two versions")
    if not isinstance(source, str) or not re.search(r"\w", source):
        raise _wrong(path, f"{where}.source", found=repr(source), expected="who says that the two are the same")
    one, other = (_version(path, f"{where}.versions[{place}]", text) for place, text in enumerate(versions))
    if one.space == other.space:
        raise _wrong(
            path, f"{where}.versions", found=f"{one} and {other}, both {one.space}", expected="two number spaces"
        )
    return Pair(one.raw, other.raw, f"{path.name}: {source.strip()}"), (one, other)


def _version(path: Path, where: str, text: object) -> Version:
    version = parse(text) if isinstance(text, str) else None
    if version is None or version.complaint:
        found = repr(text) + (f", which {version.complaint}" if version else "")
        raise _wrong(path, where, found=found, expected="a version as text, such as 6.1.1.0 or 108.631.120.010")
    return version


def _wrong(path: Path, field: str, *, found: str, expected: str) -> UsageError:
    return UsageError(
        "the list of version pairs cannot be used",
        file=path,
        field=field or None,
        found=found,
        expected=expected,
        remedy=_REMEDY,
    )
