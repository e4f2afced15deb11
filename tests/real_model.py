"""The real model of the end-to-end tests: SmolLM2-135M-Instruct, from the model cache or fetched into it."""

import os
from functools import cache
from pathlib import Path

import pytest

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.models.fetch import resolve_model
from pytest_cannlm.progress import PlainProgress
from pytest_cannlm.settings import resolve


def cache_folder() -> Path:
    return resolve(environment=os.environ).cache_folder


@cache
def smollm2() -> Path:
    """Path of the GGUF file; the test is skipped where it is neither there nor to be had."""
    try:
        return resolve_model("smollm2-135m", cache=cache_folder(), progress=PlainProgress())
    except EnvironmentFailure as error:
        pytest.skip(f"needs SmolLM2-135M: {error}")
