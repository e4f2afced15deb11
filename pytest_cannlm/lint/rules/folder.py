"""PKG001 to PKG009 and PKG120 to PKG122: the files of the folder, and how the settings name them."""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR, MANIFEST, inside
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.lint.documents import Broken
from pytest_cannlm.lint.facts import API_CONFIG, EMBEDDINGS, PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.renames import FILE_SETTINGS, renamed
from pytest_cannlm.lint.schema import API_CONFIG_SETTINGS, EXECUTOR_SECTIONS
from pytest_cannlm.models.sniff import sniff

BOOK = RuleBook()

PATHS = (*FILE_SETTINGS, ("autoregressive", "weight_path"))
_NOT_DATA = ("lfs-pointer", "html", "empty")
_TAKEN_BY_OMG = re.compile(r"[A-Za-z0-9._]+")


@BOOK.rule("PKG001", "error", "a file of the package is missing")
def missing_files(facts: PackageFacts) -> Iterator[Problem]:
    """The engine does not load a package that lacks one of its files, and names the cause only in its log."""
    told = set()
    for name, path, wanted_by in _wanted(facts):
        there = renamed(facts).get(name)
        if name not in told and (there or path is None or not path.is_file()):
            told.add(name)
            found = f"no such file, but {there}, which nothing asks for" if there else "no such file"
            fix = f"Rename {there} to {name}" if there else "Copy or build the package again"
            yield Problem(name, None, found, f"a file, as {wanted_by} asks for it", fix)


@BOOK.rule("PKG002", "error", "a settings file that cannot be used")
def broken_json(facts: PackageFacts) -> Iterator[Problem]:
    """The engine's parser throws on broken JSON, which ends the process; a name that stands twice is read two ways."""
    for path, limit in facts.json_files():
        document = facts.document(path, limit)
        if isinstance(document, Broken):
            yield Problem(path.name, None, document.found, "a JSON object", "Correct the file, or build it again")


@BOOK.rule("PKG003", "error", "a file is not what its name says")
def wrong_content(facts: PackageFacts) -> Iterator[Problem]:
    """A download that ended in a git-lfs pointer, a login page or nothing leaves a file with the right name."""
    for path in _engine_files(facts):
        content = sniff(path)
        is_model = path.suffix in (".omc", ".om")
        if content.kind in _NOT_DATA or (is_model and content.kind != "om"):
            expected = "a compiled model" if is_model else "the content that the name promises"
            yield Problem(path.name, None, content.words, expected, content.remedy or "Put the right file there")


@BOOK.rule("PKG004", "error", "a name leads out of the package")
def leading_out(facts: PackageFacts) -> Iterator[Problem]:
    """What lies outside is not copied to the device with the package, and is nobody's promise."""
    fix = "Put the file into the package and name it without a path"
    for entry in facts.entries:
        if entry.kind == "outside":
            yield Problem(entry.name, None, "a link that leads out", "a file", fix)
    for section, key in PATHS:
        name = _path_setting(facts, section, key)
        if name and not _is_absolute(name) and inside(facts.folder, name) is None:
            yield Problem(EXECUTOR, f"{section}.{key}", name, "a name inside the package", fix)


@BOOK.rule("PKG005", "note", "an absolute path")
def absolute_paths(facts: PackageFacts) -> Iterator[Problem]:
    """Inside an app the engine needs absolute sandbox paths; anywhere else such a package works in one place only."""
    for section, key in PATHS:
        name = _path_setting(facts, section, key)
        if name and _is_absolute(name) and key not in EMBEDDINGS:
            fix = "Keep it if an app installs the package there; else name the file without a path"
            yield Problem(EXECUTOR, f"{section}.{key}", name, "a relative path, outside apps", fix)


@BOOK.rule("PKG006", "error", "an embedding file is named with a path")
def embedding_paths(facts: PackageFacts) -> Iterator[Problem]:
    """The engine puts weight_path in front of these two names, also in front of an absolute one."""
    for key in EMBEDDINGS:
        name = _path_setting(facts, "llm_config", key)
        if name and ("/" in name or "\\" in name):
            fix = "Leave the path out; weight_path says where the file lies"
            yield Problem(EXECUTOR, f"llm_config.{key}", name, "a bare file name", fix)


@BOOK.rule("PKG007", "error", "a path with Windows separators")
def windows_separators(facts: PackageFacts) -> Iterator[Problem]:
    """On the device a backslash is a letter of the name, so the file is not found."""
    for section, key in PATHS:
        name = _path_setting(facts, section, key)
        if name and ("\\" in name or ntpath.splitdrive(name)[0]):
            yield Problem(EXECUTOR, f"{section}.{key}", name, "a path with /", "Write / for \\, and no drive letter")


@BOOK.rule("PKG008", "error", "weight_path is no folder of the package")
def weight_folder(facts: PackageFacts) -> Iterator[Problem]:
    """The engine looks there for the external weights and the embedding files."""
    if not facts.named("autoregressive", "weight_path").is_dir():
        name = facts.setting("autoregressive", "weight_path", str)
        yield Problem(EXECUTOR, "autoregressive.weight_path", name, "a folder, such as ./", "Write ./")


@BOOK.rule("PKG009", "error", "an absolute path that is no place in the package")
def misplaced_paths(facts: PackageFacts) -> Iterator[Problem]:
    """Model, tokenizer and weights of an app are named by one folder on the device, which is then the package's."""
    expected = "model_path, weight_path and tokenizer.path absolute and in one folder, or none of them absolute"
    for section, key in PATHS:
        name = _path_setting(facts, section, key)
        if name and posixpath.isabs(name) and key not in EMBEDDINGS and _named(facts, section, key) is None:
            yield Problem(
                EXECUTOR, f"{section}.{key}", name, expected, "Name all three by one folder, or without a path"
            )


