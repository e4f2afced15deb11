"""CANN with ``atc``: for Ascend servers, or its mobile-station edition for Kirin. Its versions stand in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.compat.versions import Pair, compare, parse
from pytest_cannlm.toolkits.files import entries, is_dir, is_file, real
from pytest_cannlm.toolkits.model import Kind, Platform, Problem, ReadVersion, Toolkit
from pytest_cannlm.toolkits.names import release_version, shown, upwards
from pytest_cannlm.toolkits.tools import tool, tool_problems
from pytest_cannlm.toolkits.versionfiles import read_keys, running_versions, unknown_version, unreadable

PARTS = ("compiler", "toolkit", "runtime", "opp")
"""In the order in which their versions count: ``atc`` writes the compiler's into a model."""

FOLDER = "folder"
"""The part whose version is that in the folder's name."""
_RENAME, _REINSTALL = "Give the folder the name of what is in it", "Install all parts of one release"
_READ_BY_ATC = ("compiler", "opp")
"""Parts whose ``version.info`` the vendor's own program reads, so that its absence matters; that of the others is
missed where the compiler has its own in the same place."""
_MACHINES = ("x86_64-linux", "aarch64-linux")
_INSTALLS = {"release": "ascend_toolkit_install.info", "opp": "ascend_ops_install.info"}
"""By part. From CANN 8.5 on the operators are a package of their own, which has to be of the toolkit's release."""
_MARKS = (
    "compiler/version.info",
    "compiler/bin/atc",
    "share/info/compiler/version.info",
    "version.cfg",
    "opp/version.info",
    *(f"{machine}/{_INSTALLS['release']}" for machine in _MACHINES),
)
_ATC = ("bin/atc", "compiler/bin/atc", *(f"{machine}/bin/atc" for machine in _MACHINES))


def ascend_at(folder: Path) -> Path | None:
    """``folder`` if CANN lies in it. ``bin/atc`` alone is no mark: ``/usr`` may have an ``atc`` of somebody else."""
    if folder.name in (*_MACHINES, *PARTS) or not any(is_file(folder / mark) for mark in _MARKS):
        return None
    return folder


def home_of(folder: Path) -> Path:
    """The installation behind ``folder``: ``latest`` is a folder of links into another one.

    ``folder`` itself, links followed, where its parts lie in different installations.
    """
    behind = set()
    for part in PARTS:
        if is_dir(folder / part):
            parent = real(folder / part).parent
            behind.add(parent.parent if parent.name in _MACHINES else parent)
    home = behind.pop() if len(behind) == 1 else None
    return home if home and ascend_at(home) else real(folder)


def read_ascend(home: Path, places: Iterable[Path] = ()) -> Toolkit:
    """The CANN installation ``home``.

    :param places: further folders that lead to it, such as ``latest``: each may have a ``version.cfg`` of its own.
    """
    running = {real(place / "version.cfg"): None for place in (home, *places) if is_file(place / "version.cfg")}
    read = sum(
        [
            *(_part(home, part) for part in PARTS),
            *map(_running, running),
            *(_installed(home / machine / name, part) for machine in _MACHINES for part, name in _INSTALLS.items()),
        ],
        _Read(),
    )
    named = release_version(home.name)
    versions = (*read.versions, *([ReadVersion(FOLDER, named, home, "the name")] if named else []))
    programs = tuple(found for place in _ATC if (found := tool("atc", home / place)))[:1]
    platforms, for_servers = _platforms(home)
    return Toolkit(
        _kind(home, platforms, for_servers=for_servers),
        home,
        versions=versions,
        platforms=platforms,
        tools=programs,
        problems=(*read.problems, *_contradictions(versions, read.pairs), *tool_problems(programs)),
        pairs=read.pairs,
        host=_host(home),
        driver=_driver(home),
    )


