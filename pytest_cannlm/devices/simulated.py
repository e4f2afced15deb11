"""The simulated device: an agent on this machine whose engine is the simulated NPU."""

from __future__ import annotations

import threading
from typing import Any

from pytest_cannlm.devices.base import DeviceInfo
from pytest_cannlm.devices.client import AgentClient
from pytest_cannlm.devices.process import AgentProcess
from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.errors import DeviceError

DEFAULT_CHIP = "KirinX90"
DEFAULT_CANN = "6.1.1.0"
DEFAULT_RAM_BYTES = 32 * 2**30


class SimulatedDevice:
    """A Kirin device that is not there. Its figures are modelled, its processes are real."""

    def __init__(self, spec: DeviceSpec, *, engine: str = "simulated") -> None:
        """``engine`` is what the agent runs; tests put a double in its place, as ``module:Class``."""
        self._engine = engine
        self._info = DeviceInfo(
            kind=spec.kind,
            name=spec.text,
            chip=spec.key or DEFAULT_CHIP,
            cann=spec.options.get("cann", DEFAULT_CANN),
            device_version=None,
            ram_bytes=spec.options.get("ram", DEFAULT_RAM_BYTES),
            simulated=True,
            options=dict(spec.options),
        )
        self._starting = threading.Lock()
        self._process: AgentProcess | None = None
        self._client: AgentClient | None = None
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        return self._info

    def agent(self) -> AgentClient:
        """The agent; see :meth:`Device.agent`."""
        with self._starting:
            if self._closed:
                raise DeviceError(f"the device {self._info.name} is closed")
            if self._client is None:
                self._process = AgentProcess(
                    chip=self._info.chip,
                    cann=str(self._info.cann),
                    engine=self._engine,
                    engine_options=self._engine_options(),
                )
                self._client = AgentClient(
                    port=self._process.port, token=self._process.token, why_lost=self._process.why_lost
                )
            return self._client

    def close(self) -> None:
        """End the agent and its engine; the device cannot be used any more."""
        with self._starting:
            self._closed = True
            client, self._client = self._client, None
            process, self._process = self._process, None
        if client is not None:
            client.close()
        if process is not None:
            process.close()

    def _engine_options(self) -> dict[str, Any]:
        asked = self._info.options
        return {
            "profile": self._info.chip.lower(),
            "cann": self._info.cann,
            "ram_bytes": self._info.ram_bytes,
            **{name: asked[name] for name in ("mode", "seed", "threads", "on_mismatch") if name in asked},
        }
