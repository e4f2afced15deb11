"""The quantize step of a recipe: which quantizer, on which text, and which matrices keep 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_cannlm.build.calibrated import CalibratedWeights
from pytest_cannlm.build.calibration import calibration_windows
from pytest_cannlm.build.decoder import Matrix
from pytest_cannlm.build.quantize import Formats, Rounding, RowSource, nearest, write_weights
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.build.schemes import Float32, scheme_named
from pytest_cannlm.build.sensitivity import choose_eight_bit, measure_sensitivity
from pytest_cannlm.build.unfinished import UnfinishedWork
from pytest_cannlm.build.weights import Coefficients
from pytest_cannlm.models.checkpoint import Checkpoint
from pytest_cannlm.models.tensors import EMBEDDING
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.progress import Progress


def quantize_checkpoint(
    recipe: Recipe, checkpoint: Checkpoint, *, path: Path, unfinished: UnfinishedWork, progress: Progress
) -> Coefficients:
    """Write the weights of ``checkpoint`` to ``path`` as ``recipe`` says, going on with ``unfinished`` work.

    Raises:
        BuildError: a tensor came out clamped, not finite or unrecognizable; the message names it.
        UsageError, BadInputError: the calibration text cannot be used.
    """
    config, scheme = checkpoint.config, scheme_named(recipe.stored_scheme)
    formats = Formats(scheme.projections, scheme.lm_head, recipe.group_size)
    label = f"{recipe.model} {scheme.name}"
    windows = _windows(recipe, checkpoint) if recipe.calibrates else []
    sensitivity: dict[str, float] = {}
    if recipe.keep_8bit:
        sensitivity = unfinished.numbers("sensitivity") or measure_sensitivity(
            config,
            read=checkpoint.read,
            windows=windows,
            formats=formats,
            label=f"{label}: which matrices need 8 bits",
            progress=progress,
        )
        unfinished.keep_numbers("sensitivity", sensitivity)
        chosen = choose_eight_bit(config, sensitivity, share=recipe.keep_8bit / 100)
        formats = replace(formats, eight_bit=chosen)
    read: RowSource = checkpoint.read
    rounding: Callable[[Matrix], Rounding] = nearest
    if recipe.quantizer != "rtn":
        label = f"{label}: {recipe.quantizer} on {sum(map(len, windows))} tokens"
        weights = CalibratedWeights(
            config,
            read=checkpoint.read,
            windows=windows,
            formats=formats,
            rescale="awq" in recipe.quantizer,
            feedback="gptq" in recipe.quantizer,
            unfinished=unfinished,
        )
        read, rounding = weights.read, weights.rounding
    coefficients = write_weights(
        config=config,
        read=read,
        rows_of=lambda name: checkpoint.tensors[name].shape[0],
        formats=formats,
        scheme=scheme.name,
        positions=recipe.context,
        path=path,
        label=f"{label}: weights",
        progress=progress,
        rounding=rounding,
    )
    return replace(coefficients, sensitivity=sensitivity)


def _windows(recipe: Recipe, checkpoint: Checkpoint) -> Sequence[Float32]:
    """The calibration text as embedding rows. Rows that several windows need are read once."""
    texts = calibration_windows(recipe.calibration, Tokenizer(checkpoint.tokenizer()))
    ids, places = np.unique(np.concatenate(texts), return_inverse=True)
    rows = np.concatenate([checkpoint.read(EMBEDDING, slice(int(token), int(token) + 1)) for token in ids])
    ends = np.cumsum([len(text) for text in texts])[:-1]
    return [rows[window] for window in np.split(places, ends)]