@dataclass(frozen=True)
class _Read:
    """What files say, and what is wrong with them."""

    versions: tuple[ReadVersion, ...] = ()
    pairs: tuple[Pair, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __add__(self, other: _Read) -> _Read:
        return _Read(self.versions + other.versions, self.pairs + other.pairs, self.problems + other.problems)


def _part(home: Path, part: str) -> _Read:
    """The ``version.info`` of a part; ``atc`` looks for the compiler's beside its own ``bin`` first."""
    places = [home / part / "version.info", home / "share" / "info" / part / "version.info"]
    if part == "compiler":
        places.insert(0, home / "version.info")
    path = next(filter(is_file, places), None)
    if path:
        return _version(part, path, "Version")
    missed = is_dir(home / part) and (part in _READ_BY_ATC or is_file(home / "compiler" / "version.info"))
    return _Read(problems=(unreadable(home / part / "version.info", "no such file"),) if missed else ())


def _running(path: Path) -> _Read:
    """``version.cfg``: per part the internal and the public number, which is what joins the two spaces."""
    keys = read_keys(path)
    if isinstance(keys, Problem):
        return _Read(problems=(keys,))
    found = running_versions(keys)
    if keys and not found:
        return _Read(problems=(unknown_version(path, "compiler_running_version", None),))
    known = [(part, *found[part]) for part in PARTS if part in found]
    return _Read(
        tuple(ReadVersion(part, parse(internal), path, key) for part, key, internal, _ in known),
        _known_pairs([Pair(internal, public, f"{key} of {path}") for _, key, internal, public in known]),
    )


def _installed(path: Path, part: str) -> _Read:
    """``ascend_toolkit_install.info`` and its like: the release, and the vendor's release code for it."""
    if not is_file(path):
        return _Read()
    read, keys = _version(part, path, "version"), read_keys(path)
    code = "" if isinstance(keys, Problem) else keys.get("innerversion", "")
    return replace(
        read, pairs=_known_pairs([Pair(one.version.raw, code, f"innerversion of {path}") for one in read.versions])
    )


def _version(part: str, path: Path, key: str) -> _Read:
    """The version under one key of a file."""
    keys = read_keys(path)
    if isinstance(keys, Problem):
        return _Read(problems=(keys,))
    text = keys.get(key.lower(), "")
    version = parse(text)
    return _Read(
        (ReadVersion(part, version, path, key),) if text else (),
        problems=() if version.known else (unknown_version(path, key, text),),
    )


def _known_pairs(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Those that join two number spaces; from 8.2 on an installation may give one number twice."""
    both = [(pair, parse(pair.one), parse(pair.other)) for pair in pairs]
    return tuple(pair for pair, one, other in both if one.known and other.known and one.space != other.space)


def _contradictions(versions: Sequence[ReadVersion], pairs: Sequence[Pair]) -> Iterator[Problem]:
    """Known versions that differ from the one that counts; where no pair joins two spaces, nothing can be said."""
    known = [read for read in versions if read.version.known]
    for other in known[1:]:
        if compare(known[0].version, other.version, extra=pairs).outcome == "mismatch":
            yield Problem(
                f"two files give {other.part} different versions"
                if other.part == known[0].part
                else f"{other.part} and {known[0].part} are of different versions",
                other.file,
                f"{shown(other.version, pairs)} ({other.key})",
                f"{shown(known[0].version, pairs)}, {known[0].where}",
                f"{_RENAME if other.part == FOLDER else _REINSTALL}; until then the version of {known[0].part} counts",
            )


def _platforms(home: Path) -> tuple[tuple[Platform, ...], bool]:
    """Kirin chips that CANN has a platform file of, and whether it has one of an Ascend chip."""
    folders = [home / machine / "data" / "platform_config" for machine in _MACHINES]
    files = [path for folder in folders for path in entries(folder) if path.suffix.lower() == ".ini"]
    kirin = tuple(Platform(normalize(path.stem), path) for path in files if path.stem.lower().startswith("kirin"))
    return kirin, any(path.stem.lower().startswith("ascend") for path in files)


def _kind(home: Path, platforms: Sequence[Platform], *, for_servers: bool) -> Kind:
    """The editions differ in what they build for; the public ``atc`` for servers may know Kirin chips too."""
    keys = [read_keys(home / machine / name) for machine in _MACHINES for name in _INSTALLS.values()]
    names = [key.get(name, "") for key in keys if not isinstance(key, Problem) for name in ("package_name", "path")]
    mobile = any("mobile" in name.lower() for name in names)
    return "mobile-station" if mobile or (platforms and not for_servers) else "ascend"


def _host(home: Path) -> str:
    for path in (home / "scene.info", home / "compiler" / "scene.info", home / "opp" / "scene.info"):
        keys = read_keys(path) if is_file(path) else {}
        if not isinstance(keys, Problem) and keys:
            return " ".join(keys[key] for key in ("os", "arch") if keys.get(key))
    return ""


def _driver(home: Path) -> ReadVersion | None:
    """The driver's version, which counts apart from CANN's: its installer puts it beside the toolkits."""
    places = [folder / "driver" / "version.info" for folder in upwards([home.parent], 1)]
    return next(
        (found for path in places if is_file(path) for found in _version("driver", path, "Version").versions), None
    )
