"""A package as a folder on disk: finding it and what it says of itself. Standard library only, so that it is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_cannlm.compat import strictjson
from pytest_cannlm.compat.places import in_package, inside
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
        return read_object(self.package / EXECUTOR)

    @property
    def context(self) -> int:
        """Positions of the KV cache: ``kv_cache_max_len``, prompt and generated tokens together.

        Raises:
            PackageError: ``executor.json`` does not say it as a whole number.
        """
        said = self._setting("llm_config", "kv_cache_max_len")
        if not isinstance(said, int) or isinstance(said, bool):
            raise PackageError(
                "executor.json does not say what it must",
                file=self.package / EXECUTOR,
                field="llm_config.kv_cache_max_len",
                found=repr(said),
                expected="a whole number",
                code="PACKAGE_DAMAGED",
            )
        return said

    @property
    def model(self) -> Path:
        """The compiled model that ``executor.json`` names; never outside the package."""
        return self._place("model_path")

    @property
    def weights(self) -> Path:
        """Where the external weights lie, if the model has any; never outside the package."""
        return self._place("weight_path") / EXTERNAL_WEIGHT_FILE

    def _place(self, key: str) -> Path:
        name = in_package(self.executor, str(self._setting("autoregressive", key)))
        if inside(self.package, name) is None:
            raise PackageError(
                "executor.json names a place outside the package",
                file=self.package / EXECUTOR,
                field=f"autoregressive.{key}",
                found=name,
                code="PACKAGE_DAMAGED",
            )
        return self.package / name

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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a package, whatever else may stand there.

    Raises:
        PackageError: it is missing, is no JSON in UTF-8 without a doubt, or no object.
    """
    try:
        data = strictjson.parse(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(
            f"{path.name} cannot be read", file=path, found=error, expected="a JSON object", code="PACKAGE_DAMAGED"
        ) from error
    if not isinstance(data, dict):
        raise PackageError(
            f"{path.name} is no JSON object", file=path, found=type(data).__name__, code="PACKAGE_DAMAGED"
        )
    return data


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
    return PackageFolder(package, manifest, read_object(manifest))


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
    there = package.name == PACKAGE_DIR and manifest.is_file()
    return manifest if there and inside(package.parent, MANIFEST) else None
