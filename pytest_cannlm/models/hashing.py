"""Identity of file contents: sha256, remembered as long as nothing about the file has changed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def file_sha256(file: Path, *, memo: Path | None = None) -> str:
    """Hexadecimal sha256 of the file's bytes.

    Remembered within the process, and in the folder ``memo`` across processes: hashing 16 GB takes longer than a warm
    run should. The key is (path, size, inode, times of the last change of content and of status), so a file that was
    changed, even one whose modification time was set back, is hashed again.
    """
    status = file.stat()
    identity = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return _remembered(str(file.resolve()), identity, memo)


@lru_cache(maxsize=4096)
def _remembered(file: str, identity: tuple[int, ...], memo: Path | None) -> str:
    if memo is None:
        return _hash(file)
    entry = memo / hashlib.sha256(f"{file}\0{identity}".encode()).hexdigest()
    try:
        known = entry.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        known = ""
    if len(known) == 64:
        return known
    digest = _hash(file)
    with suppress(OSError):  # a cache that cannot be written costs time, not the run
        memo.mkdir(parents=True, exist_ok=True)
        write_atomically(entry, digest.encode("ascii"))
    return digest


def _hash(file: str) -> str:
    with Path(file).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(file: Path, data: bytes) -> None:
    """Write ``data`` so that the file is either the old one or complete, also when two processes write at once."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
