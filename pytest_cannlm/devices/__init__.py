"""Where tests run: devices by name, each with one agent beside its engine. Only the simulated device needs no cable."""

from __future__ import annotations

from pytest_cannlm.devices.base import Device, DeviceInfo
from pytest_cannlm.devices.client import AgentClient
from pytest_cannlm.devices.pool import DevicePool, pool_devices, worker_number
from pytest_cannlm.devices.simulated import SimulatedDevice
from pytest_cannlm.devices.spec import DeviceSpec, parse_device
from pytest_cannlm.errors import DeviceError

__all__ = [
    "AgentClient",
    "Device",
    "DeviceInfo",
    "DevicePool",
    "DeviceSpec",
    "SimulatedDevice",
    "open_device",
    "parse_device",
    "pool_devices",
    "worker_number",
]


def open_device(spec: DeviceSpec) -> Device:
    """The device that ``spec`` names; its agent starts on first use.

    Raises :class:`DeviceError` for a kind that this version cannot drive. Another device never takes its place.
    """
    if spec.kind == "sim":
        return SimulatedDevice(spec)
    raise DeviceError(
        f"this version of pytest-cannlm cannot drive the device {spec.text!r}; it drives only the simulated one",
        field="--npu",
        found=spec.text,
        expected="sim, or sim:CHIP?option=value&...",
        remedy=f"Nothing was run in its place. Ask for the simulated device with --npu=sim, or leave {spec.kind} out",
    )
