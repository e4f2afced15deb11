"""From a checkpoint to the folder that the LM Engine loads: quantize, export, convert, assemble."""

from pytest_cannlm.build.package import PackageFolder, locate_package, relabel
from pytest_cannlm.build.pipeline import BuiltPackage, StepResult, build
from pytest_cannlm.build.recipe import Recipe

__all__ = ["BuiltPackage", "PackageFolder", "Recipe", "StepResult", "build", "locate_package", "relabel"]
