"""PKG001 to PKG008 and PKG120 to PKG122: the files of the folder, and how the settings name them."""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections.abc import Iterator, Mapping

from pytest_cannlm.compat.package import inside
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.lint.documents import Broken
from pytest_cannlm.lint.facts import API_CONFIG, CONTEXT, EXECUTOR, PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.models.sniff import sniff

BOOK = RuleBook()

PATHS = (
    ("llm_config", "embedding_weights"),
    ("llm_config", "embedding_dequant_scale"),
    ("tokenizer", "path"),
    ("autoregressive", "model_path"),
    ("autoregressive", "weight_path"),
)
_BESIDE_WEIGHTS = PATHS[:2]
_NOT_DATA = ("lfs-pointer", "html", "empty")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SAME_IN_API_CONFIG = {
    "modelPath": (EXECUTOR, "autoregressive", "model_path"),
    "weightDir": (EXECUTOR, "autoregressive", "weight_path"),
    "tokenizerPath": (EXECUTOR, "tokenizer", "path"),
    "callbackFreq": (CONTEXT, "generate_options", "callback_freq"),
    "maxGenTokens": (CONTEXT, "generate_options", "max_gen_tokens"),
    "initTokenLen": (CONTEXT, "generate_options", "init_token_len"),
    "stopSeq": (CONTEXT, "generate_options", "stop_sequence"),
    "sampleFlag": (CONTEXT, "sampler", "do_sample"),
    "seed": (CONTEXT, "sampler", "seed"),
    "topK": (CONTEXT, "sampler", "top-k"),
    "topP": (CONTEXT, "sampler", "top-p"),
    "temperature": (CONTEXT, "sampler", "temperature"),
    "repetitionPenalty": (CONTEXT, "sampler", "repetition_penalty"),
}
"""Settings of api_config.json that say the same thing as one of the engine's own."""


@BOOK.rule("PKG001", "error", "a file of the package is missing")
def missing_files(facts: PackageFacts) -> Iterator[Problem]:
    """The engine does not load a package that lacks one of its files, and names the cause only in its log."""
    for settings in (EXECUTOR, CONTEXT):
        if not (facts.folder / settings).is_file():
            yield _missing(settings, "the package folder")
    for section, key in PATHS[:-1]:
        name = _path_setting(facts, section, key)
        if name is None or _is_absolute(name) or "\\" in name:
            continue
        try:
            path = facts.beside_weights(name) if (section, key) in _BESIDE_WEIGHTS else facts.path(name)
        except CannotLook:  # another rule names what is wrong with the place
            continue
        if not path.is_file():
            yield _missing(path.name, f"{section}.{key} of {EXECUTOR}")
    if not (facts.folder / EXECUTOR).is_file():
        return
    try:
        needs_weights, weights = facts.container.external_weights, facts.beside_weights(EXTERNAL_WEIGHT_FILE)
    except CannotLook:
        return
    if needs_weights and not weights.is_file():
        yield _missing(EXTERNAL_WEIGHT_FILE, f"{facts.model_path.name}, which holds no weights itself")


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
    for entry in facts.entries:
        if entry.kind != "file":
            continue
        content = sniff(facts.folder / entry.name)
        is_model = entry.name.endswith((".omc", ".om"))
        if content.kind in _NOT_DATA or (is_model and content.kind != "om"):
            expected = "a compiled model" if is_model else "the content that the name promises"
            yield Problem(entry.name, None, content.words, expected, content.remedy or "Put the right file there")


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
        if name and _is_absolute(name) and (section, key) not in _BESIDE_WEIGHTS:
            fix = "Keep it if an app installs the package there; else name the file without a path"
            yield Problem(EXECUTOR, f"{section}.{key}", name, "a relative path, outside apps", fix)


@BOOK.rule("PKG006", "error", "an embedding file is named with a path")
def embedding_paths(facts: PackageFacts) -> Iterator[Problem]:
    """The engine puts weight_path in front of these two names, also in front of an absolute one."""
    for section, key in _BESIDE_WEIGHTS:
        name = _path_setting(facts, section, key)
        if name and ("/" in name or "\\" in name):
            fix = "Leave the path out; weight_path says where the file lies"
            yield Problem(EXECUTOR, f"{section}.{key}", name, "a bare file name", fix)


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
    name: str = facts.setting("autoregressive", "weight_path", str)
    if not facts.path(name).is_dir():
        yield Problem(EXECUTOR, "autoregressive.weight_path", name, "a folder, such as ./", "Write ./")


@BOOK.rule("PKG120", "note", "a file that nothing refers to")
def stray_files(facts: PackageFacts) -> Iterator[Problem]:
    """It is copied to the device with every push, and may be a left-over of another build."""
    used = {EXECUTOR, CONTEXT, API_CONFIG, EXTERNAL_WEIGHT_FILE}
    used |= {_top(facts.setting(section, key, str)) for section, key in PATHS}
    model = posixpath.basename(facts.setting("autoregressive", "model_path", str))
    used |= {f"{model}.{suffix}" for suffix in ("loraconf", "loradata", "quantpara")}
    used.add(f"{posixpath.splitext(model)[0]}.json")
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
    for key, (file, section, name) in _SAME_IN_API_CONFIG.items():
        ours = (facts.executor if file == EXECUTOR else facts.context).get(section)
        if key not in settings or not isinstance(ours, Mapping) or name not in ours:
            continue
        if not _same(settings[key], ours[name]):
            expected = f"{ours[name]!r}, as {section}.{name} of {file}"
            yield Problem(API_CONFIG, key, repr(settings[key]), expected, "Make the two agree")


@BOOK.rule("PKG122", "warning", "a file name that the converters do not take")
def odd_names(facts: PackageFacts) -> Iterator[Problem]:
    """omg and atc take letters, digits, dot, dash and underscore; a package under such a name cannot be made again."""
    for entry in facts.entries:
        if not _PLAIN_NAME.fullmatch(entry.name):
            yield Problem(
                entry.name, None, ascii(entry.name), "letters, digits, dot, dash, underscore", "Rename the file"
            )


def _missing(name: str, wanted_by: str) -> Problem:
    return Problem(name, None, "no such file", f"a file, as {wanted_by} asks for it", "Copy or build the package again")


def _path_setting(facts: PackageFacts, section: str, key: str) -> str | None:
    """A path as ``executor.json`` writes it; None where it says nothing usable, which other rules report."""
    try:
        value: str = facts.setting(section, key, str)
    except CannotLook:
        return None
    return value


def _is_absolute(name: str) -> bool:
    return posixpath.isabs(name) or ntpath.isabs(name)


def _top(name: str) -> str:
    """The name in the package folder that a path starts with."""
    return posixpath.basename(name) if _is_absolute(name) else posixpath.normpath(name).split("/")[0]


def _same(one: object, other: object) -> bool:
    """Equal as settings: paths by their last part, flags as 0 and 1 too, one stop sequence also without a list."""
    if isinstance(one, str) and isinstance(other, str):
        return posixpath.basename(one.rstrip("/.")) == posixpath.basename(other.rstrip("/."))
    if isinstance(other, list) and not isinstance(one, list):
        return other == [one]
    return one == other
