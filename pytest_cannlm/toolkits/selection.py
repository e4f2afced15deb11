"""What the environment says about toolkits, held against the toolkits that are there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_cannlm.toolkits.ddk import OMG, ddk_at
from pytest_cannlm.toolkits.files import broken_link, is_dir, is_file, real
from pytest_cannlm.toolkits.find import ASCEND_VARIABLES, LATEST, OUR_VARIABLE, Family, Hint, folders, hints
from pytest_cannlm.toolkits.model import Problem, Toolkit
from pytest_cannlm.toolkits.names import ddk_version, upwards

_MOST_ENTRIES = 256
_ONE = "Open a fresh shell and set up one toolkit only (source its set_env.sh)"


def environment_problems(
    environment: Mapping[str, str], toolkits: Sequence[Toolkit], *, roots: Iterable[Path] | None = None
) -> tuple[Problem, ...]:
    """Variables, PATH entries and links that lead nowhere, to the wrong program, or to two toolkits at once.

    :param toolkits: what :func:`pytest_cannlm.toolkits.find_toolkits` found by the same environment and roots.
    """
    selecting = [hint for hint in hints(environment) if hint.selects]
    first: dict[Family, tuple[Hint, Toolkit]] = {}
    problems: list[Problem] = []
    for hint in selecting:
        toolkit = next((one for one in toolkits if hint.name in one.selected_by), None)
        if toolkit is None:
            problems += _leads_nowhere(hint)
            continue
        before, chosen = first.setdefault(hint.kind, (hint, toolkit))
        if chosen.root != toolkit.root:
            problems.append(_mixed(hint.name, hint.path, toolkit, before.name, chosen))
        if hint.name == "omg on PATH" and real(hint.path).parent.name == "master":
            problems.append(_behind_the_wrapper(hint, toolkit))
    problems += _foreign_libraries(environment, toolkits, first)
    looked_into = folders(environment, roots)
    problems += [_hollow(folder) for folder in looked_into if ddk_version(folder.name) and not _has_ddk(folder)]
    told = {problem.file for problem in problems}
    links = (folder / LATEST for folder in looked_into)
    problems += [_broken(link, target) for link in links if link not in told and (target := broken_link(link))]
    return tuple(problems)


def _has_ddk(folder: Path) -> bool:
    """Whether a DDK lies in the folder, or nothing that looks as if one should."""
    return ddk_at(folder) is not None or not is_dir(folder / "tools")


def _hollow(folder: Path) -> Problem:
    return Problem(
        "a folder is named as a DDK and has no converter in it",
        folder / "tools",
        f"no {OMG}",
        f"{OMG}/omg",
        "Unpack the DDK's archive again, the whole of it",
    )


def _broken(link: Path, target: str) -> Problem:
    return Problem(
        "the link to the toolkit that was installed last is broken",
        link,
        f"a link to {target}, which leads nowhere",
        "a link to a folder with CANN",
        "Install that toolkit again, or let the link lead to one that is installed",
    )


def _leads_nowhere(hint: Hint) -> Iterator[Problem]:
    if hint.name.endswith(" on PATH"):
        yield Problem(
            f"the {hint.name} belongs to no toolkit that is recognised, so its version is unknown",
            hint.path,
            str(real(hint.path)),
            "a program in a DDK or in CANN, or a link to one",
            f"Put the toolkit's own folder on PATH, or name a DDK in {OUR_VARIABLE}",
        )
    elif hint.name in (*ASCEND_VARIABLES, OUR_VARIABLE):  # other people's variables may mean another DDK
        yield Problem(
            f"{hint.name} leads to no toolkit",
            hint.path,
            _what_is_there(hint.path),
            "a folder with tools_omg"
            if hint.kind == "ddk"
            else "a folder with CANN's compiler and opp, or a part of it",
            f"Set {hint.name} to the toolkit's folder, or unset it",
        )


def _what_is_there(path: Path) -> str:
    if is_dir(path):
        return "no toolkit in it"
    links = [(link, target) for link in upwards([path], len(path.parents)) if (target := broken_link(link))]
    return f"{links[0][0]} is a link to {links[0][1]}, which leads nowhere" if links else "no such folder"


def _mixed(name: str, path: Path, toolkit: Toolkit, other_name: str, other: Toolkit) -> Problem:
    return Problem(
        "the environment mixes two toolkits",
        path,
        f"{name} leads to {_called(toolkit)}",
        f"{_called(other)}, as {other_name} says",
        _ONE,
    )


def _called(toolkit: Toolkit) -> str:
    read = toolkit.version
    return f"{toolkit.root} ({read.version if read else 'version unknown'})"


def _behind_the_wrapper(hint: Hint, toolkit: Toolkit) -> Problem:
    wrapper = toolkit.root / "tools_omg" / "omg"
    return Problem(
        "PATH leads past the wrapper of omg; called directly, omg registers no operator plugins, and the engine "
        "refuses what it builds",
        hint.path,
        str(real(hint.path)),
        str(wrapper) if is_file(wrapper) else f"{wrapper}, which is missing",
        f"Put {wrapper.parent} on PATH in place of {hint.path.parent}",
    )


def _foreign_libraries(
    environment: Mapping[str, str], toolkits: Sequence[Toolkit], first: Mapping[Family, tuple[Hint, Toolkit]]
) -> Iterator[Problem]:
    """Libraries of another toolkit than the one whose program runs; one complaint for each such toolkit."""
    texts = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)[:_MOST_ENTRIES]
    told = set()
    for path in (Path(text) for text in texts if text):
        owner = next((one for one in toolkits if real(path).is_relative_to(one.root)), None)
        if owner is None or owner.root in told:
            continue
        hint, chosen = first.get("ddk" if owner.kind == "ddk" else "ascend", (None, owner))
        if hint and chosen.root != owner.root:
            told.add(owner.root)
            yield _mixed("LD_LIBRARY_PATH", path, owner, hint.name, chosen)
