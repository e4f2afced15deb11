"""``refuses_load``: offer a copy of the package that claims another CANN or chip, or is damaged, and see."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cannlm.agent.logtail import without_stack
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.devices.client import LOAD_S
from pytest_cannlm.errors import (
    CannlmError,
    ContainerError,
    EngineCrash,
    EngineError,
    EngineHang,
    GateRefusal,
    PackageError,
)
from pytest_cannlm.harness.judgement import Judged
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.scratch import place_for_a_copy
from pytest_cannlm.harness.trouble import environment_errors
from pytest_cannlm.markers import RefusesLoad
from pytest_cannlm.measure.figures import Outcome, Verdict

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.compat.gate import Target

GATE_S = 5.0
"""Seconds within which the gate answers unless the marker says otherwise. It reads 64 KiB; this is no tight limit."""

_ANSWERS = (GateRefusal, EngineError, PackageError, ContainerError)
"""Errors that are about the package. Any other one, of the device or of the agent, answers nothing and goes through."""
_NO_REFUSAL = ("OUT_OF_MEMORY", "ENGINE_EXCEPTION")
"""Codes of failures that say nothing of the copy; they count only if the marker asks for them."""
_GROWTH = 1.01
"""A measured footprint differs by a few pages from one look to the next."""
_EVIDENCE_LINES = 6

_LOOK_AT = {
    "cann": "the CANN versions that the gate read, and its policy (--npu-cann-policy)",
    "chip": "the chips that the gate read, and chips= of the marker npu",
    "damage": "the code that the gate gives for this damage, and error= of the marker",
    "engine": "what the engine checks of a model before it maps it; the gate would have refused the copy",
}

EXPECTED: dict[str, tuple[str, ...]] = {
    "cann": ("CANN_VERSION_MISMATCH", "CANN_VERSION_UNKNOWN"),
    "chip": ("CHIP_MISMATCH", "CHIP_NOT_ALLOWED"),
}
"""Codes of the gate that count as the right refusal where the marker names none; a damage has its own.

