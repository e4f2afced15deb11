"""PKG110 to PKG116: the manifest beside the package against the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_cannlm.compat.agreement import contradictions
from pytest_cannlm.compat.origin import read_attributes
from pytest_cannlm.compat.package import ReadCount, read_manifest
from pytest_cannlm.compat.places import CONTEXT, EXECUTOR, MANIFEST, inside
from pytest_cannlm.errors import PackageError
from pytest_cannlm.lint.documents import MANIFEST_LIMIT, Broken
from pytest_cannlm.lint.facts import THETA, PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.renames import renamed
from pytest_cannlm.models.hashing import file_sha256

BOOK = RuleBook()

HASHED_UNASKED = 1 << 30
"""Packages up to this size are hashed unless that was declined: about a second."""
_IN_MANIFEST = {
    "kv_cache_max_len": ("build", "context"),
    "prefill_len": ("build", "prefill"),
    "rope_theta": THETA,
}
"""Settings of ``llm_config``, and where the manifest records them."""
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
        size = path.stat().st_size
        if size != entry.get("bytes") and name != CONTEXT:
            yield Problem(name, None, f"{size} bytes", f"{entry.get('bytes')} bytes, as {MANIFEST}", _FIX)


@BOOK.rule("PKG112", "error", "a file has changed since the build")
def hashes(facts: PackageFacts) -> Iterator[Problem]:
    """Same size and other bytes: edited by hand, mixed up with another build, or damaged."""
    files = [(name, path, entry) for name, path, entry in _files(facts) if name != CONTEXT]
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


@BOOK.rule("PKG116", "note", "how to generate was changed since the build")
def generation(facts: PackageFacts) -> Iterator[Problem]:
    """Sampling, lengths and stop texts are the user's to change; answers of other settings are other answers."""
    for name, path, entry in _files(facts):
        same_size = path.stat().st_size == entry.get("bytes")
        hashed = same_size and facts.hashes is not False
        if name == CONTEXT and not (same_size and (not hashed or file_sha256(path) == entry.get("sha256"))):
            yield Problem(name, None, "edited since the build", f"the file that {MANIFEST} lists", "Nothing, if meant")


@BOOK.rule("PKG113", "warning", "a file that the manifest does not list")
def unlisted(facts: PackageFacts) -> Iterator[Problem]:
    """It was not there when the package was built, and nobody notices when it changes."""
    listed = {name.split("/")[0] for name in _listed(facts)} | set(renamed(facts).values())
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
    for said in contradictions(container, read_attributes(container), manifest):
        yield Problem(MANIFEST, "build", said.manifest, f"{said.file} ({said.place})", _FIX)


@BOOK.rule("PKG115", "error", "the manifest contradicts executor.json")
def executor_agrees(facts: PackageFacts) -> Iterator[Problem]:
    """Context and prefill length are compiled into the graph, and rope_theta is the checkpoint's own."""
    if not isinstance(facts.manifest.get("build"), Mapping):
        raise CannotLook(f"{MANIFEST} has no build section")
    for setting, place in _IN_MANIFEST.items():
        built = facts.recorded(*place)
        if built is None:
            continue
        value = facts.setting("llm_config", setting, object)
        if value != built:
            expected = f"{str(value)[:80]}, as llm_config.{setting} of {EXECUTOR}"
            yield Problem(MANIFEST, ".".join(place), str(built)[:80], expected, _FIX)


def _listed(facts: PackageFacts) -> Mapping[str, Any]:
    files = facts.manifest.get("files")
    if not isinstance(files, Mapping):
        raise CannotLook(f"{MANIFEST} lists no files")
    return files


def _files(facts: PackageFacts) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Listed files that are in the package, with what the manifest says of them; another rule names the others."""
    for name, entry in _listed(facts).items():
        path = inside(facts.folder, name)
        if path is not None and path.is_file() and isinstance(entry, Mapping):
            yield name, path, entry
