"""What every device is: facts about it, and one agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_cannlm.devices.client import AgentClient


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about a device that stand in every report."""

    kind: str
    """``sim``, ``hdc``, ``adb`` or ``local``."""
    name: str
    """The device as it was asked for, for example ``sim:kirinx90?ram=2GiB``."""
    chip: str
    """As the device reports it, normalized: ``KirinX90``."""
    cann: str | None
    """CANN version in the number space of builds, for example ``6.1.1.0``; None where it is not known."""
    device_version: str | None
    """What the device itself reports, in its own number space; None where there is no such report."""
    ram_bytes: int | None
    """Memory of the whole device."""
    simulated: bool
    """Whether its figures are modelled, not measured."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the user set, parsed."""


class Device(Protocol):
    """A place where packages run."""

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""

    def agent(self) -> AgentClient:
        """The agent beside its engine: started on first use, one per device, from then on always the same.

        Raises :class:`~pytest_cannlm.errors.DeviceError` if it cannot be started.
        """

    def close(self) -> None:
        """End the agent and everything that it started. Safe to call twice, and after a crash."""
