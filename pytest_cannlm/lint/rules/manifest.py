"""PKG110 to PKG115: the manifest beside the package against the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_cannlm.compat.agreement import manifest_agrees
from pytest_cannlm.compat.origin import read_attributes
from pytest_cannlm.compat.package import ReadCount, inside, read_manifest
from pytest_cannlm.compat.target import Target
from pytest_cannlm.errors import PackageError
from pytest_cannlm.lint.documents import MANIFEST_LIMIT, Broken
from pytest_cannlm.lint.facts import EXECUTOR, MANIFEST, PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.models.hashing import file_sha256

BOOK = RuleBook()

HASHED_UNASKED = 1 << 30
"""Packages up to this size are hashed unless that was declined: about a second."""
_IN_MANIFEST = {"kv_cache_max_len": "context", "prefill_len": "prefill"}
_FIX = "Build the package again, or take the manifest that belongs to it"


@BOOK.rule("PKG110", "error", "the manifest cannot be used")
def usable(facts: PackageFacts) -> Iterator[Problem]:
    """It holds what the package itself does not say: recipe, versions, sizes and hashes."""
    if facts.manifest_path is None:
        raise CannotLook("no manifest beside the package")
    document = facts.document(facts.manifest_path, MANIFEST_LIMIT)
    if isinstance(document, Broken):
        yield Problem(MANIFEST, None, document.found, "a JSON object", _FIX)
        return
    try:
        read_manifest(facts.manifest_path, ReadCount())
    except PackageError as error:
        yield Problem(MANIFEST, error.field, str(error.found), str(error.expected), _FIX)
    for name, entry in _listed(facts).items():
        digest = entry.get("sha256") if isinstance(entry, Mapping) else None
        if not isinstance(digest, str) or len(digest) != 64:
            yield Problem(MANIFEST, f"files.{name}.sha256", str(digest)[:80], "64 hexadecimal digits", _FIX)


@BOOK.rule("PKG111", "error", "a file has changed in size since the build")
def sizes(facts: PackageFacts) -> Iterator[Problem]:
    """The manifest notes every file as it was built; a cut copy is the usual reason."""
    for name, path, entry in _files(facts):
        size = path.stat().st_size if path.is_file() else None
        if size != entry.get("bytes"):
            found = "no such file" if size is None else f"{size} bytes"
            yield Problem(name, None, found, f"{entry.get('bytes')} bytes, as {MANIFEST}", _FIX)


@BOOK.rule("PKG112", "error", "a file has changed since the build")
def hashes(facts: PackageFacts) -> Iterator[Problem]:
    """Same size and other bytes: edited by hand, mixed up with another build, or damaged."""
    files = [(name, path, entry) for name, path, entry in _files(facts) if path.is_file()]
    total = sum(path.stat().st_size for _, path, _ in files)
    if facts.hashes is False or (facts.hashes is None and total > HASHED_UNASKED):
        raise CannotLook(f"sha256 of {len(files)} files, {total:,} bytes, was not asked for")
    for name, path, entry in files:
        if path.stat().st_size != entry.get("bytes"):
            continue  # another rule says so
        digest = file_sha256(path)
        if digest != entry.get("sha256"):
            expected = f"sha256 {entry.get('sha256')}, as {MANIFEST}"
            yield Problem(name, None, f"sha256 {digest}", expected, _FIX)


@BOOK.rule("PKG113", "warning", "a file that the manifest does not list")
def unlisted(facts: PackageFacts) -> Iterator[Problem]:
    """It was not there when the package was built, and nobody notices when it changes."""
    listed = _listed(facts)
    for entry in facts.entries:
        if entry.name not in listed:
            yield Problem(entry.name, None, f"a {entry.kind}", f"what {MANIFEST} lists", "Take it out of the package")


@BOOK.rule("PKG114", "error", "the manifest contradicts the model")
def model_agrees(facts: PackageFacts) -> Iterator[Problem]:
    """Chip, version and kind of the model are read from the file; a manifest that says otherwise is another one's."""
    container = facts.container
    if facts.manifest_path is None:
        raise CannotLook("no manifest beside the package")
    try:
        manifest = read_manifest(facts.manifest_path, ReadCount())
    except PackageError as error:
        raise CannotLook(error.message) from error
    check = manifest_agrees(container, read_attributes(container), Target(chip="", cann=None), manifest)
    if check.outcome != "ok":
        yield Problem(MANIFEST, "build", check.found, f"{check.expected} ({check.expected_from})", _FIX)


@BOOK.rule("PKG115", "error", "the manifest contradicts executor.json")
def executor_agrees(facts: PackageFacts) -> Iterator[Problem]:
    """Context and prefill length of the build are compiled into the graph."""
    built = facts.manifest.get("build")
    if not isinstance(built, Mapping):
        raise CannotLook(f"{MANIFEST} has no build section")
    for setting, name in _IN_MANIFEST.items():
        if name in built and built[name] != facts.count(setting):
            expected = f"{facts.count(setting)}, as llm_config.{setting} of {EXECUTOR}"
            yield Problem(MANIFEST, f"build.{name}", str(built[name])[:80], expected, _FIX)


def _listed(facts: PackageFacts) -> Mapping[str, Any]:
    files = facts.manifest.get("files")
    if not isinstance(files, Mapping):
        raise CannotLook(f"{MANIFEST} lists no files")
    return files


def _files(facts: PackageFacts) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Listed files that lie in the package, with what the manifest says of them."""
    for name, entry in _listed(facts).items():
        path = inside(facts.folder, name)
        if path is not None and isinstance(entry, Mapping):
            yield name, path, entry