The marker takes well-formed versions only, so "unknown" never means that the copy's version could not be read.
"""

Result = tuple[Outcome, str]


@dataclass(frozen=True)
class Answer:
    """What became of an offer: the error that refused it (None: it was loaded), and after how many seconds."""

    error: CannlmError | None
    seconds: float


def judge(run: Run, marker: RefusesLoad, *, relabel: Callable[..., PackageFolder], scratch: Path) -> Judged:
    """One verdict: whether the copy was refused, at the right place, for the right reason and in time.

    At the gate: the refusal carries the expected code, no engine was handed the copy, and its process and footprint are
    as before. At the engine (the gate is off): a clean engine error passes; a crash and a hang fail with their
    evidence. In both, the good package loads afterwards and takes no more memory than before. The copy is made below
    ``scratch`` or beside the package, where its large files are links.
    """
    with contextlib.ExitStack() as kept:
        with environment_errors("a copy of the package"):
            folder = kept.enter_context(place_for_a_copy(scratch, run.package.package))
            copy = relabel(run.package, folder / "copy", cann=marker.cann, chip=marker.chip, damage=marker.damage)
        footprint = run.client.memory().current
        offer = _at_gate if marker.at == "gate" else _at_engine
        outcome, reason = offer(run, marker, copy)
        outcome, reason = _and_good_load(run, outcome, reason, footprint)
    if outcome == "fail":
        reason += _own_of_the_device(run, marker)
    verdict = Verdict(
        outcome=outcome,
        figure=None,
        name=f"refuses_load at {marker.at}",
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=reason,
        look_at=_LOOK_AT[marker.wrong if marker.at == "gate" else "engine"],
        limit_source=f"marker on the {next(iter(marker.sources.values()))}",
    )
    return Judged((verdict,))


def _offer(run: Run, copy: PackageFolder, *, target: Target | None, limit_s: float) -> Answer:
    started = time.monotonic()
    error: CannlmError | None = None
    try:
        run.client.load(copy.package, manifest=copy.manifest, target=target, timeout_s=limit_s)
    except _ANSWERS as refused:
        error = refused
    return Answer(error, time.monotonic() - started)


def _at_gate(run: Run, marker: RefusesLoad, copy: PackageFolder) -> Result:
    limit_s = marker.within_s or GATE_S
    before, footprint = run.client.status(), run.client.memory().current
    answer = _offer(run, copy, target=run.target, limit_s=limit_s)
    error = answer.error
    if not isinstance(error, GateRefusal):
        return "fail", f"the gate let the copy through, and the engine {_what_the_engine_did(error, limit_s)}"
    if error.code not in _wanted(marker):
        return "fail", _another_reason(marker, error)
    why = f"refused by the gate: [{error.code}] {error}"
    after = run.client.status()
    if (after.loads, after.worker, after.package) != (before.loads, before.worker, before.package):
        return "fail", f"{why}; but the engine was touched: before {before}, after {after}"
    now = run.client.memory().current
    if _grown(footprint, now):
        return "fail", f"{why}; but the engine's footprint grew from {footprint} to {now} bytes"
    return _in_time(answer, limit_s, why)


def _at_engine(run: Run, marker: RefusesLoad, copy: PackageFolder) -> Result:
    limit_s = marker.within_s or LOAD_S
    answer = _offer(run, copy, target=None, limit_s=limit_s)
    error = answer.error
    if error is None:
        return "fail", "the engine loaded the copy"
    if isinstance(error, EngineCrash):
        return "fail", f"the engine did not refuse the copy, it {_what_the_engine_did(error, limit_s)}"
    if error.code in _NO_REFUSAL if marker.error is None else error.code != marker.error:
        return "fail", _another_reason(marker, error)
    return _in_time(answer, limit_s, f"refused by the engine: [{error.code}] {error}")


def _in_time(answer: Answer, limit_s: float, why: str) -> Result:
    if answer.seconds > limit_s:
        return "fail", f"{why}; but that took {answer.seconds:.2f} s, and the limit is {limit_s:g} s"
    return "pass", why


def _what_the_engine_did(error: CannlmError | None, limit_s: float) -> str:
    if error is None:
        return "loaded it"
    if isinstance(error, EngineHang):
        return f"hung: no answer within {limit_s:g} s, then it was ended; {_evidence(error)}"
    if isinstance(error, EngineCrash):
        return f"crashed with {error.found}; {_evidence(error)}"
    return f"then failed: {error}"


def _evidence(crash: EngineCrash) -> str:
    """What it said last, what was running and the likely cause, without the stack of the process that held it."""
    said = "".join(f"\n    | {line}" for line in without_stack(crash.log)[-_EVIDENCE_LINES:])
    running = ", ".join(f"{name} {version}" for name, version in crash.versions.items())
    facts = [f"it said{said or ' nothing'}"]
    facts += [f"\n    running: {running}"] if running else []
    facts += [f"\n    likely cause: {crash.cause}. {crash.remedy}"] if crash.cause else []
    return "".join(facts)


def _another_reason(marker: RefusesLoad, error: CannlmError) -> str:
    """Both reasons: the one that was expected, and whether it was found at all, and the one that was given."""
    wanted = _wanted(marker) if marker.at == "gate" else (marker.error or "what is wrong with the copy",)
    found = [check.code for check in getattr(getattr(error, "decision", None), "checks", ())]
    too = ", which was found too" if set(found) & set(wanted) else ""
    return f"refused for another reason than {' or '.join(wanted)}{too}: [{error.code}] {error}"


def _and_good_load(run: Run, outcome: Outcome, reason: str, footprint: int | None) -> Result:
    """The result, and whether the package that the test is about loads afterwards as if nothing had happened."""
    also = f"{reason}\n    " if "\n" in reason else f"{reason}; "
    try:
        run.client.load(run.package.package, manifest=run.package.manifest, target=run.target)
    except _ANSWERS as error:
        return "fail", f"{also}the good package does not load afterwards: {error}"
    now = run.client.memory().current
    if _grown(footprint, now):
        return "fail", f"{also}the good package takes {now} bytes afterwards, and took {footprint} before"
    unseen = "; whether memory grew is not observable" if None in (footprint, now) else ""
    return outcome, f"{also}the good package loads afterwards{unseen}"


def _grown(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before * _GROWTH


def _own_of_the_device(run: Run, marker: RefusesLoad) -> str:
    for value, own, what in ((marker.cann, run.device.cann, "version"), (marker.chip, run.device.chip, "chip")):
        if value is not None and value == own:
            return f"; {value} is the device's own {what}: ask for another one"
    return ""


def _wanted(marker: RefusesLoad) -> tuple[str, ...]:
    """Codes of the gate that count."""
    if marker.error is not None:
        return (marker.error,)
    if marker.damage is not None:
        return (DAMAGES[marker.damage].code,)
    return EXPECTED[marker.wrong]
