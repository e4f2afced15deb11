"""An import from end to end: into a new folder beside its final place, which appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cannlm import __version__
from pytest_cannlm.build.importing.archive import archive_entries, is_archive
from pytest_cannlm.build.importing.entries import (
    CHUNK,
    MODEL_SUFFIXES,
    Entry,
    folder_entries,
    package_home,
    unreadable,
    without_litter,
)
from pytest_cannlm.build.importing.given import said_of_build
from pytest_cannlm.build.importing.published import make_settings, write_document
from pytest_cannlm.build.package import MANIFEST_SCHEMA, facts_of
from pytest_cannlm.compat.places import MANIFEST, PACKAGE_DIR
from pytest_cannlm.errors import BadInputError, EnvironmentFailure, UsageError
from pytest_cannlm.lint import LintReport, lint
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook
from pytest_cannlm.models.sniff import sniff
from pytest_cannlm.models.tokenizer import TokenizerSpec
from pytest_cannlm.progress import Progress, Task

_DATA = (*MODEL_SUFFIXES, ".weight", ".embedding_weights", ".embedding_dequant_scale")
"""Files that nothing of ours writes to once they are there; only these can be links to the source's."""
_ARCHIVE_SUFFIX = re.compile(r"\.zip$", re.IGNORECASE)
_MOST_LEFT_OUT = 50


@dataclass(frozen=True)
class ImportOrder:
    """What to import, and how.

    Attributes:
        source: a package folder, or a zip of one, under any name.
        out: the folder to make; it must not hold anything yet.
        name: what the model is called in reports.
        cann, chip: what the user knows of a model that does not say it; None: nothing.
        settings: values of the engine's settings that the package does not say, by section and key.
        fix: put the tokenizer into the form that the engine reads.
        link: share the large files with a source folder on the same file system.
        keep: keep the folder although the lint finds errors.
    """

    source: Path
    out: Path
    name: str
    cann: str | None = None
    chip: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fix: bool = False
    link: bool = False
    keep: bool = False


@dataclass(frozen=True)
class ImportedPackage:
    """What became of an import; ``folder`` is None where the lint found errors and it was not to be kept."""

    folder: Path | None
    manifest: Mapping[str, Any]
    report: LintReport


