"""A package that was made elsewhere under test: ``model=`` is its folder, it is used as it is, and nothing is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_cannlm.errors import PackageError, UsageError
from pytest_cannlm.harness.case import Case
from pytest_cannlm.models.catalogue import catalogue

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.compat.gate import Target

UNKNOWN_SCHEME = "unknown"
"""The scheme of a package that does not tell it and whose marker does not either."""


def resolve(case: Case) -> Case:
    """``case`` as its package has it, where ``model`` is the folder of one; any other case as it is.

    Scheme, context and converter are the package's. Those that the marker gave must agree with it: what a package is
    does not change by being called something else.

    :raises UsageError: the marker gave one and the package says another; names both and where each stands.
    """
    from pytest_cannlm.build import find_package

    package = None if case.model in catalogue() else find_package(Path(case.model).expanduser())
    if package is None:
        return case
    said: dict[str, Any] = {}
    for name, value, where in _facts(package):
        if name in case.given and getattr(case, name) != value:
            raise UsageError(
                f"the package has another {name} than the test asks for",
                file=package.package,
                field=name,
                found=f"{value} ({where})",
                expected=f"{getattr(case, name)} (marker npu on the {case.given[name]})",
                remedy=f"Leave {name}= out to take the package as it is, or name the package that you mean",
                code="PACKAGE_DIFFERS",
            )
        said[name] = value
    if "scheme" not in case.given:
        said.setdefault("scheme", UNKNOWN_SCHEME)
    return replace(case, package=package, **said)


def refuse_misfit(package: PackageFolder, target: Target) -> None:
    """Ask the gate before the device is given anything, its agent included. What is unknown here, the device decides.

    :raises GateRefusal: the package does not fit.
    """
    from pytest_cannlm.compat.gate import decide

    decision = decide(package.package, target, manifest=package.manifest)
    if decision.answer == "refuse":
        decision.raise_if_refused()


def refuse_broken(package: PackageFolder, target: Target) -> None:
    """Ask only whether the files of a package and its manifest are there and can be used; whether it fits is no matter.

    :raises GateRefusal: something is missing or damaged.
    """
    from pytest_cannlm.compat.checks import FILES
    from pytest_cannlm.compat.gate import decide

    decision = decide(package.package, target, manifest=package.manifest)
    broken = tuple(check for check in decision.checks if check.name == FILES and check.outcome == "mismatch")
    replace(decision, answer="refuse", checks=broken).raise_if_refused()


def _facts(package: PackageFolder) -> Iterator[tuple[str, Any, str]]:
    """Argument, value and place of what the package says of itself. What it says unusably is the gate's to name."""
    build = package.data.get("build")
    for name in ("scheme", "converter"):
        value = build.get(name) if isinstance(build, dict) else None
        if isinstance(value, str):
            yield name, value, f"build.{name} in manifest.json"
    try:
        yield "context", package.context, "kv_cache_max_len in executor.json"
    except (PackageError, ValueError, TypeError):
        return
