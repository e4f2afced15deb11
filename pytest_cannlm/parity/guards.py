"""What makes a comparison meaningless. Guards come before any metric, and each one is a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.agent.protocol import Kind

GuardName = Literal[
    "nonfinite_device",
    "nonfinite_reference",
    "undefined_input",
    "constant_output",
    "all_zero_output",
    "all_zero_reference",
    "shape_differs",
    "dtype_differs",
    "no_comparisons",
    "too_few_positions",
    "simulated_as_device",
]


@dataclass(frozen=True)
class Guard:
    """One guard that fired, with the counts and places that a reader needs."""

    name: GuardName
    detail: str
    look_at: str = ""


def check_origin(kind: Kind, *, device_is_simulated: bool) -> Guard | None:
    """Output of a simulation must not be presented as output of a real device."""
    if kind == "modelled" and not device_is_simulated:
        return Guard(
            "simulated_as_device",
            "the output comes from a simulation, but the device claims to be real",
            "the engine name in the device's capabilities",
        )
    return None
