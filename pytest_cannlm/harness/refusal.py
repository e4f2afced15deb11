"""``refuses_load``: offer a copy of the package that claims another CANN or chip, or is damaged, and see."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cannlm.errors import CannlmError, EngineCrash, GateRefusal
from pytest_cannlm.harness.judgement import Judged
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.trouble import environment_errors
from pytest_cannlm.markers import RefusesLoad
from pytest_cannlm.measure.figures import Outcome, Verdict

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder

_COPY = "relabelled-"
_ABANDONED_S = 24 * 3600.0
_EVIDENCE_LINES = 6

_LOOK_AT = {
    "gate": "the versions and chip that the gate read, and its policy (--npu-cann-policy)",
    "engine": "what the engine checks of a model before it maps it; the gate would have refused the copy",
}

EXPECTED: dict[str, tuple[str, ...]] = {
    "cann": ("CANN_VERSION_MISMATCH", "CANN_VERSION_UNKNOWN"),
    "chip": ("CHIP_MISMATCH", "CHIP_NOT_ALLOWED"),
    "damage": ("PACKAGE_DAMAGED", "PACKAGE_INCOMPLETE"),
}
"""Codes that count as the right refusal where the marker names none; for a damaged header also every ``OM_`` code.

The marker takes well-formed versions only, so "unknown" never means that the copy's version could not be read.
"""


def judge(run: Run, marker: RefusesLoad, *, relabel: Callable[..., PackageFolder], scratch: Path) -> Judged:
    """One verdict: whether the copy was refused, at the right place and for the right reason.

    At the gate: the refusal carries the expected code, no engine was handed the copy, its process and footprint are as
    before, and the good package loads afterwards. At the engine (the gate is off): a clean engine error passes; a crash
    fails with its evidence. The copy is made below ``scratch``, best on the package's own file system: there its large
    files are links.
    """
    with contextlib.ExitStack() as kept:
        with environment_errors("a copy of the package"):
            folder = Path(kept.enter_context(_place_for_a_copy(scratch)))
            copy = relabel(run.package, folder / "copy", cann=marker.cann, chip=marker.chip, damage=marker.damage)
        offer = _offer_to_gate if marker.at == "gate" else _offer_to_engine
        outcome, reason = offer(run, marker, copy)
    if outcome == "fail" and marker.cann is not None and marker.cann == run.device.cann:
        reason += f"; {marker.cann} is the device's own version: ask for another one"
    verdict = Verdict(
        outcome=outcome,
        figure=None,
        name=f"refuses_load at {marker.at}",
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=reason,
        look_at=_LOOK_AT[marker.at],
        limit_source=f"marker on the {next(iter(marker.sources.values()))}",
    )
    return Judged((verdict,))


def _place_for_a_copy(scratch: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder below ``scratch``, or, where the cache cannot be written, in the system's own place for such."""
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        _remove_what_killed_runs_left(scratch)
        return tempfile.TemporaryDirectory(prefix=_COPY, dir=scratch)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return tempfile.TemporaryDirectory(prefix=_COPY)


def _remove_what_killed_runs_left(scratch: Path) -> None:
    """Copies live for seconds; one that is a day old has nobody any more."""
    for left in scratch.glob(f"{_COPY}*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)


def _offer_to_gate(run: Run, marker: RefusesLoad, copy: PackageFolder) -> tuple[Outcome, str]:
    before = run.client.status()
    footprint = run.client.memory().current
    try:
        run.client.load(copy.package, manifest=copy.manifest, target=run.target)
    except GateRefusal as refusal:
        if not _expected(marker, refusal.code):
            return "fail", f"refused for another reason than {_wanted(marker)}: [{refusal.code}] {refusal}"
        why = f"refused by the gate: [{refusal.code}] {refusal}"
    except EngineCrash as crash:
        return "fail", f"the gate let the copy through, and the engine crashed with {_evidence(crash)}"
    except CannlmError as error:
        return "fail", f"the gate let the copy through, and the engine then failed: {error}"
    else:
        return "fail", "the gate let the copy through, and the engine loaded it"
    after = run.client.status()
    if (after.loads, after.worker, after.package) != (before.loads, before.worker, before.package):
        return "fail", f"{why}; but the engine was touched: before {before}, after {after}"
    if run.client.memory().current != footprint:
        return (
            "fail",
            f"{why}; but the engine's footprint changed from {footprint} to {run.client.memory().current} bytes",
        )
    return _with_good_load(run, why)


def _offer_to_engine(run: Run, marker: RefusesLoad, copy: PackageFolder) -> tuple[Outcome, str]:
    try:
        run.client.load(copy.package, manifest=copy.manifest, target=None)
    except EngineCrash as crash:
        return "fail", f"the engine did not refuse the copy, it crashed with {_evidence(crash)}"
    except CannlmError as error:
        if marker.error is not None and error.code != marker.error:
            return "fail", f"refused for another reason than {marker.error}: [{error.code}] {error}"
        return _with_good_load(run, f"refused by the engine: [{error.code}] {error}")
    return "fail", "the engine loaded the copy"


def _evidence(crash: EngineCrash) -> str:
    """How the engine ended and what it said last, without the stack of the process that held it."""
    lines = itertools.takewhile(lambda line: not line.startswith("Fatal Python error"), crash.log)
    said = "".join(f"\n    | {line}" for line in list(lines)[-_EVIDENCE_LINES:])
    return f"{crash.found}; it said{said or ' nothing'}"


def _with_good_load(run: Run, why: str) -> tuple[Outcome, str]:
    try:
        run.client.load(run.package.package, manifest=run.package.manifest, target=run.target)
    except CannlmError as error:
        return "fail", f"{why}; but the good package does not load afterwards: {error}"
    return "pass", f"{why}; the good package loads afterwards"


def _expected(marker: RefusesLoad, code: str | None) -> bool:
    if marker.error is not None:
        return code == marker.error
    damaged = marker.damage is not None and code is not None and code.startswith("OM_")
    return damaged or code in EXPECTED[_wrong(marker)]


def _wanted(marker: RefusesLoad) -> str:
    return marker.error or " or ".join(EXPECTED[_wrong(marker)])


def _wrong(marker: RefusesLoad) -> str:
    return "cann" if marker.cann else "chip" if marker.chip else "damage"
