"""CANN with ``atc``: for Ascend servers, or its mobile-station edition for Kirin. Its versions stand in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.compat.versions import Pair, parse, translate
from pytest_cannlm.toolkits.files import entries, is_dir, is_file, real
from pytest_cannlm.toolkits.model import Kind, Platform, Problem, ReadVersion, Toolkit
from pytest_cannlm.toolkits.names import release_version, upwards
from pytest_cannlm.toolkits.tools import tool, tool_problems
from pytest_cannlm.toolkits.versionfiles import read_keys, running_versions, unknown_version, unreadable

PARTS = ("compiler", "toolkit", "runtime", "opp")
"""In the order in which their versions count: ``atc`` writes the compiler's into a model."""

FOLDER = "folder"
"""The part whose version is that in the folder's name."""
_RENAME, _REINSTALL = "Give the folder the name of what is in it", "Install all parts of one release"
_READ_BY_ATC = ("compiler", "opp")
"""Parts whose ``version.info`` the vendor's own program reads, so that its absence matters."""
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


def read_ascend(folder: Path) -> Toolkit:
    """The CANN installation in ``folder``."""
    root = home_of(folder)
    problems: list[Problem] = []
    parts = list(_part_versions(root, problems))
    running, pairs = _running(root, problems)
    installed, more, package = _installed(root, problems)
    pairs += more
    named = [
        ReadVersion(FOLDER, version, path, "the name")
        for path in upwards([root], 0)
        if (version := release_version(path.name))
    ]
    versions = (*parts, *running, *installed, *named)
    problems += _contradictions(versions, pairs)
    programs = tuple(found for place in _ATC if (found := tool("atc", root / place)))[:1]
    platforms, for_servers = _platforms(root)
    return Toolkit(
        _kind(package, platforms, for_servers=for_servers),
        root,
        versions=versions,
        platforms=platforms,
        tools=programs,
        problems=(*problems, *tool_problems(programs)),
        pairs=tuple(pairs),
        host=_host(root),
    )


def _part_versions(root: Path, problems: list[Problem]) -> Iterator[ReadVersion]:
    for part in PARTS:
        places = [root / part / "version.info", root / "share" / "info" / part / "version.info"]
        if part == "compiler":
            places.insert(0, root / "version.info")  # where atc looks first: beside its own bin
        path = next(filter(is_file, places), None)
        if path is None:
            if part in _READ_BY_ATC and is_dir(root / part):
                problems.append(unreadable(root / part / "version.info", "no such file"))
            continue
        keys = _keys(path, problems)
        if keys is not None:
            yield from _version(part, path, "Version", keys, problems)


def _running(root: Path, problems: list[Problem]) -> tuple[list[ReadVersion], list[Pair]]:
    """``version.cfg``: per part the internal and the public number, which is what joins the two spaces."""
    path = root / "version.cfg"
    keys = _keys(path, problems) if is_file(path) else {}
    found = running_versions(keys or {})
    if keys and not found:
        problems.append(unknown_version(path, "compiler_running_version", None))
    read, pairs = [], []
    for part in (part for part in PARTS if part in found):
        key, internal, public = found[part]
        read.append(ReadVersion(part, parse(internal), path, key))
        pairs.append(Pair(internal, public, f"{key} of {path}"))
    return read, _known_pairs(pairs)


def _installed(root: Path, problems: list[Problem]) -> tuple[list[ReadVersion], list[Pair], str]:
    """``ascend_toolkit_install.info`` and its like: release, the vendor's release code, and the name of the package."""
    found: list[ReadVersion] = []
    pairs: list[Pair] = []
    package = ""
    for machine in _MACHINES:
        for part, name in _INSTALLS.items():
            path = root / machine / name
            keys = (_keys(path, problems) if is_file(path) else None) or {}
            read = list(_version(part, path, "version", keys, problems)) if keys else []
            pairs += (Pair(one.version.raw, keys.get("innerversion", ""), f"innerversion of {path}") for one in read)
            package += f"{keys.get('package_name', '')} {keys.get('path', '')} "
            found += read
    return found, _known_pairs(pairs), package


def _keys(path: Path, problems: list[Problem]) -> Mapping[str, str] | None:
    keys = read_keys(path)
    if isinstance(keys, Problem):
        problems.append(keys)
        return None
    return keys


def _version(
    part: str, path: Path, key: str, keys: Mapping[str, str], problems: list[Problem]
) -> Iterator[ReadVersion]:
    text = keys.get(key.lower(), "")
    version = parse(text)
    if not version.known:
        problems.append(unknown_version(path, key, text))
    if text:
        yield ReadVersion(part, version, path, key)


def _known_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Those that join two number spaces; from 8.2 on an installation may give one number twice."""
    both = [(pair, parse(pair.one), parse(pair.other)) for pair in pairs]
    return [pair for pair, one, other in both if one.known and other.known and one.space != other.space]


def _contradictions(versions: Sequence[ReadVersion], pairs: Sequence[Pair]) -> Iterator[Problem]:
    """Known versions that differ from the one that counts; where no pair joins two spaces, nothing can be said."""
    known = [read for read in versions if read.version.known]
    for other in known[1:]:
        there = translate(other.version, known[0].version.space, pairs)
        if there is not None and there != known[0].version:
            yield Problem(
                f"two files give {other.part} different versions"
                if other.part == known[0].part
                else f"{other.part} and {known[0].part} are of different versions",
                other.file,
                f"{other.version} ({other.key})",
                f"{known[0].version}, {known[0].where}",
                f"{_RENAME if other.part == FOLDER else _REINSTALL}; until then the version of {known[0].part} counts",
            )


def _platforms(root: Path) -> tuple[tuple[Platform, ...], bool]:
    """Kirin chips that CANN has a platform file of, and whether it has one of an Ascend chip."""
    folders = [root / machine / "data" / "platform_config" for machine in _MACHINES]
    files = [path for folder in folders for path in entries(folder) if path.suffix.lower() == ".ini"]
    kirin = tuple(Platform(normalize(path.stem), path) for path in files if path.stem.lower().startswith("kirin"))
    return kirin, any(path.stem.lower().startswith("ascend") for path in files)


def _kind(package: str, platforms: Sequence[Platform], *, for_servers: bool) -> Kind:
    """The editions differ in what they build for; the public ``atc`` for servers may know Kirin chips too."""
    return "mobile-station" if "mobile" in package.lower() or (platforms and not for_servers) else "ascend"


def _host(root: Path) -> str:
    for path in (root / "scene.info", root / "compiler" / "scene.info", root / "opp" / "scene.info"):
        keys = read_keys(path) if is_file(path) else {}
        if not isinstance(keys, Problem) and keys:
            return " ".join(keys[key] for key in ("os", "arch") if keys.get(key))
    return ""
