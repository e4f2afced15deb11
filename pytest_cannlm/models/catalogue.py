"""Models that have a short name: where each can be had, how large it is, under which licence."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import nearest


@dataclass(frozen=True)
class CatalogueEntry:
    """One model of ``catalogue.toml``."""

    name: str
    title: str
    family: str
    """As in :class:`pytest_cannlm.models.config.DecoderConfig`."""
    kind: Literal["pypi-gguf", "huggingface"]
    """A GGUF file inside a wheel of the Python package index, or a Hugging Face repository."""
    source: str
    """Requirement with exact version, or repository."""
    file: str
    """Name of the file or folder in the model cache."""
    bytes: int
    """Size on disk; of a repository, that of its weights as published."""
    download_bytes: int
    license: str
    parameters: int
    """Number of weights; a tied embedding counts once."""
    member: str | None = None
    """The GGUF file's path inside the wheel."""
    sha256: str | None = None
    """Of the GGUF file."""


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """All entries by name, in the order of the file. Treat it as read-only."""
    text = files("pytest_cannlm.models").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: CatalogueEntry(name=name, **fields) for name, fields in tomllib.loads(text).items()}


def find(name: str) -> CatalogueEntry:
    """The entry called ``name``, in any letter case. Raises ``UsageError`` with the nearest name."""
    entries = catalogue()
    entry = entries.get(name.lower())
    if entry is not None:
        return entry
    near = nearest(name.lower(), entries)
    raise UsageError(
        f"no model is called {name!r}" + (f"; did you mean {near!r}?" if near else ""),
        field="model",
        expected=f"one of {', '.join(entries)}, or the path of a GGUF file or a Hugging Face folder",
    )
