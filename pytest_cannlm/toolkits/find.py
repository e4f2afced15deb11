"""Where toolkits are looked for: variables, PATH, and the folders that installers and people put them into."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

from pytest_cannlm.toolkits.archives import sha256_of
from pytest_cannlm.toolkits.ascend import ascend_at, home_of, read_ascend
from pytest_cannlm.toolkits.ddk import ddk_at, read_ddk
from pytest_cannlm.toolkits.files import entries, is_dir, is_file, real
from pytest_cannlm.toolkits.model import Toolkit
from pytest_cannlm.toolkits.names import upwards

Family = Literal["ddk", "ascend"]
"""Who made it: a DDK's ``omg`` and CANN's ``atc`` are looked for apart."""

ASCEND_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH")
"""What CANN's ``set_env.sh`` sets."""
OUR_VARIABLE = "CANNLM_DDK"
"""Names a DDK that lies elsewhere."""
PROGRAMS = ("omg", "atc")
LATEST = "latest"
"""The installer's link to, or folder of links into, the toolkit that was installed last."""

_DDK_VARIABLE = re.compile(r"^(?:\w+_)?DDK(?:_(?:HOME|PATH|ROOT|DIR))?$")
"""A DDK has no script that sets one; these are what people call theirs."""
_NAMES = re.compile(r"^(?:ascend.*|cann.*|nnae|latest|tools|.*ddk.*|\d+\.\d.*)$", re.IGNORECASE)
_MOST_FOLDERS = 256
_AT: dict[Family, Callable[[Path], Path | None]] = {"ddk": ddk_at, "ascend": ascend_at}
_LEVELS = 5
"""From ``tools/tools_omg/master/omg`` up, with one to spare."""


@dataclass(frozen=True)
class Hint:
    """Something that leads to a toolkit, or should."""

    name: str
    path: Path
    kind: Family
    selects: bool
    """Whether shells and scripts follow it."""


def default_roots(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where the vendor's installers put CANN for the system and for one user, and where people unpack a DDK."""
    home = environment.get("HOME") or environment.get("USERPROFILE")
    own = [Path(home) / name for name in ("Ascend", ".", "Downloads", "work")] if home else []
    return (Path("/usr/local/Ascend"), *own)


def find_toolkits(
    environment: Mapping[str, str], *, roots: Iterable[Path] | None = None, hash_archives: bool = False
) -> tuple[Toolkit, ...]:
    """All toolkits of this machine, those that the environment selects first.

    :param environment: the variables to go by; nothing else of the process is looked at.
    :param roots: folders to look into, two levels deep; None: :func:`default_roots`.
    :param hash_archives: identify archives beside a DDK by their hash, which reads all of them.
    """
    leads = [(hint, place) for hint in hints(environment) if (place := located(hint))]
    for folder in folders(environment, roots):
        leads += [
            (Hint(str(folder), folder, kind, selects=False), place) for kind, at in _AT.items() if (place := at(folder))
        ]
    by_home: dict[tuple[Family, Path], list[tuple[Hint, Path]]] = {}
    for hint, place in leads:
        home = real(place) if hint.kind == "ddk" else home_of(place)
        by_home.setdefault((hint.kind, home), []).append((hint, place))
    digest = cache(sha256_of) if hash_archives else None  # one archive may lie beside several DDKs
    found = [
        replace(
            _read(kind, home, [place for _, place in leading], digest=digest),
            found_by=tuple(hint.name for hint, _ in leading),
            selected_by=tuple(hint.name for hint, _ in leading if hint.selects),
        )
        for (kind, home), leading in by_home.items()
    ]
    return tuple(sorted(found, key=lambda toolkit: not toolkit.selected_by))


def _read(kind: Family, home: Path, places: Sequence[Path], *, digest: Callable[[Path], str | None] | None) -> Toolkit:
    if kind == "ddk":
        return read_ddk(places[0], digest=digest)
    beside = home.parent / LATEST
    return read_ascend(home, [*places, *([beside] if home_of(beside) == home else [])])


def hints(environment: Mapping[str, str]) -> Iterator[Hint]:
    """What the environment says about toolkits, right or wrong."""
    for name in ASCEND_VARIABLES:
        if environment.get(name):
            yield Hint(name, Path(environment[name]), "ascend", selects=True)
    for name in sorted(environment, key=lambda name: (name != OUR_VARIABLE, name)):
        if _DDK_VARIABLE.match(name) and environment[name]:
            yield Hint(name, Path(environment[name]), "ddk", selects=True)
    for program in PROGRAMS:
        kind: Family = "ddk" if program == "omg" else "ascend"
        folders = [Path(text) for text in environment.get("PATH", "").split(os.pathsep) if text]
        files = [folder / program for folder in folders if is_file(folder / program)]
        for number, path in enumerate(dict.fromkeys(files)):
            yield Hint(f"{program} on PATH", path, kind, selects=number == 0)


def located(hint: Hint) -> Path | None:
    """The toolkit that a hint leads to: in the folder that it names, or one that what it names lies in."""
    places = upwards([hint.path, real(hint.path)], _LEVELS)
    for folder in places:
        place = _AT[hint.kind](folder)
        # A DDK's ``tools`` in a folder further up is a neighbour of what is named, not what it lies in.
        if place and (place in places or folder in places[:1]):
            return place
    return None


def folders(environment: Mapping[str, str], roots: Iterable[Path] | None = None) -> tuple[Path, ...]:
    """Where toolkits are looked for: ``roots`` (None: :func:`default_roots`) and two levels of likely names below."""
    roots = default_roots(environment) if roots is None else roots
    return tuple(dict.fromkeys(islice(_folders(roots, levels=2), _MOST_FOLDERS)))


def _folders(roots: Iterable[Path], *, levels: int) -> Iterator[Path]:
    for root in roots:
        if is_dir(root):
            yield root
            if levels:
                yield from _folders((path for path in entries(root) if _NAMES.match(path.name)), levels=levels - 1)
