"""Hooks that a third party, or a project's ``conftest.py``, can implement. All of them are optional."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_cannlm.build import PackageFolder, Recipe
    from pytest_cannlm.devices import DeviceSpec
    from pytest_cannlm.harness.rooms import DeviceLike, Reference
    from pytest_cannlm.harness.run import Run
    from pytest_cannlm.measure.figures import Verdict


@pytest.hookspec(firstresult=True)
def pytest_cannlm_open_device(config: pytest.Config, spec: DeviceSpec) -> DeviceLike | None:
    """Open the device that ``spec`` names; None leaves it to the next implementation, at last to pytest-cannlm's own.

    Called once per device and process. Example: a bench whose board is reached through an own transport::

        def pytest_cannlm_open_device(config, spec):
            return BenchDevice(spec.key) if spec.kind == "hdc" else None
    """


@pytest.hookspec(firstresult=True)
def pytest_cannlm_find_model(config: pytest.Config, model: str) -> Path | None:
    """The checkpoint of a model name; None leaves it to the catalogue. Example: a company's own model store."""


@pytest.hookspec(firstresult=True)
def pytest_cannlm_build(config: pytest.Config, recipe: Recipe) -> PackageFolder | None:
    """Build the package of ``recipe``; None leaves it to the pipeline. Example: packages from a build server."""


@pytest.hookspec(firstresult=True)
def pytest_cannlm_reference(config: pytest.Config, package: PackageFolder, checkpoint: Path | None) -> Reference | None:
    """The reference that ``package`` is compared with; None leaves it to ONNX Runtime.

    With a checkpoint: its float weights. Without: the quantized weights of the package.
    """


@pytest.hookspec
def pytest_cannlm_judge(item: pytest.Item, run: Run) -> Sequence[Verdict] | None:
    """Verdicts of an own check, taken after the body beside those of the markers. Not asked where nothing was loaded.

    Example: a limit on the number of tokens that a test's body generated.
    """
