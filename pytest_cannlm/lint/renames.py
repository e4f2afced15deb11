"""Files that are there under another name: what is missing and what nobody asks for, joined by case or size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.lint.facts import EMBEDDINGS, PackageFacts
from pytest_cannlm.lint.finding import CannotLook

FILE_SETTINGS = (
    *(("llm_config", key) for key in EMBEDDINGS),
    ("tokenizer", "path"),
    ("autoregressive", "model_path"),
)
"""Settings of ``executor.json`` that name a file each."""


def renamed(facts: PackageFacts) -> Mapping[str, str]:
    """Names that the package asks for and lacks, each with the file that was probably called so."""
    return facts.derived("renamed", lambda: _renamed(facts))


def pairs(wanted: Mapping[str, int | None], there: Mapping[str, int]) -> dict[str, str]:
    """Wanted names that are not there, each with the one other name that differs in case only, or has its size.

    :param wanted: sizes in bytes by name; None where nothing tells.
    :param there: sizes of the files that are there.
    """
    found: dict[str, str] = {}
    for same in (
        lambda name, other: name.casefold() == other.casefold(),
        lambda name, other: wanted[name] == there[other] and there[other] > 0,
    ):
        missing = [name for name in wanted if name not in there and name not in found]
        others = [other for other in there if other not in wanted and other not in found.values()]
        for name in missing:
            matches = [other for other in others if same(name, other)]
            if len(matches) == 1 and sum(same(each, matches[0]) for each in missing) == 1:
                found[name] = matches[0]
    return found


def _renamed(facts: PackageFacts) -> Mapping[str, str]:
    wanted: dict[str, int | None] = dict.fromkeys((EXECUTOR, CONTEXT, EXTERNAL_WEIGHT_FILE))
    folder = Path(os.path.realpath(facts.folder))
    for section, key in FILE_SETTINGS:
        with suppress(CannotLook):
            path = facts.named(section, key)
            if path.parent == folder:
                wanted[path.name] = None
    listed = facts.recorded("files")
    for name, entry in (listed if isinstance(listed, Mapping) else {}).items():
        size = entry.get("bytes") if isinstance(entry, Mapping) else None
        wanted[name] = size if type(size) is int else None
    with suppress(CannotLook):  # a folder that is too large to be listed
        return pairs(wanted, {entry.name: entry.size for entry in facts.entries if entry.kind == "file"})
    return {}