def name_of(source: Path) -> str:
    """The name of a source as a model's: without ``.zip``, and with dashes for all that is no plain letter."""
    bare = _ARCHIVE_SUFFIX.sub("", source.resolve().name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", bare).strip("-.") or "imported"


def import_package(order: ImportOrder, *, progress: Progress) -> ImportedPackage:
    """Take a package made elsewhere into ``order.out``; the source stays as it is, whatever happens.

    Raises:
        UsageError: ``out`` holds something, or lies in the source; the source has a manifest already.
        BadInputError: the source is no package, is damaged, or holds what must not be unpacked; two facts contradict.
        PackageError: the engine's settings are missing and the source does not say all that belongs there.
        EnvironmentFailure: not enough space.
    """
    _check_places(order)
    with _entries_of(order.source) as entries, _beside(order.out) as folder:
        wanted = without_litter(entries)
        home = package_home(order.source, wanted)
        mine = [entry for entry in wanted if entry.name.startswith(home)]
        taken = _take(mine, home, folder / PACKAGE_DIR, order, progress)
        left_out = sorted({entry.name for entry in entries} - {entry.name for entry in mine})
        source = {
            "name": order.source.resolve().name,
            "kind": "folder" if order.source.is_dir() else "zip",
            "sha256": _digest_of(taken.files) if order.source.is_dir() else _digest_of_file(order.source, progress),
            "folder": home,
            "left_out": left_out[:_MOST_LEFT_OUT],
            "linked": taken.linked,
        }
        manifest = _complete(folder, order, taken.files, source)
        final = order.out.resolve()
        report = replace(lint(folder, hashes=False), package=str(final / PACKAGE_DIR))
        if not (report.good() or order.keep):
            return ImportedPackage(None, manifest, report)
        if final.exists():
            final.rmdir()  # it is empty, and not every system replaces it
        folder.replace(final)
        return ImportedPackage(final, manifest, report)


def _check_places(order: ImportOrder) -> None:
    source, out = order.source, order.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the output must be a new or an empty folder", file=out, remedy="name another one with --out")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise UsageError("the output lies in the source, which an import never changes", file=out, field="--out")


@contextmanager
def _entries_of(source: Path) -> Iterator[Sequence[Entry]]:
    if source.is_dir():
        yield folder_entries(source)
        return
    if not source.exists():
        raise BadInputError("there is no such file or folder", file=source)
    if not is_archive(source):
        content = sniff(source)
        raise unreadable(source, content.words, remedy=_remedy_for(content.kind, content.remedy))
    with archive_entries(source) as entries:
        yield entries


def _remedy_for(kind: str, remedy: str) -> str:
    if kind in ("om", "json"):
        return "Name the folder that the file lies in"
    return (
        remedy if kind in ("lfs-pointer", "html", "empty", "gzip", "xz", "zstd") else "Name a package folder or a zip"
    )


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A new folder on the same file system as ``out``; what is left of it is taken away, whatever happened."""
    final = out.resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.importing-"))
    try:
        folder = holder / final.name  # not the holder itself, which only its owner may read
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(holder, ignore_errors=True)


@dataclass(frozen=True)
class _Taken:
    """What lies in the package now: size and sha256 by name, and the names of those that are links."""

    files: dict[str, dict[str, Any]]
    linked: list[str]


def _take(entries: Sequence[Entry], home: str, package: Path, order: ImportOrder, progress: Progress) -> _Taken:
    """Bring the files of the package to their place."""
    targets = {entry.name.removeprefix(home): entry for entry in entries}
    for name in targets:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
    linked = [name for name, entry in targets.items() if order.link and _linked(entry, package / name)]
    _require_space(order.out, package, sum(entry.size for name, entry in targets.items() if name not in linked))
    files: dict[str, dict[str, Any]] = {}
    with progress.task(f"import {order.name}", sum(entry.size for entry in entries), "bytes") as task:
        for name, entry in targets.items():
            digest = hashlib.sha256()
            chunks = _watched(entry.chunks(), digest, task)
            if name in linked:
                deque(chunks, maxlen=0)
            else:
                with (package / name).open("xb") as file:
                    file.writelines(chunks)
            files[name] = {"bytes": entry.size, "sha256": digest.hexdigest()}
    return _Taken(files, linked)


def _require_space(out: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise EnvironmentFailure(
            "the package does not fit on this disk",
            file=out,
            found=f"{free / 1e9:.1f} GB free",
            expected=f"{needed / 1e9:.1f} GB",
            remedy="free some space, or name a folder on another disk with --out",
        )


def _watched(chunks: Iterator[bytes], digest: hashlib._Hash, task: Task) -> Iterator[bytes]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
        task.advance(len(chunk))


def _linked(entry: Entry, target: Path) -> bool:
    if entry.path is None or not entry.name.endswith(_DATA):
        return False
    try:
        os.link(entry.path, target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _digest_of_file(file: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with progress.task(f"sha256 of {file.name}", file.stat().st_size, "bytes") as task, file.open("rb") as stream:
        deque(_watched(iter(partial(stream.read, CHUNK), b""), digest, task), maxlen=0)
    return digest.hexdigest()


def _digest_of(files: Mapping[str, Mapping[str, Any]]) -> str:
    """sha256 of a folder: of the lines ``SHA256  NAME`` of its files in the order of their names."""
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _complete(folder: Path, order: ImportOrder, files: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Make the settings that are missing, apply the fixes that were asked for, and write the manifest.

    What the gate reads stands first: it looks at the beginning of the manifest only.
    """
    package = folder / PACKAGE_DIR
    made = make_settings(package, order.settings)
    changes = {name: "settings added" if name in files else "made" for name in made}
    facts = PackageFacts(package, None)
    if order.fix:
        changes |= _fix_tokenizer(facts)
    build: dict[str, Any] = {}
    simulated = False
    with suppress(CannotLook):  # the lint says what is wrong with the model
        simulated = facts.container.simulated
        build = said_of_build(facts.container, cann=order.cann, chip=order.chip)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "created_by": f"pytest-cannlm {__version__}",
        "imported": True,
        "simulated": simulated,
        "build": build,
        "files": {**files, **{name: facts_of(package / name) for name in changes}},
        "model": {"name": order.name},
        "source": dict(source),
        "changes": changes,
        "settings_from": made,
    }
    write_document(folder / MANIFEST, manifest)
    return manifest


def _fix_tokenizer(facts: PackageFacts) -> dict[str, str]:
    """Write the tokenizer in the form that the engine reads; what was done, by file."""
    try:
        file = facts.tokenizer_file
        facts.tokenizer  # noqa: B018 - looks whether it is JSON at all, and not too large
    except CannotLook:
        return {}
    text = file.read_text(encoding="utf-8-sig")
    fixed = TokenizerSpec(text, None, None, None, add_bos=False).engine_json()
    if fixed == text:
        return {}
    file.write_text(fixed, encoding="utf-8")
    name = file.relative_to(facts.folder.resolve()).as_posix()
    return {name: "merges as texts, without ignore_merges, truncation and padding"}
