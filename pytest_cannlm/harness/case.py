"""What one test asks for: its markers, read and checked, with every list resolved to one value."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.markers import MemoryCeiling, Parity, RefusesLoad, TokenLatency


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test on one device with one package."""

    device: DeviceSpec
    model: str
    """A catalogue name, or a path to a checkpoint."""
    scheme: str = "w4a16"
    context: int = 2048
    """Positions of the KV cache, prompt and generated tokens together."""
    chips: tuple[str, ...] = ("KirinX90",)
    requires: tuple[str, ...] = ()
    converter: str | None = None
    """None: the device decides."""
    latency: TokenLatency | None = None
    memory: MemoryCeiling | None = None
    parity: Parity | None = None
    refuses: RefusesLoad | None = None

    @property
    def placement(self) -> tuple[str, str, str, int, str]:
        """Tests with the same placement share device, package and loaded engine."""
        return (self.device.text, self.model, self.scheme, self.context, self.converter or "")
