"""PKG010 to PKG015: names, types and ranges of the settings in ``executor.json`` and ``context.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.schema import CONTEXT_SECTIONS, CONTEXT_SETTINGS, EXECUTOR_SECTIONS, EXECUTOR_SETTINGS, Setting
from pytest_cannlm.settings import nearest

BOOK = RuleBook()

_ENGINE_TYPE = "autoregressive"
_MOST = 40
"""Findings of one kind per file; a file of another kind altogether has thousands of unknown settings."""


@BOOK.rule("PKG010", "error", "a required setting is missing")
def missing_settings(facts: PackageFacts) -> Iterator[Problem]:
    """Without it the engine does not load the model, or crashes, or silently uses its defaults."""
    for file, data, settings, sections in _files(facts):
        for section in sections:
            if section not in data:
                yield Problem(file, section, "nothing", "an object", "Add the section, or build the package again")
        for setting in settings:
            inner = _section(data, setting.section)
            if setting.required and inner is not None and setting.key not in inner:
                yield Problem(file, setting.field, "nothing", setting.expected, "Add it, or build the package again")


@BOOK.rule("PKG011", "error", "a setting of the wrong type or out of range")
def wrong_values(facts: PackageFacts) -> Iterator[Problem]:
    """The engine's JSON parser throws on another type, and a wrong number crashes at load."""
    for file, data, settings, sections in _files(facts):
        for section in sections:
            if section in data and not isinstance(data[section], Mapping):
                yield Problem(file, section, _shown(data[section]), "an object", "Write the section as an object")
        for setting in settings:
            inner = _section(data, setting.section)
            if inner is not None and setting.key in inner and not setting.takes(inner[setting.key]):
                found = _shown(inner[setting.key])
                yield Problem(file, setting.field, found, setting.expected, "Correct the value")


@BOOK.rule("PKG012", "warning", "a setting that is probably misspelt")
def misspelt_settings(facts: PackageFacts) -> Iterator[Problem]:
    """The engine ignores names that it does not know, so the setting that was meant is not set (top_k for top-k)."""
    for file, field, likely in _unknown(facts):
        if likely:
            yield Problem(file, field, field, likely, f"Write {likely} if that is what is meant")


@BOOK.rule("PKG013", "note", "a setting that is not known")
def unknown_settings(facts: PackageFacts) -> Iterator[Problem]:
    """The engine may ignore it; official packages have some that are described nowhere."""
    for file, field, likely in _unknown(facts):
        if not likely:
            yield Problem(file, field, field, "a setting of the engine", "Nothing, if it came with an official package")


@BOOK.rule("PKG014", "warning", "a version or engine type that no known package has")
def engine_type(facts: PackageFacts) -> Iterator[Problem]:
    """Every package that is known to load has version 1 and the engine type autoregressive."""
    for file, data, _, _ in _files(facts):
        for key, expected in (("version", 1), ("engine_type", _ENGINE_TYPE)):
            if key in data and data[key] != expected:
                yield Problem(file, key, _shown(data[key]), str(expected), f"Write {expected}")


@BOOK.rule("PKG015", "error", "context.json holds settings of executor.json")
def executor_in_context(facts: PackageFacts) -> Iterator[Problem]:
    """The engine does not say so: it ignores them and uses defaults for what context.json should say."""
    for section in EXECUTOR_SECTIONS:
        if section in facts.context:
            yield Problem(CONTEXT, section, "a section of executor.json", "generate_options and sampler", "Take it out")


_File = tuple[str, Mapping[str, Any], Sequence[Setting], Sequence[str]]


def _files(facts: PackageFacts) -> list[_File]:
    """The settings files that can be read, each with what may be in it."""
    found: list[_File] = []
    reasons = []
    for file, settings, sections in (
        (EXECUTOR, EXECUTOR_SETTINGS, EXECUTOR_SECTIONS),
        (CONTEXT, CONTEXT_SETTINGS, CONTEXT_SECTIONS),
    ):
        try:
            found.append((file, facts.executor if file == EXECUTOR else facts.context, settings, sections))
        except CannotLook as cause:
            reasons.append(str(cause))
    if not found:
        raise CannotLook("; ".join(reasons))
    return found


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    inner = data.get(name) if name else data
    return inner if isinstance(inner, Mapping) else None


def _unknown(facts: PackageFacts) -> Iterator[tuple[str, str, str | None]]:
    """Unknown settings: file, name, and the known name that was probably meant."""
    for file, data, settings, sections in _files(facts):
        count = 0
        for section in ("", *sections):
            inner = _section(data, section) or {}
            known = {setting.key for setting in settings if setting.section == section} | (
                set() if section else {*sections}
            )
            foreign = {*EXECUTOR_SECTIONS} if file == CONTEXT and not section else set()
            for key in inner:
                if key in known | foreign or count == _MOST:
                    continue
                count += 1
                likely = nearest(key[:80], known, likeness=0.8)
                prefix = f"{section}." if section else ""
                yield file, prefix + key[:80], likely and prefix + likely


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, Mapping) else "an object"
    return text if len(text) <= 80 else text[:77] + "..."
