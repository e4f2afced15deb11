"""Several devices: those of one kind are a pool that parallel workers share out, different kinds are parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_cannlm.devices.spec import DeviceSpec
from pytest_cannlm.errors import UsageError


@dataclass(frozen=True)
class DevicePool:
    """Devices of one kind; a test runs on one of them, whichever its worker has."""

    kind: str
    specs: tuple[DeviceSpec, ...]

    def pick(self, worker: int) -> DeviceSpec:
        """The device of parallel worker number ``worker``: number modulo the size of the pool."""
        return self.specs[worker % len(self.specs)]


def pool_devices(specs: Iterable[DeviceSpec]) -> tuple[DevicePool, ...]:
    """Group specifications by kind, in the order in which the kinds first appear.

    Raises :class:`UsageError` for a real device that is named twice: its engine serves one process at a time. Two equal
    simulated devices are two devices.
    """
    pools: dict[str, list[DeviceSpec]] = {}
    for spec in specs:
        pool = pools.setdefault(spec.kind, [])
        if spec.kind != "sim" and any(spec.key == other.key for other in pool):
            raise UsageError(f"--npu={spec.text} is named twice", field="--npu", found=spec.text, expected="it once")
        pool.append(spec)
    return tuple(DevicePool(kind, tuple(pool)) for kind, pool in pools.items())


def worker_number(worker_id: str | None) -> int:
    """The number in a pytest-xdist worker id: ``gw3`` is 3; without xdist (None or ``master``) it is 0."""
    digits = (worker_id or "").removeprefix("gw")
    return int(digits) if digits.isdecimal() else 0
