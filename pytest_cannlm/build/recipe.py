"""The recipe: everything that determines a build, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_cannlm.build.calibration import calibration_sha256, holds_json_lines
from pytest_cannlm.build.schemes import GROUP_SIZES, scheme_named
from pytest_cannlm.compat import chips, versions
from pytest_cannlm.compat.engine import PREFILL_POSITIONS, context_problem
from pytest_cannlm.errors import UsageError

CONVERTERS = ("simulated", "omg", "atc")
QUANTIZERS = ("rtn", "gptq", "awq", "awq+gptq")

_ATC_STEP = 1
"""``atc`` takes no shape that varies, so prefill and decode share the one of decode."""


@dataclass(frozen=True)
class Recipe:
    """What to build, from what. Equal recipes over equal checkpoints give equal packages.

    Attributes:
        model: short name, used for file names and reports.
        checkpoint: a GGUF file or a Hugging Face folder.
        scheme: ``w4a16``, ``w8a16`` (also ``int8``) or ``fp16``.
        group_size: of 4-bit groups; None takes 128 where it divides, else 64, else 32.
        quantizer: ``rtn`` rounds to nearest; ``gptq`` makes up for errors, ``awq`` scales channels by their
            activations, ``awq+gptq`` does both; all but the first watch the model read the calibration text.
        calibration: file of that text; None takes the bundled one.
        keep_8bit: percent of the projections' weights that keep 8 bits in w4a16, where 4 would cost most; None: none.
        context: ``kv_cache_max_len``, prompt and generated tokens together.
        prefill: positions per prefill step.
        chip: as a device reports it.
        cann: the CANN version that the package is built for.
        converter: ``simulated``, or one of the vendor's: ``omg``, ``atc``.
        toolkit: folder of the vendor's toolkit; None takes the one that the environment selects.
        quant_params: folder of a dopt run whose weights ``omg`` takes; None: fp16.
    """

    model: str
    checkpoint: Path
    scheme: str = "w4a16"
    group_size: int | None = None
    quantizer: str = "rtn"
    calibration: Path | None = None
    keep_8bit: float | None = None
    context: int = 2048
    prefill: int = PREFILL_POSITIONS
    chip: str = "KirinX90"
    cann: str = "6.1.1.0"
    converter: str = "simulated"
    toolkit: Path | None = None
    quant_params: Path | None = None

    @property
    def stored_scheme(self) -> str:
        """The scheme of the weights that step 1 writes. The vendor's converters make theirs, from the float ones."""
        return self.scheme if self.converter == "simulated" else "fp16"

    @property
    def calibrates(self) -> bool:
        """Whether the calibration text has a part in the weights."""
        return self.quantizer != "rtn" or self.keep_8bit is not None

    def validated(self) -> Recipe:
        """The recipe with names in their normal form.

        Raises:
            UsageError: a value that cannot be built, with what would be possible.
        """
        if self.converter not in CONVERTERS:
            raise _unknown("converter", self.converter, CONVERTERS)
        for name, takers in (("toolkit", ("omg", "atc")), ("quant_params", ("omg",))):
            if getattr(self, name) is not None and self.converter not in takers:
                raise UsageError(
                    f"the converter {self.converter} takes no {name.replace('_', ' ')}",
                    field=name,
                    found=getattr(self, name),
                    remedy=f"Name the converter: {' or '.join(takers)}",
                )
        own: dict[str, object] = {
            "group_size": self.group_size,
            "calibration": self.calibration,
            "keep_8bit": self.keep_8bit,
        }
        own |= {"quantizer": None if self.quantizer == "rtn" else self.quantizer}
        asked = [(name, value) for name, value in own.items() if value is not None]
        if self.converter != "simulated" and asked:
            raise UsageError(
                f"the vendor's tools quantize by themselves, so the converter {self.converter} takes no such setting",
                field=asked[0][0],
                found=asked[0][1],
                remedy="Leave it out; group sizes are set where dopt is run",
            )
        self._check_quantizer()
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            raise _unknown("group_size", self.group_size, GROUP_SIZES)
        problem = context_problem(self.context)
        if problem:
            raise UsageError(
                "context does not fit the prefill length", field="context", found=self.context, expected=problem
            )
        version = versions.parse(self.cann)
        if version.space != "build" and not (self.converter == "atc" and version.known):
            raise UsageError("not a CANN version", field="cann", found=self.cann, expected="numbers such as 6.1.1.0")
        chip = chips.normalize(self.chip)
        if chip not in chips.known_chips():
            raise _unknown("chip", self.chip, chips.known_chips())
        prefill = _ATC_STEP if self.converter == "atc" else self.prefill
        return replace(self, scheme=scheme_named(self.scheme).name, chip=chip, prefill=prefill)

    def _check_quantizer(self) -> None:
        if self.quantizer not in QUANTIZERS:
            raise _unknown("quantizer", self.quantizer, QUANTIZERS)
        scheme = scheme_named(self.scheme)
        if self.quantizer != "rtn" and scheme.weight_bits == 16:
            raise UsageError(
                f"the scheme {scheme.name} rounds no weights to codes",
                field="quantizer",
                found=self.quantizer,
                remedy="Leave the quantizer out, or choose w4a16 or w8a16",
            )
        if self.keep_8bit is not None and (scheme.weight_bits != 4 or not 0 < self.keep_8bit < 100):
            raise UsageError(
                "only a part of 4-bit weights can keep 8 bits",
                field="keep_8bit",
                found=f"{self.keep_8bit:g} % of {scheme.name}",
                expected="more than 0 and less than 100 % of w4a16",
                remedy="w8a16 has 8 bits everywhere",
            )
        if self.calibration is not None and not self.calibrates:
            raise UsageError(
                "nothing in this build looks at a calibration text",
                field="calibration",
                found=self.calibration,
                remedy="Name a quantizer that does, such as gptq, or leave the text out",
            )

    def facts(self, *steps: str) -> dict[str, Any]:
        """The fields that the named steps depend on, JSON-ready."""
        names = {
            "quantize": ("group_size", "quantizer", "context"),
            "export": ("prefill", "chip"),
            "convert": ("cann", "converter", "model"),
            "assemble": (),
        }
        extra = {"quantize": {"scheme": self.stored_scheme, **self._calibration()}, "convert": {"scheme": self.scheme}}
        facts: dict[str, Any] = {}
        for step in steps:
            facts |= {**extra.get(step, {}), **{name: getattr(self, name) for name in names[step]}}
        return facts

    def _calibration(self) -> dict[str, Any]:
        """What else determines the weights where a text has a part in them."""
        if not self.calibrates:
            return {}
        return {
            "calibration": calibration_sha256(self.calibration),
            "calibration_json_lines": holds_json_lines(self.calibration),
            "keep_8bit": self.keep_8bit,
        }


def _unknown(field: str, found: object, known: tuple[object, ...]) -> UsageError:
    return UsageError(f"unknown {field}", field=field, found=found, expected="one of " + ", ".join(map(str, known)))
