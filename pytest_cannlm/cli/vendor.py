"""``cannlm dopt``, and what ``cannlm build`` asks the vendor's tools first and says of devices last."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_cannlm.build.convert import toolkit_version
from pytest_cannlm.build.convert.toolchain import choose_toolkit
from pytest_cannlm.build.dopt import DoptJob, quantize
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.cli.answers import Answer
from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.devices import open_device, parse_device
from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.progress import Progress
from pytest_cannlm.simulator.profile import profile_names


def cann_to_build_for(asked: str | None, *, converter: str, toolkit: Path | None) -> str:
    """The CANN version of a recipe: the one asked for, else the vendor's toolkit's, else the recipe's default."""
    if asked is not None:
        return asked
    if converter in ("omg", "atc"):
        return toolkit_version(converter, folder=toolkit, environment=os.environ)
    return Recipe.cann


def notes_on(recipe: Recipe) -> list[str]:
    """What whoever runs the package should know: that the default device is another than it was built for."""
    device = open_device(parse_device("sim"))
    there = device.info
    device.close()
    chip = normalize(recipe.chip)
    if recipe.converter != "simulated" or (chip, recipe.cann) == (there.chip, there.cann):
        return []
    refused = f"the default device, a {there.chip} with CANN {there.cann}, refuses this package"
    if chip.lower() not in profile_names():
        return [f"{refused}, and nothing simulates a {chip}: only {', '.join(profile_names())}"]
    marker = "" if chip == there.chip else f', and in tests npu(chips=["{chip}"])'
    return [f"{refused}: use --npu='sim:{chip.lower()}?cann={recipe.cann}'{marker}"]


def run_dopt(
    model: Path,
    *,
    out: Path,
    toolkit: Path | None,
    chip: str,
    group_size: int,
    calibration: Path | None,
    python: str,
    progress: Progress,
) -> Answer:
    """Run the vendor's quantizer on a Hugging Face folder.

    :raises CannlmError: as :func:`pytest_cannlm.build.dopt.quantize` does.
    """
    if not model.is_dir():
        raise BadInputError("dopt takes a Hugging Face folder", file=model, found="no folder")
    kit = choose_toolkit("omg", folder=toolkit, environment=os.environ)
    with open_checkpoint(model) as checkpoint:
        config = checkpoint.config
    job = DoptJob(
        model,
        out.absolute(),
        chip=normalize(chip),
        calibration=calibration,
        group_size=group_size,
    )
    params = quantize(job, kit, config, python=python, environment=os.environ, progress=progress)
    data = {
        "quant_params": str(params.folder),
        "group_size": params.group_size,
        "bytes": params.file.stat().st_size,
        "doubts": list(params.doubts),
    }
    use = f"build with: cannlm build {model} --converter omg --quant-params {params.folder}"
    return Answer(data, [*params.doubts, str(params.file), use])
