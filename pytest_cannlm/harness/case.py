"""What one test asks for: its markers, read and checked, with every list resolved to one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.markers import FallsBack, MemoryCeiling, Parity, RefusesLoad, TokenLatency

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test on one device with one package."""

    device: DeviceSpec
    model: str
    """A catalogue name, or a path to a checkpoint or to a package that was made elsewhere."""
    scheme: str = "w4a16"
    context: int = 2048
    """Positions of the KV cache, prompt and generated tokens together."""
    chips: tuple[str, ...] = ("KirinX90",)
    requires: tuple[str, ...] = ()
    converter: str | None = None
    """None: the device decides."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Arguments that the marker gave, each with where it stands; the others are defaults."""
    package: PackageFolder | None = None
    """The package itself where ``model`` is one: it is used as it is, and nothing is built."""
    latency: TokenLatency | None = None
    memory: MemoryCeiling | None = None
    parity: Parity | None = None
    refuses: RefusesLoad | None = None
    falls_back: FallsBack | None = None

    @property
    def placement(self) -> tuple[str, str, str, int, str]:
        """Tests with the same placement share device, package and loaded engine."""
        return (self.device.text, self.model, self.scheme, self.context, self.converter or "")
