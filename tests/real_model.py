"""The real model of the end-to-end tests: SmolLM2-135M-Instruct, from the model cache or fetched into it."""

import os
from functools import cache
from pathlib import Path

import pytest

from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.models.fetch import resolve_model
from pytest_cannlm.progress import PlainProgress
from pytest_cannlm.settings import resolve

OFFLINE = "CANNLM_TESTS_OFFLINE"


def cache_folder() -> Path:
    return resolve(environment=os.environ).cache_folder


@cache
def smollm2() -> Path:
    """Path of the GGUF file. Where it is not to be had the test fails, unless somebody said that this is expected."""
    try:
        return resolve_model("smollm2-135m", cache=cache_folder(), progress=PlainProgress())
    except EnvironmentFailure as error:
        if os.environ.get(OFFLINE) == "1":
            pytest.skip(f"needs SmolLM2-135M, and {OFFLINE}=1: {error}")
        pytest.fail(f"needs SmolLM2-135M (set {OFFLINE}=1 to skip such tests): {error}", pytrace=False)
