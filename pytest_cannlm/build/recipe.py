"""The recipe: everything that determines a build, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_cannlm.build.schemes import GROUP_SIZES, scheme_named
from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.engine import PREFILL_POSITIONS, context_problem
from pytest_cannlm.errors import EnvironmentFailure, UsageError

CONVERTERS = ("simulated",)
"""Converters that this version drives."""
KNOWN_CONVERTERS = ("simulated", "omg", "atc")
QUANTIZERS = ("rtn",)


@dataclass(frozen=True)
class Recipe:
    """What to build, from what. Equal recipes over equal checkpoints give equal packages.

    Attributes:
        model: short name, used for file names and reports.
        checkpoint: a GGUF file or a Hugging Face folder.
        scheme: ``w4a16``, ``w8a16`` (also ``int8``) or ``fp16``.
        group_size: of 4-bit groups; None takes 128 where it divides, else 64, else 32.
        quantizer: ``rtn``, round to nearest.
        context: ``kv_cache_max_len``, prompt and generated tokens together.
        prefill: positions per prefill step.
        chip: as a device reports it.
        cann: the CANN version that the package is built for.
        converter: ``simulated``.
    """

    model: str
    checkpoint: Path
    scheme: str = "w4a16"
    group_size: int | None = None
    quantizer: str = "rtn"
    context: int = 2048
    prefill: int = PREFILL_POSITIONS
    chip: str = "KirinX90"
    cann: str = "6.1.1.0"
    converter: str = "simulated"

    def validated(self) -> Recipe:
        """The recipe with names in their normal form.

        Raises:
            UsageError: a value that cannot be built, with what would be possible.
            EnvironmentFailure: a converter that this version does not drive.
        """
        if self.converter not in KNOWN_CONVERTERS:
            raise _unknown("converter", self.converter, KNOWN_CONVERTERS)
        if self.converter not in CONVERTERS:
            raise EnvironmentFailure(
                "this version cannot drive the converter",
                field="converter",
                found=self.converter,
                expected=f"one of {', '.join(CONVERTERS)}",
                remedy="leave the converter out, or name simulated",
            )
        if self.quantizer not in QUANTIZERS:
            raise _unknown("quantizer", self.quantizer, QUANTIZERS)
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            raise _unknown("group_size", self.group_size, GROUP_SIZES)
        problem = context_problem(self.context)
        if problem:
            raise UsageError(
                "context does not fit the prefill length", field="context", found=self.context, expected=problem
            )
        if versions.parse(self.cann).space != "build":
            raise UsageError("not a CANN version", field="cann", found=self.cann, expected="numbers such as 6.1.1.0")
        chip = chips.normalize(self.chip)
        if chip not in chips.known_chips():
            raise _unknown("chip", self.chip, chips.known_chips())
        return replace(self, scheme=scheme_named(self.scheme).name, chip=chip)

    def facts(self, *steps: str) -> dict[str, Any]:
        """The fields that the named steps depend on, JSON-ready."""
        depends = {
            "quantize": ("scheme", "group_size", "quantizer", "context"),
            "export": ("prefill",),
            "convert": ("chip", "cann", "converter", "model"),
            "assemble": (),
        }
        return {name: getattr(self, name) for step in steps for name in depends[step]}


def _unknown(field: str, found: object, known: tuple[object, ...]) -> UsageError:
    return UsageError(f"unknown {field}", field=field, found=found, expected="one of " + ", ".join(map(str, known)))
