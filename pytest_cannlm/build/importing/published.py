"""Settings for the engine, made from what a vendor's download says: its graph, its files, ``api_config.json``.

Every value has a source that is named in the manifest, two sources never disagree, and what nothing says is missing: no
value is a guess. Sources: keys and numbers of ``api_config.json`` and the naming of the embedding files as the vendor's
sample packages and interface description have them; ``MODEL.json`` and ``config.json`` where they use the engine's own
names, or those of Hugging Face's ``config.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_cannlm.build.importing.entries import MODEL_SUFFIXES
from pytest_cannlm.build.importing.given import SETTINGS
from pytest_cannlm.compat.places import CONTEXT, EXECUTOR
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.errors import BadInputError, PackageError
from pytest_cannlm.lint.documents import SETTINGS_LIMIT, Broken, read_document
from pytest_cannlm.lint.facts import API_CONFIG
from pytest_cannlm.lint.finding import CannotLook
from pytest_cannlm.lint.graph import interface_of
from pytest_cannlm.lint.schema import (
    API_CONFIG_SETTINGS,
    CONTEXT_SECTIONS,
    CONTEXT_SETTINGS,
    EXECUTOR_SECTIONS,
    EXECUTOR_SETTINGS,
    Setting,
)

Fact = tuple[str, Any, str]
"""Setting, value, and what says so."""

_FILES: Mapping[str, tuple[Sequence[str], Sequence[Setting]]] = {
    EXECUTOR: (EXECUTOR_SECTIONS, EXECUTOR_SETTINGS),
    CONTEXT: (CONTEXT_SECTIONS, CONTEXT_SETTINGS),
}
_ROWS, _SCALES = ".embedding_weights", ".embedding_dequant_scale"
_STEPS_IN_NAME = re.compile(r"_(\d{1,9})_(\d{1,9})$", re.ASCII)
_PATHS = ("tokenizer.path", "autoregressive.model_path", "autoregressive.weight_path")
_TOKENIZER_NUMBERS = ("spm", "hmb", "xlmroberta", "bpe", "qwen", "qwen2", "glm", "qwen3")
_ENGINE_TYPE = "autoregressive"
_OTHER_NAMES = {"num_key_value_heads": "num_attention_kv_heads", "head_dim": "num_attention_head_dims"}
"""Hugging Face's names of settings for which the engine has others."""


