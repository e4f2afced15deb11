"""Identity of file contents: sha256, remembered as long as nothing about the file has changed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

MEMO = "hashes"
"""The folder of the cache in which hashes are remembered across processes."""
_MOST_ENTRIES = 4096

Identity = tuple[int, ...]
"""Device, inode, size, time of the last change of content, and that of status, both in ns."""


def file_sha256(file: Path, *, memo: Path | None = None) -> str:
    """Hexadecimal sha256 of the file's bytes.

    Remembered within the process, and in the folder ``memo`` across processes: hashing 16 GB takes longer than a warm
    run should. It is known by :data:`Identity`, under whatever name, so a file that was changed, even one whose
    modification time was set back, is hashed again.
    """
    return _remembered(str(file), _identity(file), memo)


@contextmanager
def still_known(files: Iterable[Path], *, memo: Path) -> Iterator[None]:
    """Keep what is known of files while the block makes links of them and removes them.

    Both change a file's status and nothing else about it. A file that is another one, or has other content, after the
    block is forgotten as ever.
    """
    before = {file: _identity(file) for file in files}
    known = {file: digest for file, identity in before.items() if (digest := _recall(memo, identity)) is not None}
    try:
        yield
    finally:
        for file, digest in known.items():
            with suppress(OSError):  # it is not there any more
                now = _identity(file)
                if now[:-1] == before[file][:-1]:
                    _remember(memo, now, digest)


def _identity(file: Path) -> Identity:
    status = file.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=4096)
def _remembered(file: str, identity: Identity, memo: Path | None) -> str:
    if memo is None:
        return _hash(file)
    digest = _recall(memo, identity)
    if digest is None:
        digest = _hash(file)
        _remember(memo, identity, digest)
    return digest


def _entry(memo: Path, identity: Identity) -> Path:
    """One entry for a file, whatever becomes of it: the newest replaces the last."""
    device, inode, *_ = identity
    return memo / f"{device:x}-{inode:x}"


def _recall(memo: Path, identity: Identity) -> str | None:
    try:
        *known, digest = _entry(memo, identity).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return digest if known == [str(part) for part in identity] and len(digest) == 64 else None


def _remember(memo: Path, identity: Identity, digest: str) -> None:
    with suppress(OSError):  # a cache that cannot be written costs time, not the run
        memo.mkdir(parents=True, exist_ok=True)
        write_atomically(_entry(memo, identity), " ".join([*map(str, identity), digest]).encode("ascii"))
        entries = list(memo.iterdir())
        if len(entries) > _MOST_ENTRIES:
            for old in sorted(entries, key=lambda entry: entry.stat().st_mtime)[: len(entries) // 2]:
                old.unlink(missing_ok=True)


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
