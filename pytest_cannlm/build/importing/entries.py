"""The files of a source by name, checked before one of them is read, and which folder among them is the package."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from pytest_cannlm.compat.places import EXECUTOR, MANIFEST, PACKAGE_DIR, folder_and_manifest, inside
from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.lint.facts import API_CONFIG

MOST_ENTRIES = 10_000
MODEL_SUFFIXES = (".omc", ".om")
CHUNK = 4 << 20

_LITTER = frozenset({".ds_store", "thumbs.db", "desktop.ini"})
_LITTER_FOLDER = "__MACOSX"


@dataclass(frozen=True)
class Entry:
    """A file of a source.

    Attributes:
        name: its path in the source, with slashes.
        size: bytes, as the source declares them.
        chunks: its bytes, piece by piece; raises BadInputError where they cannot be had.
        path: where it lies as a file of its own; None inside an archive.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    path: Path | None = None


def unsafe(file: Path, name: str, found: str, expected: str) -> BadInputError:
    """The error for a name or an entry that must not be written anywhere."""
    return BadInputError(
        "the source holds something that is not imported from anybody",
        file=file,
        field=ascii(name)[1:-1][:200],
        found=found,
        expected=expected,
        remedy="Get the package from another place, or take the files that you trust out of it by hand",
        code="SOURCE_UNSAFE",
    )


def unreadable(file: Path, found: object, *, field: str | None = None, remedy: str = "Get it again") -> BadInputError:
    """The error for a source, or an entry of one, whose bytes cannot be had."""
    return BadInputError(
        "the source cannot be read", file=file, field=field, found=found, remedy=remedy, code="SOURCE_UNREADABLE"
    )


def check_names(source: Path, names: Sequence[str]) -> None:
    """Refuse names that lead elsewhere, or that mean two files at once on some system.

    :raises BadInputError: code SOURCE_UNSAFE; the error's field is the name.
    """
    if len(names) > MOST_ENTRIES:
        raise unsafe(source, source.name, f"{len(names):,} files", f"at most {MOST_ENTRIES:,}")
    spelled: dict[str, str] = {}
    for name in names:
        wrong = _wrong_with(name)
        if wrong:
            raise unsafe(source, name, wrong, "a name inside the folder, that means the same everywhere")
        key = _key(name)
        if key in spelled:
            twin = "twice" if spelled[key] == name else f"beside {spelled[key]!r}, which many systems take for the same"
            raise unsafe(source, name, f"there {twin}", "every name once, whatever its case")
        spelled[key] = name
    for name in names:
        for parent in PurePosixPath(_key(name)).parents:
            if str(parent) in spelled:
                raise unsafe(source, spelled[str(parent)], "a file and a folder of one name", "one of them")


def without_litter(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without what desktops leave in folders and archives."""
    return [entry for entry in entries if not _is_litter(PurePosixPath(entry.name))]


def package_home(source: Path, entries: Sequence[Entry]) -> str:
    """The folder of the source that is the package: "" or a path that ends with a slash.

    :raises BadInputError: none is, or several are; code SOURCE_NO_PACKAGE.
    :raises UsageError: it is a package of ``cannlm build`` with its manifest, which nothing needs to be done to.
    """
    names = [entry.name for entry in entries]
    homes = {_home(name) for name in names if PurePosixPath(name).name in (EXECUTOR, API_CONFIG)}
    homes = homes or {_home(name) for name in names if name.endswith(MODEL_SUFFIXES)}
    if len(homes) != 1:
        raise BadInputError(
            "not one model package" if homes else "no model package",
            file=source,
            found=", ".join(sorted(each or "./" for each in homes)[:5]) if homes else _described(names),
            expected=f"one folder with {EXECUTOR}, {API_CONFIG} or a compiled model (.omc)",
            remedy="Import each folder by itself" if homes else "Name the folder or zip that holds the compiled model",
            code="SOURCE_NO_PACKAGE",
        )
    home = homes.pop()
    above = _home(home.rstrip("/"))
    if (PurePosixPath(home).name == PACKAGE_DIR and f"{above}{MANIFEST}" in names) or (
        source.is_dir() and folder_and_manifest(source / home)[1] is not None
    ):
        raise UsageError(
            "this package has its manifest already: there is nothing to import",
            file=source,
            found=f"{MANIFEST} beside {PACKAGE_DIR}",
            remedy="Use the folder as it is" if source.is_dir() else "Unpack it and use the folder as it is",
            code="SOURCE_HAS_MANIFEST",
        )
    return home


def folder_entries(folder: Path) -> list[Entry]:
    """The files below ``folder``. Links are followed where they stay inside, and refused where they lead out.

    :raises BadInputError: codes SOURCE_UNSAFE and SOURCE_UNREADABLE.
    """
    found: list[Entry] = []
    for where, folders, files in os.walk(folder, onerror=_raise):
        base = Path(where)
        for name in [*files, *(each for each in folders if (base / each).is_symlink())]:
            path = base / name
            relative = path.relative_to(folder).as_posix()
            real = inside(folder, relative)
            status = real.stat() if real is not None and real.exists() else None
            if real is None or status is None or not stat.S_ISREG(status.st_mode):
                raise unsafe(folder, relative, "a link, or no plain file", "plain files, and links to files in it")
            found.append(Entry(relative, status.st_size, partial(_chunks_of, folder, relative, real), real))
            if len(found) > MOST_ENTRIES:
                raise unsafe(folder, folder.name, f"more than {MOST_ENTRIES:,} files", "a package folder")
    check_names(folder, [entry.name for entry in found])
    return sorted(found, key=lambda entry: entry.name)


def _chunks_of(folder: Path, name: str, path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise unreadable(folder, error.strerror or error, field=name, remedy="See to its permissions") from error


def _wrong_with(name: str) -> str | None:
    if not name.isprintable():
        return "a name with control characters"
    if "\\" in name or ":" in name:
        return "a backslash, or a drive letter" if "\\" in name else "a drive letter, or a colon"
    if name.startswith("/"):
        return "an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "a path that leads out"
    if any(part in ("", ".") or part != part.rstrip(". ") for part in parts):
        return "an empty part, or one that ends with a dot or a blank"
    return None


def _key(name: str) -> str:
    """What a file system that ignores case and composes letters makes of a name."""
    return unicodedata.normalize("NFC", name).casefold()


def _is_litter(path: PurePosixPath) -> bool:
    return path.parts[0] == _LITTER_FOLDER or path.name.startswith("._") or path.name.lower() in _LITTER


def _home(name: str) -> str:
    head, slash, _ = name.rpartition("/")
    return head + slash


def _described(names: Sequence[str]) -> str:
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch checkpoint"
    if not names:
        return "no files"
    if any(name.lower().endswith(".zip") for name in names):
        return f"archives inside ({', '.join(name for name in names if name.lower().endswith('.zip'))[:200]})"
    return f"{len(names)} files, such as {', '.join(names[:3])[:200]}"


def _raise(error: OSError) -> None:
    raise error
