"""From a checkpoint to the folder that the LM Engine loads: quantize, export, convert, assemble.

The names below are imported from their modules on first use: to find a package on disk takes none of what builds one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cannlm.build.copies import relabel as relabel
    from pytest_cannlm.build.copies import stand_in as stand_in
    from pytest_cannlm.build.folder import PackageFolder as PackageFolder
    from pytest_cannlm.build.folder import find_package as find_package
    from pytest_cannlm.build.folder import locate_package as locate_package
    from pytest_cannlm.build.pipeline import BuiltPackage as BuiltPackage
    from pytest_cannlm.build.pipeline import StepResult as StepResult
    from pytest_cannlm.build.pipeline import build as build
    from pytest_cannlm.build.recipe import Recipe as Recipe

_HOMES = {
    "copies": ("relabel", "stand_in"),
    "folder": ("PackageFolder", "find_package", "locate_package"),
    "pipeline": ("BuiltPackage", "StepResult", "build"),
    "recipe": ("Recipe",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
