"""Where bytes come from: a file read in small counted pieces, or bytes already in memory. Valid for Python 3.10."""

from __future__ import annotations

import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from pytest_cannlm.errors import ContainerError

LEAST_AHEAD, MOST_AHEAD = 32, 512
"""Small reads fetch more than they ask for, so that neighbouring protobuf fields cost one read: little after a jump,
which most often skips a payload to see the next field's head, and more with every read that goes on where the last
ended."""

MAX_FIELDS = 1 << 17
"""More protobuf fields than any known model makes a reader pass, who skips what nobody asked for."""

PAGE = 1024
SMALL_FILE = 64 * 1024
"""A file up to this size is read once, whole; so no file can make a reader with that limit read more than there is."""


class ReadLimitError(ContainerError):
    """What was asked for lies beyond what the caller allowed to be read: bytes, or work."""


class Budget:
    """The work that may go into one source, over all that is read from it: what bounds the time of a reading.

    The unit is a protobuf field that is passed; whatever else takes as long counts as one.
    """

    def __init__(self, fields: int = MAX_FIELDS, *, path: Path | None = None) -> None:
        self._left = self._most = fields
        self._path = path

    def spend(self, count: int = 1) -> None:
        """Take ``count`` from what is left; :class:`ReadLimitError` if that is not enough."""
        self._left -= count
        if self._left < 0:
            raise ReadLimitError(
                "there is more to read than any known model has",
                file=self._path,
                found=f"more than {self._most} fields",
                expected=f"at most {self._most} fields",
                remedy="Check where the file comes from, or convert the model again",
                code="OM_READ_LIMIT",
            )


