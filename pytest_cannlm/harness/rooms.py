"""How the harness reaches the rooms that it stands on. A third party or a test puts its own callables here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cannlm.agent.protocol import (
    AgentStatus,
    Capabilities,
    GenerateRequest,
    Generation,
    LoadReport,
    Memory,
    Times,
    TimingRequest,
    TokenEvent,
)
from pytest_cannlm.devices.client import LOAD_S
from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.build import PackageFolder, Recipe
    from pytest_cannlm.compat.gate import Target
    from pytest_cannlm.devices.base import DeviceInfo
    from pytest_cannlm.models.tokenizer import Tokenizer


class EngineClient(Protocol):
    """The calls of the agent that the harness makes; :class:`pytest_cannlm.devices.AgentClient` is the real one."""

    def load(
        self,
        package: Path,
        *,
        manifest: Path | None = None,
        target: Target | None = None,
        timeout_s: float = LOAD_S,
    ) -> LoadReport:
        """Have the package judged against ``target`` (None: the gate is off) and loaded within ``timeout_s``."""

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None] | None = None) -> Generation:
        """Run one generation."""

    def tokenize(self, text: str) -> list[int]:
        """Ids that the engine would feed for ``text``."""

    def logits(self, tokens: Sequence[int], first: int = 0, step: int | None = None) -> npt.NDArray[np.float32]:
        """Teacher-forced logits, float32 ``[len(tokens) - first, vocabulary]``, ``step`` positions at a time."""

    def sample_times(self, request: TimingRequest) -> list[Times]:
        """Seeded times of generations that a modelled engine does not compute."""

    def memory(self) -> Memory:
        """The engine's footprint now."""

    def reset(self) -> None:
        """Forget contexts and cached prefixes."""

    def unload(self) -> Memory:
        """Release the model; ``current`` is what is left over."""

    def capabilities(self) -> Capabilities:
        """What the engine can do."""

    def status(self) -> AgentStatus:
        """What the agent does."""


class DeviceLike(Protocol):
    """A device as the harness uses it; :class:`pytest_cannlm.devices.Device` is one."""

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""

    def agent(self) -> EngineClient:
        """The agent beside its engine, started on first use."""

    def close(self) -> None:
        """End the agent and everything that it started."""


class Reference(Protocol):
    """A model that the device's outputs are compared with."""

    @property
    def digest(self) -> str:
        """Identity of what the reference was made from."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with it: the checkpoint's own, not the one that was written for the engine."""

    def logits(self, ids: Sequence[int], first: int = 0) -> Iterable[npt.NDArray[np.float32]]:
        """Teacher-forced logits at positions ``first``.. of ``ids``, float32 ``[n, vocabulary]``, in chunks of rows."""

    def logits_of(self, texts: Sequence[tuple[Sequence[int], int]]) -> Iterable[npt.NDArray[np.float32]]:
        """The logits ``[n, vocabulary]`` of each of several texts in order, each given as (ids, first)."""

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Greedy continuation of ``ids``, ended by an end-of-text id, which is included."""


@dataclass(frozen=True)
class Rooms:
    """Devices, packages, relabelled copies and references, by callables. The defaults are the project's own."""

    open_device: Callable[[DeviceSpec], DeviceLike]
    find_model: Callable[[str, Path, Progress], Path]
    """(name or path, cache folder, progress) -> checkpoint."""
    build: Callable[[Recipe, Path, Progress], PackageFolder]
    """(recipe, cache folder, progress) -> package."""
    relabel: Callable[..., PackageFolder]
    """As :func:`pytest_cannlm.build.relabel`."""
    reference: Callable[[PackageFolder, Path | None, Path, Progress], Reference]
    """(package, checkpoint, cache folder, progress) -> the float reference of the checkpoint, or, where that is None,
    the quantized reference of the package."""


def own_rooms() -> Rooms:
    """The project's own devices, catalogue, build pipeline and references; heavy imports happen on first use."""
    return Rooms(open_device=_open_device, find_model=_find_model, build=_build, relabel=_relabel, reference=_reference)


def _open_device(spec: DeviceSpec) -> DeviceLike:
    from pytest_cannlm.devices import open_device

    return open_device(spec)


def _find_model(model: str, cache: Path, progress: Progress) -> Path:
    from pytest_cannlm.models.fetch import resolve_model

    return resolve_model(model, cache=cache, progress=progress)


def _build(recipe: Recipe, cache: Path, progress: Progress) -> PackageFolder:
    from pytest_cannlm.build import build, locate_package

    return locate_package(build(recipe, cache=cache, progress=progress).package)


def _relabel(source: PackageFolder, dest: Path, **wrong: Any) -> PackageFolder:
    from pytest_cannlm.build import relabel

    return relabel(source, dest, **wrong)


def _reference(package: PackageFolder, checkpoint: Path | None, cache: Path, progress: Progress) -> Reference:
    from pytest_cannlm.build.reference import float_reference, quantized_reference
    from pytest_cannlm.parity.reference import OnnxReference

    if checkpoint is None:
        return OnnxReference(quantized_reference(package, cache=cache, progress=progress))
    return OnnxReference(float_reference(checkpoint, context=package.context, cache=cache, progress=progress))
