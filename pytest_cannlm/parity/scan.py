"""Looks through both outputs for what makes a comparison meaningless, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_cannlm.parity.guards import Guard, GuardName
from pytest_cannlm.parity.metrics import Floats


@dataclass
class _Places:
    """How often something was seen, and where first."""

    count: int = 0
    first: str = ""

    def add(self, found: NDArray[np.bool_], values: Floats, position: int) -> None:
        seen = int(found.sum())
        if seen and not self.count:
            row, column = np.unravel_index(int(found.argmax()), found.shape)
            self.first = f"first {values[row, column]} at position {position + row}, token {column}"
        self.count += seen


class OutputScan:
    """Remembers where an output was not finite, constant, zero, or the same at every position."""

    def __init__(self) -> None:
        self._device, self._reference, self._both = _Places(), _Places(), _Places()
        self._constant = _Places()
        self._zero_rows = {"device": 0, "reference": 0}
        self._first_rows: tuple[Floats, Floats] | None = None
        self._varies = {"device": False, "reference": False}

    def look(self, r: Floats, d: Floats, position: int) -> None:
        """Look at rows [n, V] of reference and device that start at ``position``."""
        bad_r, bad_d = ~np.isfinite(r), ~np.isfinite(d)
        if bad_r.any() or bad_d.any():
            self._both.add(bad_r & bad_d, d, position)
            self._reference.add(bad_r & ~bad_d, r, position)
            self._device.add(bad_d & ~bad_r, d, position)
        for side, rows in (("device", d), ("reference", r)):
            suspects = rows[:, 0] == rows[:, -1]  # rarely true, and only then is the whole row read
            if suspects.any():
                constant = suspects & (rows == rows[:, :1]).all(axis=1)
                self._zero_rows[side] += int((constant & (rows[:, 0] == 0)).sum())
                if side == "device" and rows.shape[1] > 1:
                    self._constant.add(constant[:, np.newaxis], rows, position)
        self._compare_positions(r, d)

    def _compare_positions(self, r: Floats, d: Floats) -> None:
        if self._first_rows is None:
            self._first_rows = r[0].copy(), d[0].copy()
        for side, rows, first in zip(("reference", "device"), (r, d), self._first_rows, strict=True):
            if not self._varies[side]:
                self._varies[side] = rows.shape[1] != first.size or bool((rows != first).any())

    def guards(self, positions: int, *, allow_zero: bool) -> Iterator[Guard]:
        """The guards that fired over all ``positions``."""
        yield from _fired(self._device, "nonfinite_device", "values of the device are NaN or infinite")
        yield from _fired(self._reference, "nonfinite_reference", "values of the reference are NaN or infinite")
        yield from _fired(self._both, "undefined_input", "values are NaN or infinite on both sides")
        zero_device, zero_reference = (self._zero_rows[side] == positions for side in ("device", "reference"))
        if allow_zero and zero_device:
            return
        if zero_device and zero_reference:
            yield Guard("all_zero_output", "both outputs are all zero: equal, but degenerate", _DEAD)
        elif zero_device:
            yield Guard("all_zero_output", "the device's output is all zero", _DEAD)
        elif zero_reference:
            yield Guard("all_zero_reference", "the reference is all zero", "the reference model and its inputs")
        elif self._constant.count:
            yield from _fired(self._constant, "constant_output", f"of {positions} positions have all logits equal")
        elif self._varies["reference"] and not self._varies["device"]:
            yield Guard("constant_output", f"the device gives the same logits at all {positions} positions", _DEAD)


_DEAD = "which output was read, overflow in the first norm, an input that never reached the device"


def _fired(places: _Places, name: GuardName, what: str) -> Iterator[Guard]:
    if places.count:
        yield Guard(
            name, f"{places.count} {what}, {places.first}", "overflow in fp16 (RMSNorm, mask value), scales of zero"
        )
