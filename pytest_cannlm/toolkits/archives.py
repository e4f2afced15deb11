"""Downloads of the vendor: their known hashes, and those that lie beside an unpacked DDK."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from pytest_cannlm.compat.versions import Version, parse
from pytest_cannlm.toolkits.files import entries, is_file
from pytest_cannlm.toolkits.model import Archive, Problem
from pytest_cannlm.toolkits.names import ddk_version, plugin_version

Digest = Callable[[Path], str | None]
"""The hash of a file, or None for one that cannot be read."""

_MOST = 16


def archives_in(folders: Iterable[Path], *, digest: Digest | None) -> tuple[Archive, ...]:
    """DDK and plugin archives in ``folders`` by their names, and by their hashes where a ``digest`` is given."""
    found: list[Archive] = []
    for path in (path for folder in folders for path in entries(folder) if path.suffix.lower() == ".zip"):
        plugin = plugin_version(path.stem)
        named = plugin[1] if plugin else ddk_version(path.stem)
        if named and is_file(path) and len(found) < _MOST:
            sha256 = digest(path) if digest else None
            found.append(Archive(path, named, sha256, _identified(sha256)))
    return tuple(found)


def archive_problems(archive: Archive) -> list[Problem]:
    """What a computed hash says against the archive's name."""
    if archive.sha256 is None:
        return []
    if archive.identified is None:
        if archive.path.name not in {name for name, _ in _known().values()}:
            return []
        listed = next(sha256 for sha256, (name, _) in _known().items() if name == archive.path.name)
        expected = f"sha256 {listed}"
    elif archive.identified != archive.named:
        expected = f"the name of {archive.identified}, which is what its hash is listed for"
    else:
        return []
    return [
        Problem(
            "an archive is not what its name says",
            archive.path,
            f"{archive.named} by name, sha256 {archive.sha256}",
            expected,
            "Download it again, and unpack what you downloaded",
        )
    ]


def sha256_of(path: Path) -> str | None:
    """A :data:`Digest`; reads the whole file (260 MB and more)."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _identified(sha256: str | None) -> Version | None:
    known = _known().get(sha256) if sha256 else None
    return known[1] if known else None


@lru_cache(maxsize=1)
def _known() -> dict[str, tuple[str, Version]]:
    """Name and version by hash."""
    data = json.loads(Path(__file__).with_name("archives.json").read_text(encoding="utf-8"))
    return {entry["sha256"]: (entry["name"], parse(entry["version"])) for entry in data["archives"]}
