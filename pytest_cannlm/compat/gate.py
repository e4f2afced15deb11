"""The gate: may this package be loaded on that target? Decided before anything is pushed, opened by an engine, or run.

Reads the container's header, tables and a few attributes, ``executor.json`` and the start of the manifest: at most
64 KiB, whatever the size of the package. Standard library only; valid for Python 3.10.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pytest_cannlm.compat import agreement, ascend, checks, fitting, origin, sizes
from pytest_cannlm.compat.checks import Check
from pytest_cannlm.compat.package import Manifest, PackageFolder, ReadCount, read_manifest, read_package
from pytest_cannlm.compat.target import Target
from pytest_cannlm.container.core import open_source
from pytest_cannlm.container.source import FileSource
from pytest_cannlm.errors import CannlmError, GateRefusal, PackageError

__all__ = ["READ_LIMIT", "Check", "Decision", "Target", "decide"]

READ_LIMIT = 64 * 1024

Answer = Literal["load", "refuse", "unknown"]


@dataclass(frozen=True)
class Decision:
    """The gate's answer with everything that it rests on."""

    answer: Answer
    code: str | None
    """Of the first check that failed, or, where none failed, of the first that could not be made; None if all hold."""
    checks: tuple[Check, ...]
    bytes_read: int
    ms: float

    def explain(self) -> str:
        """One line: what was found and expected, where each was read, the rule, and what to do."""
        decisive = self._decisive()
        shown = [decisive] if decisive else []
        shown += [check for check in self.checks if check.name == checks.CANN and check is not decisive]
        return f"{self.answer}: " + " | ".join(check.line() for check in shown)

    def reasons(self) -> list[str]:
        """One line per check that does not hold, was not possible, or was switched off."""
        return [check.line() for check in self.checks if check.outcome != "ok"]

    def raise_if_refused(self) -> None:
        """Raise ``GateRefusal`` with the decisive check's facts unless the answer is "load"."""
        check = self._decisive()
        if self.answer == "load" or check is None:
            return
        verb = "refused the package" if self.answer == "refuse" else "cannot tell whether the package may be loaded"
        raise GateRefusal(
            f"the gate {verb}: {check.code}: {check.rule}",
            field=check.name,
            found=f"{check.found} ({check.found_in})",
            expected=f"{check.expected} ({check.expected_from})",
            remedy=check.remedy or None,
            code=check.code,
        )

    def _decisive(self) -> Check | None:
        for outcome in ("mismatch", "unknown"):
            for check in self.checks:
                if check.outcome == outcome:
                    return check
        return None


def decide(package: Path, target: Target, *, manifest: Path | None = None) -> Decision:
    """Whether ``package`` may be loaded on ``target``; never raises for what is wrong with either.

    ``package`` is a package folder, or a single ``.om``/``.omc`` file, of which only the container, chip and version
    are then checked. ``manifest`` is used for what the model file itself does not say. A target whose chip is not
    allowed is refused without a file being opened. An unknown is refused on the simulator; on a device it is the answer
    "unknown", or "load" where ``target.on_unknown`` says so. Nothing is written, no link is followed out of the folder,
    and ``bytes_read`` counts everything that is read of the package, never more than :data:`READ_LIMIT`.
    """
    started = time.perf_counter()
    allowed = checks.chip_allowed(target)
    results, used = [allowed], 0
    if allowed.outcome == "ok":
        more, used, target = _check_package(package, target, manifest)
        results += more
    if target.policy == "off" and all(check.name != checks.CANN for check in results):
        results.append(fitting.versions_not_read(target))
    answer, code = _answer(results, target)
    return Decision(answer, code, tuple(results), used, (time.perf_counter() - started) * 1000)


def _check_package(package: Path, target: Target, manifest_path: Path | None) -> tuple[list[Check], int, Target]:
    """All checks of the package, the bytes read for them, and the target with what the package settled about it."""
    results: list[Check] = []
    folder: PackageFolder | None = None
    manifest: Manifest | None = None
    count = ReadCount()
    try:
        if package.is_dir() or not package.exists():
            folder = read_package(package, count)
            results.append(checks.complete(folder, count))
        if manifest_path is not None:
            manifest = read_manifest(manifest_path, count)
        model = folder.model if folder else package
        if folder and not model.is_file():
            return results, count.bytes, target
    except CannlmError as error:
        return [*results, checks.from_error(checks.FILES, error)], count.bytes, target
    except OSError as error:
        return [*results, checks.from_error(checks.FILES, _unreadable(package, error))], count.bytes, target
    source: FileSource | None = None
    try:
        source = FileSource(model, limit=READ_LIMIT - count.bytes)
        container = open_source(source)
        if target.simulated is None:
            target = replace(target, simulated=container.simulated)
        results.append(checks.container_ok(container))
        results.append(checks.right_engine(container, target))
        attributes = origin.read_attributes(container)
        results.append(fitting.chip(container, attributes, target, manifest))
        results.append(fitting.cann(container, attributes, target, manifest))
        results += ascend.loader_checks(container, attributes, target)
        results += origin.contradictions(container, attributes, target)
        if manifest:
            results.append(agreement.manifest_agrees(container, attributes, target, manifest))
        if folder:
            results += sizes.check_sizes(container, folder, manifest)
            results += agreement.cache_agrees(container, folder)
    except CannlmError as error:
        results.append(checks.from_error(checks.CONTAINER, error))
    return results, count.bytes + (source.bytes_read if source else 0), target


def _unreadable(package: Path, error: OSError) -> PackageError:
    return PackageError(
        f"the package cannot be read: {error.strerror or type(error).__name__}",
        file=error.filename or package,
        expected="files that can be read",
        code="PACKAGE_DAMAGED",
    )


def _answer(results: list[Check], target: Target) -> tuple[Answer, str | None]:
    for check in results:
        if check.outcome == "mismatch":
            return "refuse", check.code
    for check in results:
        if check.outcome == "unknown":
            if target.simulated:
                return "refuse", check.code
            return ("load" if target.on_unknown == "load" else "unknown"), check.code
    return "load", None
