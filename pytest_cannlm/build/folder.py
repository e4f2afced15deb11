"""A package as a folder on disk: finding it and what it says of itself. Standard library only, so that it is quick."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import PackageError

PACKAGE_DIR = "package"
MANIFEST = "manifest.json"
EXECUTOR = "executor.json"
COEFFICIENT_FILE = "coefficients.json"


@dataclass(frozen=True)
class PackageFolder:
    """A package on disk with the manifest beside it, if there is one.

    Attributes:
        package: the folder that the engine loads.
        manifest: path of ``manifest.json``, or None for a package made elsewhere.
        data: what the manifest says; empty without one.
    """

    package: Path
    manifest: Path | None
    data: Mapping[str, Any]

    @property
    def coefficients(self) -> Path | None:
        """The coefficient file beside the manifest, if it is there."""
        found = self.package.parent / COEFFICIENT_FILE
        return found if found.is_file() else None

    @cached_property
    def executor(self) -> Mapping[str, Any]:
        """What ``executor.json`` says.

        Raises:
            PackageError: it is missing or is no JSON object.
        """
        path = self.package / EXECUTOR
        try:
            data = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise PackageError(
                "executor.json cannot be read", file=path, found=error, code="PACKAGE_DAMAGED"
            ) from error
        if not isinstance(data, dict):
            raise PackageError("executor.json is no JSON object", file=path, code="PACKAGE_DAMAGED")
        return data

    @property
    def context(self) -> int:
        """Positions of the KV cache: ``kv_cache_max_len``, prompt and generated tokens together."""
        return int(self._setting("llm_config", "kv_cache_max_len"))

    @property
    def model(self) -> Path:
        """The compiled model that ``executor.json`` names."""
        return self.package / str(self._setting("autoregressive", "model_path"))

    @property
    def weights(self) -> Path:
        """Where the external weights lie, if the model has any."""
        return self.package / str(self._setting("autoregressive", "weight_path")) / EXTERNAL_WEIGHT_FILE

    def _setting(self, section: str, key: str) -> Any:
        try:
            return self.executor[section][key]
        except (KeyError, TypeError) as error:
            raise PackageError(
                "executor.json does not say what it must",
                file=self.package / EXECUTOR,
                field=f"{section}.{key}",
                code="PACKAGE_DAMAGED",
            ) from error


def locate_package(path: Path) -> PackageFolder:
    """The package at ``path``: the folder that the engine loads, or the one above it that also holds the manifest.

    Raises:
        PackageError: there is no package, or the manifest is not readable.
    """
    inner = path / PACKAGE_DIR
    package = inner if (inner / EXECUTOR).is_file() else path
    if not (package / EXECUTOR).is_file():
        raise PackageError(
            "not a model package",
            file=path,
            found="no executor.json",
            expected="a folder made by 'cannlm build', or one with executor.json",
            code="PACKAGE_INCOMPLETE",
        )
    manifest = _manifest_of(package)
    if manifest is None:
        return PackageFolder(package, None, {})
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PackageError("the manifest is not JSON", file=manifest, found=error) from error
    return PackageFolder(package, manifest, data)


def find_package(path: Path) -> PackageFolder | None:
    """The package at ``path`` as :func:`locate_package` sees it, whole or broken; None if nothing there looks like one.

    A package without its ``executor.json`` or with a broken manifest is one too: the gate says what is wrong with it.
    """
    inner = path / PACKAGE_DIR
    if _looks_like_package(inner) or (inner.is_dir() and (path / MANIFEST).is_file()):
        package = inner
    elif _looks_like_package(path):
        package = path
    else:
        return None
    try:
        return locate_package(package)
    except PackageError:
        return PackageFolder(package, _manifest_of(package), {})


def _looks_like_package(folder: Path) -> bool:
    return folder.is_dir() and any(file.name == EXECUTOR or file.suffix in (".omc", ".om") for file in folder.iterdir())


def _manifest_of(package: Path) -> Path | None:
    manifest = package.parent / MANIFEST
    return manifest if package.name == PACKAGE_DIR and manifest.is_file() else None
