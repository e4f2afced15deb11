"""The fixtures. Session scope: usable with hypothesis's ``@given`` and in fixtures of any scope.

Each returns one object for the whole session; what stands behind it is the package and device of the test that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.devices import DeviceInfo
    from pytest_cannlm.harness.fallback import CloudLlm
    from pytest_cannlm.harness.npu import Npu
    from pytest_cannlm.harness.session import Harness


class NpuPackage:
    """The package of the running test."""

    def __init__(self, npu: Npu) -> None:
        self._npu = npu

    @property
    def folder(self) -> Path:
        """The folder that the engine loads."""
        return self._current.package

    @property
    def manifest(self) -> dict[str, Any]:
        """What the manifest says: recipe, tool versions, hash of every file; empty for a package made elsewhere."""
        return dict(self._current.data)

    @property
    def _current(self) -> PackageFolder:
        return self._npu.package


class NpuDevice:
    """The device of the running test."""

    def __init__(self, npu: Npu) -> None:
        self._npu = npu

    @property
    def info(self) -> DeviceInfo:
        """Name, chip, CANN version, memory, and whether the device is simulated."""
        return self._npu.device


class OnnxReference:
    """The ONNX reference of the running test's model, run by ONNX Runtime on this machine."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def logits(self, tokens: str | Sequence[int], *, against: str = "float") -> npt.NDArray[np.float32]:
        """Teacher-forced logits at every position of ``tokens``: float32 ``[len(tokens), vocabulary]``.

        :param tokens: ids, or a text that the package's tokenizer turns into ids.
        :param against: "float" for the checkpoint's own weights, "quantized" for the package's dequantized ones.
        """
        import numpy as np

        run = self._harness.npu.run
        ids = run.tokenizer.encode(tokens) if isinstance(tokens, str) else list(tokens)
        return np.concatenate(list(self._harness.reference(run, against).logits(ids)))


def _harness(config: pytest.Config) -> Harness:
    from pytest_cannlm.plugin.running import harness_of

    return harness_of(config)


def fixture_types() -> tuple[type, ...]:
    """What the fixtures below return."""
    from pytest_cannlm.harness.npu import Npu

    return (Npu, NpuPackage, NpuDevice, OnnxReference)


@pytest.fixture(scope="session")
def npu(request: pytest.FixtureRequest) -> Npu:
    """The NPU with the package that the test's ``npu`` marker names: chat, generate, logits, memory, capabilities."""
    return _harness(request.config).npu


@pytest.fixture(scope="session")
def npu_device(npu: Npu) -> NpuDevice:
    """The device that the test runs on."""
    return NpuDevice(npu)


@pytest.fixture(scope="session")
def npu_package(npu: Npu) -> NpuPackage:
    """The package that is loaded: its folder and its manifest."""
    return NpuPackage(npu)


@pytest.fixture(scope="session")
def onnx_reference(request: pytest.FixtureRequest) -> OnnxReference:
    """The ONNX reference of the test's model: float, or with the package's quantized weights."""
    return OnnxReference(_harness(request.config))


@pytest.fixture(scope="session")
def cloud_llm(request: pytest.FixtureRequest) -> CloudLlm:
    """An OpenAI-compatible endpoint on this machine: scripted, and it remembers what reaches it. Needs no marker."""
    from pytest_cannlm.plugin.running import cloud_of

    return cloud_of(request.config)
