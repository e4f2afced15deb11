"""Which toolkit a vendor's converter is taken from, and whether it can do what the recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_cannlm import toolkits
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.compat import versions
from pytest_cannlm.compat.chips import same_chip
from pytest_cannlm.errors import EnvironmentFailure, UsageError
from pytest_cannlm.toolkits import Platform, ReadVersion, Toolkit
from pytest_cannlm.toolkits.tools import tool_problems

_KINDS = {"omg": ("ddk",), "atc": ("mobile-station", "ascend")}
_CALLED = {"omg": "a Kirin DDK", "atc": "the CANN toolkit, mobile-station edition"}
_REMEDY = {
    "omg": "Unpack DDK-tools-next-VERSION and the chip's plugin, and name the folder with --toolkit or CANNLM_DDK",
    "atc": "Install the toolkit and source its set_env.sh, or name its folder with --toolkit",
}


def choose_toolkit(
    converter: str, *, folder: Path | None, environment: Mapping[str, str], version: str | None = None
) -> Toolkit:
    """The toolkit of ``converter`` (``omg`` or ``atc``) in ``folder``, or the one that this machine uses.

    The environment's choice counts; without one, of several the one of ``version``.

    Raises:
        EnvironmentFailure: there is none.
        UsageError: there are several, and nothing says which.
    """
    found = toolkits.find_toolkits({} if folder else environment, roots=None if folder is None else [folder])
    fitting = [one for kind in _KINDS[converter] for one in found if one.kind == kind]
    chosen = [one for one in fitting if one.selected_by] or fitting
    if not chosen:
        raise EnvironmentFailure(
            f"{converter} is not on this machine",
            file=folder,
            field="converter",
            found=f"no {_CALLED[converter].split(' ', 1)[1]}" + ("" if folder else " in the usual places"),
            expected=_CALLED[converter],
            remedy=_REMEDY[converter],
            code="TOOLKIT_MISSING",
        )
    if version and len(chosen) > 1 and not chosen[0].selected_by:
        wanted = versions.parse(version)
        chosen = [one for one in chosen if one.version and one.version.version == wanted] or chosen
    if len(chosen) > 1 and not chosen[0].selected_by:
        raise UsageError(
            f"several toolkits have {converter}, and nothing says which one to use",
            field="toolkit",
            found=", ".join(str(one.root) for one in chosen),
            remedy="Name one with --toolkit",
        )
    return chosen[0]


def version_of(toolkit: Toolkit) -> ReadVersion:
    """The version that counts: what the toolkit builds is of it.

    Raises:
        EnvironmentFailure: nothing tells it; then nobody could tell whether a device fits the package.
    """
    if toolkit.version is None:
        told = next((problem for problem in toolkit.problems if "version" in problem.what), None)
        raise EnvironmentFailure(
            told.what if told else "the version of the toolkit is not known",
            file=toolkit.root,
            found=told.found if told else "no version",
            expected=told.expected if told else "a version file, or a folder whose name has it",
            remedy=told.remedy if told else "Install the toolkit again",
            code="TOOLKIT_VERSION_UNKNOWN",
        )
    return toolkit.version


def check_toolkit(toolkit: Toolkit, recipe: Recipe, *, program: Path) -> str | None:
    """Refuse what would fail after minutes, or build for another chip or version than the recipe's.

    Returns:
        What nobody can tell about the version, if that is so.

    Raises:
        EnvironmentFailure: a program that cannot start, no plugin for the chip, a plugin or toolkit of another version.
    """
    if not any(tool.path == program for tool in toolkit.tools):
        raise EnvironmentFailure(
            f"{program.name} is missing",
            file=program,
            found="no such file",
            remedy="Unpack the toolkit again; the program behind the wrapper does not do",
            code="TOOLKIT_BROKEN",
        )
    for problem in (*tool_problems(toolkit.tools), *_platform_problems(toolkit, recipe.chip)):
        raise EnvironmentFailure(
            problem.what,
            file=problem.file,
            found=problem.found,
            expected=problem.expected,
            remedy=problem.remedy,
            code="TOOLKIT_BROKEN",
        )
    read = version_of(toolkit)
    outcome = versions.compare(read.version, versions.parse(recipe.cann), extra=toolkit.pairs)
    if outcome.outcome == "mismatch":
        raise EnvironmentFailure(
            "the toolkit is of another CANN version than the one to build for",
            file=toolkit.root,
            field="cann",
            found=f"{read.version} ({read.where})",
            expected=recipe.cann,
            remedy="Install the toolkit of that version and name it with --toolkit",
            code="TOOLKIT_VERSION",
        )
    if outcome.outcome == "ok":
        return None
    return f"whether the toolkit's {read.version} is the {recipe.cann} to build for is not known ({outcome.rule})"


def platform_of(toolkit: Toolkit, chip: str) -> Platform | None:
    """The toolkit's platform of a chip, under the name that its tools use; None if it has none."""
    return next((one for one in toolkit.platforms if same_chip(one.chip, chip)), None)


def _platform_problems(toolkit: Toolkit, chip: str) -> Sequence[toolkits.Problem]:
    platform = platform_of(toolkit, chip)
    if platform is not None:
        return [problem for problem in toolkit.problems if problem.file == platform.path]
    if toolkit.kind != "ddk" and not toolkit.platforms:
        return []  # CANN without platform files: nothing tells, and its file will
    there = ", ".join(one.chip for one in toolkit.platforms)
    return [
        toolkits.Problem(
            f"the toolkit does not build for {chip}",
            toolkit.root,
            f"platforms for {there}" if there else "no platform plugin",
            f"one for {chip}",
            f"Unpack the plugin of {chip} of the same version into the toolkit's platform folder",
        )
    ]
