"""The files of a zip archive, unpacked as a stream: what it declares is held against limits first, then against it."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from lzma import LZMAError
from pathlib import Path

from pytest_cannlm.build.importing.entries import CHUNK, Entry, check_names, unreadable, unsafe
from pytest_cannlm.models.sniff import sniff

MOST_BYTES = 64 << 30
"""Unpacked size of all files; a 4-bit model of 8 billion weights takes 5 GB."""
MOST_RATIO = 100
"""Unpacked size over the archive's own; weights shrink to no less than a half."""
RATIO_FREE_BYTES = 64 << 20
"""Archives of less than this, unpacked, may have any ratio."""

_ENCRYPTED = 0x1


def is_archive(file: Path) -> bool:
    """Whether ``file`` starts as a zip does, whatever its name."""
    return sniff(file).kind == "zip"


@contextmanager
def archive_entries(file: Path) -> Iterator[list[Entry]]:
    """The files of the zip ``file``, open as long as the context is. All of them pass, or none is given out.

    :raises BadInputError: SOURCE_UNREADABLE for a damaged or encrypted one; SOURCE_UNSAFE for names that lead elsewhere
        or collide, for links, and for more than :data:`MOST_BYTES` or :data:`MOST_RATIO`.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        found = f"the beginning of a zip and no sound table of its files ({error})"
        raise unreadable(file, found, remedy="The download was probably cut short: get it again") from error
    with archive:
        members = [info for info in archive.infolist() if not info.filename.endswith("/")]
        _check(file, members)
        yield sorted(
            (Entry(info.filename, info.file_size, partial(_chunks_of, file, archive, info)) for info in members),
            key=lambda entry: entry.name,
        )


def _check(file: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    check_names(file, [info.orig_filename for info in members])
    for info in members:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise unsafe(file, info.filename, "a link" if kind == stat.S_IFLNK else "no plain file", "plain files")
        if info.flag_bits & _ENCRYPTED:
            raise unreadable(file, "an encrypted file", field=info.filename, remedy="Unpack it with its password first")
    total, packed = sum(info.file_size for info in members), file.stat().st_size
    if total > MOST_BYTES:
        raise unsafe(file, file.name, f"{total:,} bytes unpacked", f"at most {MOST_BYTES:,}")
    if total > RATIO_FREE_BYTES and total > MOST_RATIO * packed:
        raise unsafe(
            file, file.name, f"{total:,} bytes unpacked from {packed:,}", f"at most {MOST_RATIO} times as many"
        )


def _chunks_of(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    left = info.file_size
    try:
        with archive.open(info) as stream:
            while chunk := stream.read(CHUNK):
                left -= len(chunk)
                yield chunk
    except (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, OSError) as error:
        raise unreadable(file, error, field=info.filename) from error
    if left:
        raise unreadable(file, f"{left:,} bytes fewer than declared", field=info.filename)