def make_settings(folder: Path, given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Write the settings files that ``folder`` lacks, and put what is ``given`` into those that it has.

    Returns:
        By file that was written, every setting that was added and what said so.

    Raises:
        PackageError: settings that the engine needs are said nowhere, SOURCE_INCOMPLETE names all of them.
        BadInputError: SOURCE_CONTRADICTS, two sources of one setting disagree, ``given`` counts as one.
    """
    lacking = [file for file in _FILES if not (folder / file).exists()]
    facts = list(_facts(folder)) if lacking else []
    facts_given = [(field, value, "given by the user") for field, value in given.items()]
    documents: dict[str, dict[str, Any]] = {}
    added: dict[str, dict[str, str]] = {}
    missing: list[str] = []
    for file, (sections, settings) in _FILES.items():
        is_new = file in lacking
        mine = [fact for fact in (*(facts if is_new else ()), *facts_given) if fact[0].split(".")[0] in sections]
        if not is_new and not mine:
            continue
        document = {"version": 1, "engine_type": _ENGINE_TYPE} if is_new else dict(_document(folder, file))
        documents[file], added[file] = document, _merge(file, document, mine)
        if is_new:
            missing += _missing(document, sections, settings)
    if missing:
        raise _incomplete(lacking, missing)
    for file, document in documents.items():
        write_document(folder / file, document)
    return {file: sources for file, sources in added.items() if sources}


def write_document(file: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file of a package, or beside one."""
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")


def _merge(file: str, document: dict[str, Any], facts: list[Fact]) -> dict[str, str]:
    """Put ``facts`` into ``document``; returns those that it did not hold already, each with its source."""
    added: dict[str, str] = {}
    for field, value, source in facts:
        section, _, key = field.partition(".")
        inner = document.setdefault(section, {})
        if not isinstance(inner, dict) or (key in inner and inner[key] != value):
            found = inner.get(key) if isinstance(inner, dict) else inner
            raise BadInputError(
                "two sources of one setting disagree",
                file=file,
                field=field,
                found=f"{found!r} ({added.get(field, file)})",
                expected=f"{value!r} ({source})",
                remedy="One of the two is another model's: use files of one download",
                code="SOURCE_CONTRADICTS",
            )
        if key not in inner:
            inner[key] = value
            added[field] = source
    return added


def _missing(document: Mapping[str, Any], sections: Sequence[str], settings: Sequence[Setting]) -> Iterator[str]:
    """What a document lacks: required settings, and one setting of a section that is not there at all."""
    for section in sections:
        inner = document.get(section, {})
        here = [setting for setting in settings if setting.section == section]
        required = [setting.field for setting in here if setting.required and setting.key not in inner]
        yield from required or ([here[0].field] if section not in document else ())


def _facts(folder: Path) -> Iterator[Fact]:
    """What the files of a download say of settings, the surest source first."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    api = _document(folder, API_CONFIG) if (folder / API_CONFIG).exists() else {}
    _require_autoregressive(api)
    models = [name for name in names if name.endswith(MODEL_SUFFIXES)]
    model = _named(api, "modelPath", models) or (models[0] if len(models) == 1 else None)
    known: set[str] = set()
    for field, value, source in (
        *((("autoregressive.model_path", model, "the files of the package"),) if model else ()),
        *(_of_graph(folder / model) if model else ()),
        *_of_embedding(folder, names),
        *_of_tokenizer(api, names),
        *(fact for name in _descriptions(model, names) for fact in _of_description(name, _document(folder, name))),
        *_of_api(api),
    ):
        known.add(field)
        yield field, value, source
    yield from (fact for fact in _of_embedding_name(names) if fact[0] not in known)


def _of_graph(model: Path) -> Iterator[Fact]:
    """Shapes that are compiled into the model, as far as it fixes them."""
    facts = describe(model)
    try:
        interface = interface_of(model.name, facts)
        caches = interface.caches()
    except CannotLook:
        return
    layers = sum(name.startswith("past_key_in") for name in caches)
    yield "llm_config.num_hidden_layers", layers, f"past_key_in0 to past_key_in{layers - 1} of {model.name}"
    for field, name, axis, rank in (
        ("kv_cache_max_len", "past_key_in0", 0, 4),
        ("num_attention_kv_heads", "past_key_in0", 1, 4),
        ("num_attention_head_dims", "past_key_in0", 3, 4),
        ("hidden_size", "input_embed", 2, 3),
        ("vocab_size", "lm_logits", 2, 3),
    ):
        try:
            yield f"llm_config.{field}", interface.axis(name, axis, rank=rank), f"{name} of {model.name}"
        except CannotLook:
            continue
    embed = interface.inputs.get("input_embed")
    if embed is not None and embed.dtype == "int8":
        yield "llm_config.embedding_input_type", embed.dtype, f"input_embed of {model.name}"


def _of_embedding(folder: Path, names: list[str]) -> Iterator[Fact]:
    """Names and sizes of the two embedding files: int8 rows [vocabulary, hidden] and a float32 scale for each."""
    rows = [name for name in names if name.endswith(_ROWS)]
    scales = [name for name in names if name.endswith(_SCALES)]
    if len(rows) != 1 or len(scales) != 1:
        return
    place, row_file, scale_file = PurePosixPath(rows[0]).parent, folder / rows[0], folder / scales[0]
    yield "autoregressive.weight_path", "./" if str(place) == "." else f"{place}/", f"where {row_file.name} lies"
    yield "llm_config.embedding_weights", row_file.name, "the files of the package"
    yield "llm_config.embedding_dequant_scale", scale_file.name, "the files of the package"
    vocabulary, rest = divmod(scale_file.stat().st_size, 4)
    if not vocabulary or rest:
        return
    yield "llm_config.vocab_size", vocabulary, f"size of {scale_file.name}"
    hidden, rest = divmod(row_file.stat().st_size, vocabulary)
    if hidden and not rest:
        yield "llm_config.hidden_size", hidden, f"size of {row_file.name}"


def _of_embedding_name(names: list[str]) -> Iterator[Fact]:
    """Prefill length and KV length as the embedding files are named by them: NAME_64_2048."""
    for name in names:
        steps = _STEPS_IN_NAME.search(PurePosixPath(name).name.removesuffix(_ROWS))
        if name.endswith(_ROWS) and steps:
            yield "llm_config.prefill_len", int(steps[1]), f"name of {name}"
            yield "llm_config.kv_cache_max_len", int(steps[2]), f"name of {name}"


def _of_tokenizer(api: Mapping[str, Any], names: list[str]) -> Iterator[Fact]:
    number, file = api.get("tokenizerType"), _named(api, "tokenizerPath", names)
    if isinstance(number, int) and 0 <= number < len(_TOKENIZER_NUMBERS):
        yield "tokenizer.type", _TOKENIZER_NUMBERS[number], f"tokenizerType {number} of {API_CONFIG}"
    if file is not None:
        yield "tokenizer.path", file, f"tokenizerPath of {API_CONFIG}"
    elif "tokenizer.json" in names:
        yield "tokenizer.path", "tokenizer.json", "the files of the package"


def _of_description(file: str, document: Mapping[str, Any]) -> Iterator[Fact]:
    """Settings by the engine's names, or Hugging Face's, at the top of a file or in a section of the engine's name."""
    llm = document.get("llm_config")
    for place in (document, llm if isinstance(llm, Mapping) else {}):
        for name, value in place.items():
            setting = SETTINGS.get(f"llm_config.{_OTHER_NAMES.get(name, name)}")
            if setting is not None and setting.takes(value):
                yield setting.field, value, f"{name} of {file}"


def _of_api(api: Mapping[str, Any]) -> Iterator[Fact]:
    """How to generate, in the words of ``api_config.json``: a flag may be 0 or 1 there, a stop text stand alone."""
    for name, place in API_CONFIG_SETTINGS.items():
        setting = SETTINGS[".".join(place)]
        if name not in api or setting.field in _PATHS:
            continue
        value = api[name]
        if setting.kind == "bool" and value in (0, 1):
            value = bool(value)
        elif setting.kind == "texts" and isinstance(value, str):
            value = [value] if value else []
        if setting.takes(value):
            yield setting.field, value, f"{name} of {API_CONFIG}"


def _require_autoregressive(api: Mapping[str, Any]) -> None:
    """Other kinds of inference need what the package's settings for this engine have no place for."""
    kind = api.get("inferType", 0)
    if kind != 0 and str(kind).lower() not in ("0", _ENGINE_TYPE):
        raise BadInputError(
            "the package is made for another kind of inference",
            file=API_CONFIG,
            field="inferType",
            found=kind,
            expected=f"0, {_ENGINE_TYPE}",
            code="SOURCE_UNSUPPORTED",
        )


def _descriptions(model: str | None, names: list[str]) -> list[str]:
    beside = [str(PurePosixPath(model).with_suffix(".json"))] if model else []
    return [name for name in (*beside, "config.json") if name in names]


def _named(api: Mapping[str, Any], key: str, names: list[str]) -> str | None:
    """The file of the package that a path of ``api_config.json`` ends with; apps have absolute paths there."""
    path = api.get(key)
    if not isinstance(path, str):
        return None
    wanted = PurePosixPath(path.replace("\\", "/")).name
    found = [name for name in names if wanted and PurePosixPath(name).name == wanted]
    return found[0] if len(found) == 1 else None


def _document(folder: Path, name: str) -> Mapping[str, Any]:
    document = read_document(folder / name, SETTINGS_LIMIT)
    if isinstance(document, Broken):
        raise PackageError(
            "a settings file cannot be used",
            file=name,
            found=document.found,
            expected="a JSON object",
            remedy="Get the package again",
            code="SOURCE_UNREADABLE",
        )
    return document


def _incomplete(lacking: Sequence[str], missing: Sequence[str]) -> PackageError:
    return PackageError(
        f"the package has no {' and no '.join(lacking)}, and its files do not say all that belongs there",
        file=lacking[0],
        found=f"nothing that says {', '.join(missing)}",
        expected=f"files that say it, such as {API_CONFIG} and the model's own .json",
        remedy="Take the values from the checkpoint's config.json and give them: "
        + " ".join(f"--set {field}=VALUE" for field in missing),
        code="SOURCE_INCOMPLETE",
    )
