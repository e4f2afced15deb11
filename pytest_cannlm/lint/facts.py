"""What the rules look at: the files of one package, each read once, when a rule first asks, and with a limit.

A fact that cannot be had raises ``CannotLook`` with the reason, so that a rule needs no case for it. Nothing is
written, and no link or path is followed out of the package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pytest_cannlm.compat.package import LARGEST_COUNT
from pytest_cannlm.compat.places import CONTEXT, EXECUTOR, folder_and_manifest, in_package, inside
from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import ContainerError
from pytest_cannlm.lint.documents import (
    MANIFEST_LIMIT,
    SETTINGS_LIMIT,
    TOKENIZER_LIMIT,
    Broken,
    read_document,
)
from pytest_cannlm.lint.finding import CannotLook
from pytest_cannlm.lint.graph import Interface, RuntimeGraph, interface_of, read_runtime_graph
from pytest_cannlm.lint.numbers import Look, Matrix, Region, look_at

T = TypeVar("T")

API_CONFIG = "api_config.json"
EMBEDDINGS = ("embedding_weights", "embedding_dequant_scale")
"""Settings of ``llm_config`` that name files which the engine looks for in ``weight_path``."""
THETA = ("model", "config", "rope", "theta")
"""Where the manifest records the base of the rotary embedding."""
MOST_ENTRIES = 10_000


@dataclass(frozen=True)
class Entry:
    """One name in the package folder. ``kind``: file, folder, outside (a link that leads out), or other."""

    name: str
    kind: str
    size: int


class PackageFacts:
    """The facts of the package folder ``folder``; ``hashes`` None leaves hashing to the size of the package."""

    def __init__(self, folder: Path, manifest: Path | None, *, hashes: bool | None = None) -> None:
        self.folder = folder
        self.manifest_path = manifest
        self.hashes = hashes
        self._documents: dict[Path, Mapping[str, Any] | Broken] = {}
        self._looks: dict[tuple[Region, ...], Look] = {}
        self._derived: dict[str, Any] = {}

    @classmethod
    def of(cls, path: Path, *, hashes: bool | None = None) -> PackageFacts:
        """Facts of the package at ``path``: the folder itself, or the one above it that also holds the manifest."""
        folder, manifest = folder_and_manifest(path)
        return cls(folder, manifest, hashes=hashes)

    # -- files

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Everything in the folder, by name."""
        found: list[Entry] = []
        with os.scandir(self.folder) as names:
            for name in names:
                if len(found) == MOST_ENTRIES:
                    raise CannotLook(f"the folder holds more than {MOST_ENTRIES:,} names")
                found.append(_entry(self.folder, name))
        return tuple(sorted(found, key=lambda entry: entry.name))

    def path(self, *names: str) -> Path:
        """The real path of a name from a settings file; it lies in the package, whether it is there or not."""
        name = os.path.join(*names)  # noqa: PTH118 - a name from a file, not yet a path to trust
        target = inside(self.folder, name)
        if target is None:
            raise CannotLook(f"{name} lies outside the package")
        return target

    def file(self, *names: str) -> Path:
        """As :meth:`path`, and there is a file."""
        return _there(self.path(*names))

    def named(self, section: str, key: str) -> Path:
        """The real path of what a setting of ``executor.json`` names, whether it is there or not."""
        name = in_package(self.executor, self.setting(section, key, str))
        return self.beside_weights(name) if key in EMBEDDINGS else self.path(name)

    # -- settings

    def document(self, path: Path, limit: int) -> Mapping[str, Any] | Broken:
        """The JSON object in ``path``, or why there is none."""
        if path not in self._documents:
            self._documents[path] = read_document(path, limit)
        return self._documents[path]

    def json(self, path: Path, limit: int = SETTINGS_LIMIT) -> Mapping[str, Any]:
        """The JSON object in ``path``."""
        document = self.document(path, limit)
        if isinstance(document, Broken):
            raise CannotLook(f"{path.name} is {document.found}")
        return document

    @cached_property
    def executor(self) -> Mapping[str, Any]:
        """``executor.json``."""
        return self.json(self.file(EXECUTOR))

    @cached_property
    def context(self) -> Mapping[str, Any]:
        """``context.json``."""
        return self.json(self.file(CONTEXT))

    @cached_property
    def tokenizer_file(self) -> Path:
        """The tokenizer that ``executor.json`` names."""
        return _there(self.named("tokenizer", "path"))

    @cached_property
    def tokenizer(self) -> Mapping[str, Any]:
        """``tokenizer.json``."""
        return self.json(self.tokenizer_file, TOKENIZER_LIMIT)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """``manifest.json``, whole."""
        if self.manifest_path is None:
            raise CannotLook("no manifest beside the package")
        return self.json(self.manifest_path, MANIFEST_LIMIT)

    def recorded(self, *keys: str) -> Any:
        """What the manifest says under ``keys``, one inside the other; None where it does not say it."""
        with suppress(CannotLook):
            value: Any = self.manifest
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            return value
        return None

    def setting(self, section: str, key: str, kind: type, *, file: str = EXECUTOR) -> Any:
        """A value of ``executor.json`` (or ``context.json``) that is of type ``kind``; a bool is no number."""
        inner = (self.executor if file == EXECUTOR else self.context).get(section)
        if not isinstance(inner, Mapping):
            raise CannotLook(f"{file} has no {section}")
        if key not in inner:
            raise CannotLook(f"{file} has no {section}.{key}")
        value = inner[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise CannotLook(f"{section}.{key} of {file} is of another type")
        return value

    def count(self, key: str) -> int:
        """A number of ``llm_config`` that counts something: 1 to 2³¹ - 1."""
        value: int = self.setting("llm_config", key, int)
        if not 0 < value <= LARGEST_COUNT:
            raise CannotLook(f"llm_config.{key} is {str(value)[:20]}")
        return value

    def flag(self, key: str) -> bool | None:
        """A flag of ``llm_config``; None where it is not there, or is none."""
        with suppress(CannotLook):
            value: bool = self.setting("llm_config", key, bool)
            return value
        return None

    def token_id(self, key: str) -> int:
        """A token id of ``llm_config``, in the vocabulary or not."""
        value: int = self.setting("llm_config", key, int)
        return value

    def beside_weights(self, name: str) -> Path:
        """The path of a file that the engine looks for in ``weight_path``."""
        return self.path(in_package(self.executor, self.setting("autoregressive", "weight_path", str)), name)

    def embedding(self, key: str) -> Path:
        """The embedding file that ``llm_config`` names under ``key``; it is there."""
        return _there(self.named("llm_config", key))

    def json_files(self) -> Iterator[tuple[Path, int]]:
        """The JSON files of the package that are there, each with the most that is read of it."""
        for name in (EXECUTOR, CONTEXT, API_CONFIG):
            path = inside(self.folder, name)
            if path is not None and path.is_file():
                yield path, SETTINGS_LIMIT
        with suppress(CannotLook):
            yield self.tokenizer_file, TOKENIZER_LIMIT

    # -- the compiled model

    @cached_property
    def model_path(self) -> Path:
        """The model that ``executor.json`` names; it is there."""
        return _there(self.named("autoregressive", "model_path"))

    @cached_property
    def opened(self) -> Container | ContainerError:
        """The opened model, or the error of its container."""
        try:
            return open_container(self.model_path)
        except ContainerError as error:
            return error

    @property
    def container(self) -> Container:
        """The opened model."""
        if isinstance(self.opened, ContainerError):
            raise CannotLook(f"{self.model_path.name} cannot be read ({self.opened.code})")
        return self.opened

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """Everything that the model says of itself, as :func:`~pytest_cannlm.container.inspect.describe` gives it."""
        return describe(self.model_path)

    @cached_property
    def interface(self) -> Interface:
        """Inputs and outputs that the compiled graph declares."""
        return interface_of(self.container.path.name, self.described)

    @cached_property
    def weight_file(self) -> Path:
        """The external weights; they are there."""
        return _there(self.beside_weights(EXTERNAL_WEIGHT_FILE))

    @cached_property
    def runtime(self) -> RuntimeGraph:
        """The graph inside a simulated model, which says what lies where in the weight file."""
        if not self.container.simulated:
            raise CannotLook("the weights of a model for a real NPU lie in an order of the vendor's own")
        return read_runtime_graph(self.container)

    def look(self, matrix: Matrix) -> Look:
        """What the numbers of a tensor look like; several rules judge one look."""
        place = tuple(matrix.arrays.values())
        if place not in self._looks:
            self._looks[place] = look_at(matrix)
        return self._looks[place]

    def derived(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` gives, made once: for what several rules work out from the facts in the same way."""
        if key not in self._derived:
            self._derived[key] = make()
        value: T = self._derived[key]
        return value

    @property
    def own_build(self) -> bool:
        """Whether this project made the package: it has a manifest of a build, or its model is simulated."""
        if self.manifest_path is not None and self.recorded("imported") is not True:
            return True
        try:
            return self.container.simulated
        except CannotLook:
            return False


def _there(path: Path) -> Path:
    if not path.is_file():
        raise CannotLook(f"there is no file {path.name}")
    return path


def _entry(folder: Path, name: os.DirEntry[str]) -> Entry:
    if name.is_symlink() and inside(folder, name.name) is None:
        return Entry(name.name, "outside", 0)
    try:
        if name.is_dir():
            return Entry(name.name, "folder", 0)
        if name.is_file():
            return Entry(name.name, "file", name.stat().st_size)
    except OSError:  # a link in a circle, or a name that vanished
        pass
    return Entry(name.name, "other", 0)
