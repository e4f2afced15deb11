"""What a converter's double can be told to get wrong.

What the vendor's converters refuse by themselves, doubles refuse too: an unknown flag, a missing plugin, an int64
index, an opset that is too new, an operator that the NPU lacks.
"""

from __future__ import annotations

from typing import Literal, get_args

Fault = Literal[
    "fails",
    "fails-silently",
    "writes-nothing",
    "writes-empty",
    "leaves-old-file",
    "leaves-old-file-and-fails",
    "cuts-weights",
    "loses-weights",
    "other-chip",
    "other-version",
    "not-compiled",
    "runs-on-cpu",
    "breaks-rope",
    "loses-node",
    "rejects-quantization",
    "loses-libraries",
    "unknown-noise",
    "hangs",
]
"""``fails``: status 1, no file. ``fails-silently``: the failure's text and status 0. ``leaves-old-file``: success is
printed, and the file is an earlier run's. ``runs-on-cpu``, ``breaks-rope``, ``loses-node``, ``rejects-quantization``,
``loses-libraries``: the vendor's text for it beside everything that makes a success. ``unknown-noise``: a line that
looks like an error beside a real success. ``hangs``: until it is ended."""

FAULTS: tuple[Fault, ...] = get_args(Fault)
