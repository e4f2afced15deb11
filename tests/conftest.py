"""Fixtures that several test modules share."""

from pathlib import Path

import httpcore  # noqa: F401 - in-process runs of pytester forget what they import first, and httpx keeps its classes
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import BuiltPackage, PackageFolder, Recipe, build, locate_package
from pytest_cannlm.progress import SilentProgress

pytest_plugins = ["pytester"]


class TinyPackages:
    """Packages of the tiny checkpoint, each built once per run."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def built(self, scheme: str = "w4a16", **recipe: object) -> BuiltPackage:
        """The build result for ``scheme``; further fields of the recipe by keyword."""
        made = Recipe("tiny", tiny_llama(), **{"scheme": scheme, "context": 256, **recipe})
        return build(made, cache=self.cache, progress=SilentProgress())

    def __call__(self, scheme: str = "w4a16", **recipe: object) -> PackageFolder:
        """The package folder."""
        return locate_package(self.built(scheme, **recipe).manifest.parent)


@pytest.fixture(scope="session")
def tiny_packages(tmp_path_factory: pytest.TempPathFactory) -> TinyPackages:
    """Builder of packages of the tiny checkpoint."""
    return TinyPackages(tmp_path_factory.mktemp("cache"))