@BOOK.rule("PKG120", "note", "a file that nothing refers to")
def stray_files(facts: PackageFacts) -> Iterator[Problem]:
    """It is copied to the device with every push, and may be a left-over of another build."""
    used = {EXECUTOR, CONTEXT, API_CONFIG, EXTERNAL_WEIGHT_FILE}
    used |= {_top(facts.setting(section, key, str)) for section, key in PATHS}
    model = posixpath.basename(facts.setting("autoregressive", "model_path", str))
    used |= {f"{model}.{suffix}" for suffix in ("loraconf", "loradata", "quantpara")}
    used.add(f"{posixpath.splitext(model)[0]}.json")
    used.update(renamed(facts).values())
    for entry in facts.entries:
        if entry.name not in used and not entry.name.endswith((".om", ".omc")) and entry.kind != "outside":
            yield Problem(
                entry.name, None, f"a {entry.kind}", "what the settings name", "Delete it if it is not needed"
            )


@BOOK.rule("PKG121", "warning", "api_config.json says something else")
def api_config(facts: PackageFacts) -> Iterator[Problem]:
    """System services read api_config.json and the engine reads its own files; the same package then answers twice."""
    if not (facts.folder / API_CONFIG).exists():
        return
    settings = facts.json(facts.file(API_CONFIG))
    for key, (section, name) in API_CONFIG_SETTINGS.items():
        file = EXECUTOR if section in EXECUTOR_SECTIONS else CONTEXT
        ours = (facts.executor if file == EXECUTOR else facts.context).get(section)
        if key not in settings or not isinstance(ours, Mapping) or name not in ours:
            continue
        if not _same(key, settings[key], ours[name]):
            expected = f"{ours[name]!r}, as {section}.{name} of {file}"
            yield Problem(API_CONFIG, key, repr(settings[key]), expected, "Make the two agree")


@BOOK.rule("PKG122", "warning", "a file name that omg does not take")
def odd_names(facts: PackageFacts) -> Iterator[Problem]:
    """omg takes letters, digits, underscore and dot; a package under such a name cannot be made again."""
    for path in _engine_files(facts):
        if not _TAKEN_BY_OMG.fullmatch(path.name):
            yield Problem(path.name, None, ascii(path.name), "letters, digits, underscore, dot", "Rename the file")


def _wanted(facts: PackageFacts) -> Iterator[tuple[str, Path | None, str]]:
    """Files that must be there: name, where it would lie if not outside, and who asks for it."""
    for settings in (EXECUTOR, CONTEXT):
        yield settings, inside(facts.folder, settings), "the package folder"
    for section, key in FILE_SETTINGS:
        path = _named(facts, section, key)
        if path is not None:
            yield path.name, path, f"{section}.{key} of {EXECUTOR}"
    with suppress(CannotLook):
        if facts.container.external_weights:
            weights = facts.beside_weights(EXTERNAL_WEIGHT_FILE)
            yield EXTERNAL_WEIGHT_FILE, weights, f"{facts.model_path.name}, which holds no weights itself"
    listed = facts.recorded("files")
    for name in listed if isinstance(listed, Mapping) else ():
        path = inside(facts.folder, name)
        if path is not None:
            yield name, path, MANIFEST


def _engine_files(facts: PackageFacts) -> Iterator[Path]:
    """The files of the package that the engine reads, as far as they are there."""
    named = (_named(facts, section, key) for section, key in PATHS[:-1])
    fixed = (inside(facts.folder, name) for name in (EXECUTOR, CONTEXT, API_CONFIG))
    weights = _named(facts, *PATHS[-1])
    beside = weights and inside(weights, EXTERNAL_WEIGHT_FILE)
    return (path for path in dict.fromkeys((*fixed, *named, beside)) if path is not None and path.is_file())


def _path_setting(facts: PackageFacts, section: str, key: str) -> str | None:
    """A path as ``executor.json`` writes it; None where it says nothing usable, which other rules report."""
    try:
        value: str = facts.setting(section, key, str)
    except CannotLook:
        return None
    return value


def _named(facts: PackageFacts, section: str, key: str) -> Path | None:
    """Where a path setting leads in the package; None where it leads nowhere, which other rules report."""
    name = _path_setting(facts, section, key)
    if name is None or "\\" in name:
        return None
    try:
        return facts.named(section, key)
    except CannotLook:
        return None


def _is_absolute(name: str) -> bool:
    return posixpath.isabs(name) or ntpath.isabs(name)


def _top(name: str) -> str:
    """The name in the package folder that a path starts with."""
    return posixpath.basename(name) if _is_absolute(name) else posixpath.normpath(name).split("/")[0]


def _same(key: str, one: object, other: object) -> bool:
    """Equal as settings: files by their names, flags as 0 and 1 too, one stop sequence or none also without a list.

    An app and the engine may know one folder by two paths, of which only those of one kind can be compared.
    """
    if isinstance(one, str) and isinstance(other, str):
        if key != "weightDir":
            return posixpath.basename(one) == posixpath.basename(other)
        return _is_absolute(one) != _is_absolute(other) or posixpath.normpath(one) == posixpath.normpath(other)
    if isinstance(other, list) and not isinstance(one, list):
        return other == ([one] if one else [])
    return one == other
