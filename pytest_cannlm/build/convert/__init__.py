"""Step 3: turn the exported graph into what the device loads. One interface, one converter per tool.

``simulated`` stands in for the vendor's converters; ``omg`` and ``atc`` are theirs, found on this machine and driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_cannlm.build.convert.model import Converter, Exported
from pytest_cannlm.build.convert.quant_params import QuantParams, read_quant_params
from pytest_cannlm.build.convert.simulated import SimulatedConverter
from pytest_cannlm.build.convert.toolchain import choose_toolkit, version_of
from pytest_cannlm.build.convert.vendor import AtcConverter, OmgConverter
from pytest_cannlm.build.convert.workplace import LOG, Bench
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.errors import UsageError
from pytest_cannlm.models.checkpoint import open_checkpoint

__all__ = ["LOG", "Bench", "Converter", "Exported", "converter_for", "toolkit_version"]


def toolkit_version(converter: str, *, folder: Path | None, environment: Mapping[str, str]) -> str:
    """The CANN version that ``converter`` (``omg`` or ``atc``) builds for: that of its toolkit.

    Raises:
        EnvironmentFailure: there is no such toolkit, or nothing tells its version.
    """
    return version_of(choose_toolkit(converter, folder=folder, environment=environment)).version.raw


def converter_for(recipe: Recipe, bench: Bench) -> Converter:
    """The converter that the (validated) recipe asks for, ready to be used.

    Raises:
        EnvironmentFailure: its toolkit is missing, broken, or for another chip or CANN version.
        UsageError: the vendor's tools cannot make the recipe's scheme.
        BadInputError, BuildError: the quantization parameters must not be used.
    """
    if recipe.converter == "simulated":
        return SimulatedConverter(recipe.cann)
    toolkit = choose_toolkit(
        recipe.converter, folder=recipe.toolkit, environment=bench.environment, version=recipe.cann
    )
    _check_scheme(recipe)
    if recipe.converter == "atc":
        return AtcConverter(toolkit, recipe, bench)
    return OmgConverter(toolkit, recipe, bench, _quant_params(recipe, bench.hashes))


def _check_scheme(recipe: Recipe) -> None:
    """The vendor's tools quantize by themselves, from floats: our codes are nothing that they could take."""
    wanted = "w4a16" if recipe.quant_params else "fp16"
    if recipe.scheme == wanted:
        return
    if recipe.quant_params:
        reason, remedy = "quantization parameters of dopt are 4-bit weights", "Name the scheme w4a16"
    elif recipe.converter == "omg":
        reason = (
            f"omg makes fp16 models, and 4-bit ones only from what the vendor's dopt quantized, not {recipe.scheme}"
        )
        remedy = "Use fp16, or quantize with cannlm dopt, build with --quant-params, and name the package in model="
    else:
        reason, remedy = f"atc makes fp16 models only, not {recipe.scheme}", "Use fp16, or the converter omg"
    raise UsageError(reason, field="scheme", found=recipe.scheme, expected=wanted, remedy=remedy)


def _quant_params(recipe: Recipe, memo: Path | None) -> QuantParams | None:
    if recipe.quant_params is None:
        return None
    with open_checkpoint(recipe.checkpoint) as checkpoint:
        config = checkpoint.config
    return read_quant_params(recipe.quant_params, chip=recipe.chip, config=config, context=recipe.context, memo=memo)