class Source(Protocol):
    """Random access to ``size`` bytes."""

    @property
    def size(self) -> int:
        """Number of bytes there are."""

    @property
    def budget(self) -> Budget:
        """The work that may still go into it."""

    def at(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes from ``offset``; the caller has checked that they are inside."""


class CountedSource(Source, Protocol):
    """A file, or a part of one, that counts the bytes read from it; open only inside ``with``."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far."""

    def __enter__(self) -> CountedSource: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None: ...


class BytesSource:
    """Bytes already in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.budget = Budget()

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self._data)

    def at(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes from ``offset``."""
        return self._data[offset : offset + count]


class FileSource:
    """A regular file, open only inside ``with`` (re-entrant), every byte that is read from it counted.

    ``limit`` bounds ``bytes_read`` and ``fields`` the work over the whole life of the object; going beyond raises
    :class:`ReadLimitError`.
    Problems of the operating system are ``ContainerError`` with code ``OM_IO``.
    """

    def __init__(self, path: Path, *, limit: int | None = None, fields: int = MAX_FIELDS) -> None:
        self._path = path
        self.budget = Budget(fields, path=path)
        self.limit = limit
        self._bytes_read = 0
        self._file: BinaryIO | None = None
        self._depth = 0
        self._window = b""
        self._window_start = 0
        self._ahead = LEAST_AHEAD
        try:
            status = path.stat()
        except OSError as error:
            raise self._io_error(error) from error
        except ValueError as error:
            raise ContainerError("this is not a path", file=repr(str(path)), code="OM_IO") from error
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise ContainerError(
                "not a regular file",
                file=path,
                found="a directory" if stat.S_ISDIR(status.st_mode) else "a device or pipe",
                expected="an .om or .omc file",
                code="OM_IO",
            )
        self._size = status.st_size

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        return self._bytes_read

    @property
    def size(self) -> int:
        """Size of the file when it was first looked at."""
        return self._size

    def __enter__(self) -> FileSource:
        if self._file is None:
            try:
                self._file = open(self.path, "rb", buffering=0)  # noqa: PTH123 - unbuffered, so that reads are counted right
            except OSError as error:
                raise self._io_error(error) from error
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            self._file.close()
            self._file = None
            if self._size > SMALL_FILE:
                self._window = b""

    def at(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes from ``offset``; nearby bytes come from memory."""
        start = offset - self._window_start
        if start >= 0 and start + count <= len(self._window):
            return self._window[start : start + count]
        goes_on = 0 <= start <= len(self._window)
        self._ahead = min(2 * self._ahead, MOST_AHEAD) if goes_on else LEAST_AHEAD
        ahead = min(max(count, self._ahead), self._size - offset)
        left = self._left_for(offset, count)
        whole = self._size <= min(SMALL_FILE, left)
        data = self._read(0, self._size)[offset:] if whole else self._read(offset, max(min(ahead, left), count))
        self._window, self._window_start = self._at_least(data, offset, count), offset
        return data[:count]

    def _left_for(self, offset: int, count: int) -> int:
        """Bytes that may still be read, at least ``count``."""
        left = self._size if self.limit is None else self.limit - self.bytes_read
        if count > left:
            raise ReadLimitError(
                "the wanted facts lie beyond what may be read",
                file=self.path,
                found=f"{self.bytes_read} bytes read, {count} more wanted at offset {offset}",
                expected=f"at most {self.limit} bytes",
                code="OM_READ_LIMIT",
            )
        return left

    def _at_least(self, data: bytes, offset: int, count: int) -> bytes:
        if len(data) < count:
            raise ContainerError(
                "the file became shorter while it was read",
                file=self.path,
                found=f"{len(data)} bytes at offset {offset}",
                expected=f"{count} bytes",
                code="OM_IO",
            )
        return data

    def _read(self, offset: int, count: int) -> bytes:
        if self._file is None:
            raise RuntimeError("FileSource.at is for use inside its with block")
        pieces: list[bytes] = []
        try:
            self._file.seek(offset)
            while count > 0:
                piece = self._file.read(count)
                if not piece:
                    break
                pieces.append(piece)
                count -= len(piece)
        except OSError as error:
            raise self._io_error(error) from error
        data = b"".join(pieces)
        self._bytes_read += len(data)
        return data

    def _io_error(self, error: OSError) -> ContainerError:
        reason = error.strerror or type(error).__name__
        return ContainerError(f"cannot read the file: {reason}", file=self.path, code="OM_IO")


class PagedSource(FileSource):
    """A file whose pages are kept once they are read, so that no byte of it is read twice; for a whole description.

    ``limit`` bounds the memory too.
    """

    def __init__(self, path: Path, *, limit: int | None = None, fields: int = MAX_FIELDS) -> None:
        super().__init__(path, limit=limit, fields=fields)
        self._pages: dict[int, bytes] = {}

    def at(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes from ``offset``; those of known pages come from memory."""
        first, start = divmod(offset, PAGE)
        end = start + count
        if end <= PAGE:
            return (self._pages.get(first) or self._page(first))[start:end]
        return b"".join(self._page(first + more) for more in range(-(-end // PAGE)))[start:end]

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            offset = number * PAGE
            count = min(PAGE, self._size - offset)
            self._left_for(offset, count)
            page = self._pages[number] = self._at_least(self._read(offset, count), offset, count)
        return page


class PartSource:
    """A part of a source, as a source of its own: a container inside another one. Its reads are those of the whole."""

    def __init__(self, whole: CountedSource, start: int, size: int) -> None:
        self._whole = whole
        self.budget = whole.budget
        self._start = start
        self._size = size

    @property
    def path(self) -> Path:
        """The file."""
        return self._whole.path

    @property
    def bytes_read(self) -> int:
        """Bytes read from the whole so far."""
        return self._whole.bytes_read

    @property
    def size(self) -> int:
        """Size of the part."""
        return self._size

    def at(self, offset: int, count: int) -> bytes:
        """Exactly ``count`` bytes from ``offset`` of the part."""
        return self._whole.at(self._start + offset, count)

    def __enter__(self) -> PartSource:
        self._whole.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._whole.__exit__(kind, error, trace)
