"""Fixtures that several test modules share."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import httpcore  # noqa: F401 - in-process runs of pytester forget what they import first, and httpx keeps its classes
import pytest
from tiny import make_tiny, tiny_llama

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


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a checkpoint of fixtures/make_tiny.py by its name; each is made once per run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda name: make_tiny(folder / name, name))
