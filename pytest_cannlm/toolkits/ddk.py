"""The Kirin DDK: ``omg`` and the platform plugins. Its version stands in names only, and in hashes of its archives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.toolkits.archives import Digest, archive_problems, archives_in
from pytest_cannlm.toolkits.files import entries, is_dir, is_file, real
from pytest_cannlm.toolkits.model import Archive, Platform, Problem, ReadVersion, Tool, Toolkit
from pytest_cannlm.toolkits.names import ddk_version, plugin_version, upwards
from pytest_cannlm.toolkits.tools import tool, tool_problems

OMG = "tools_omg"
MASTER = "master/omg"
"""The program that the wrapper ``omg`` calls."""
_LEVELS = 3
"""``DDK-tools-next-6.1.1.0/tools`` is one level; people unpack into a folder of the archive's name once more."""


def ddk_at(folder: Path) -> Path | None:
    """The ``tools`` folder of the DDK that lies in ``folder``."""
    for tools in (folder, folder / "tools"):
        if is_file(tools / OMG / "omg") or is_file(tools / OMG / "master" / "omg"):
            return tools
    return None


def read_ddk(tools: Path, *, digest: Digest | None) -> Toolkit:
    """The DDK whose ``tools`` folder this is. ``digest`` identifies the archives beside it; None: names only."""
    root = real(tools)
    around = upwards([root, tools], _LEVELS)
    beside = tuple(dict.fromkeys([root, *list(root.parents)[:2]]))
    archives = archives_in(beside, digest=digest)
    versions = tuple(_versions(around, archives))
    version = versions[0] if versions else None
    platforms = tuple(_platforms(root, beside, archives))
    programs = tuple(
        found for found in (tool("omg", root / OMG / "omg"), tool(MASTER, root / OMG / "master" / "omg")) if found
    )
    problems = [
        *_name_problems(root, versions),
        *(_plugin_problem(platform, version) for platform in platforms if _differs(platform, version)),
        *([] if platforms else [_no_platform(root)]),
        *_missing_programs(root, programs),
        *tool_problems(programs),
        *(problem for archive in archives for problem in archive_problems(archive)),
    ]
    return Toolkit(
        "ddk",
        root,
        versions=versions,
        platforms=platforms,
        tools=programs,
        problems=tuple(problems),
        archives=archives,
    )


def _versions(around: Sequence[Path], archives: Sequence[Archive]) -> Iterator[ReadVersion]:
    """By the names of the folders that it lies in; failing that by its archive, if only one can be meant."""
    named = [(folder, version) for folder in around if (version := ddk_version(folder.name))]
    for folder, version in named:
        yield ReadVersion("ddk", version, folder, "the name")
    if not named:
        beside = [archive for archive in archives if ddk_version(archive.path.stem)]
        if len({archive.identified or archive.named for archive in beside}) == 1:
            archive = beside[0]
            key = "the hash" if archive.identified else "the name"
            yield ReadVersion("ddk", archive.identified or archive.named, archive.path, key)


def _platforms(root: Path, beside: Sequence[Path], archives: Sequence[Archive]) -> Iterator[Platform]:
    """``platform/kirinx90`` is a copy of, or a link into, an unpacked plugin, whose name alone has the version.

    A copy does not say of what. The one plugin beside it is taken for that, unless it may be another DDK's.
    """
    names = [path for folder in beside for path in entries(folder) if is_dir(path)]
    names += [archive.path for archive in archives]
    if len({version for path in names if (version := ddk_version(_bare(path)))}) > 1:
        names = []
    for folder in filter(is_dir, entries(root / "platform")):
        platform = folder.name.lower()
        origin = [path for path in upwards([real(folder)], 2 * _LEVELS) if _plugin_of(path, platform)]
        found = origin or [path for path in names if _plugin_of(path, platform)]
        versions = {plugin_version(_bare(path)) for path in found}
        read = None
        if len(versions) == 1 and (told := versions.pop()):
            read = ReadVersion(f"{platform} plugin", told[1], found[0], "the name")
        yield Platform(normalize(folder.name), folder, read)


def _plugin_of(path: Path, platform: str) -> bool:
    told = plugin_version(_bare(path))
    return told is not None and told[0] == platform


def _bare(path: Path) -> str:
    return path.stem if path.suffix.lower() == ".zip" else path.name


def _name_problems(root: Path, versions: Sequence[ReadVersion]) -> Iterator[Problem]:
    if not versions:
        yield Problem(
            "the version of the DDK is not known: it stands only in the name of the folder or the archive",
            root,
            "no such name",
            "a folder DDK-tools-next-VERSION around it, or one archive of that name beside it",
            "Give the folder the name that the archive had, such as DDK-tools-next-6.1.1.0",
        )
    for other in versions[1:]:
        if other.version != versions[0].version:
            yield Problem(
                "two names give the DDK two versions",
                other.file,
                str(other.version),
                f"{versions[0].version}, {versions[0].where}",
                "Unpack each DDK into a folder of its own name",
            )


def _differs(platform: Platform, version: ReadVersion | None) -> bool:
    return bool(version and platform.version and platform.version.version != version.version)


def _plugin_problem(platform: Platform, version: ReadVersion | None) -> Problem:
    plugin = platform.version
    return Problem(
        f"the plugin of {platform.chip} is not of the DDK's version",
        platform.path,
        f"{plugin.version if plugin else 'unknown'} ({plugin.where if plugin else 'nowhere'})",
        f"{version.version if version else 'unknown'} ({version.where if version else 'nowhere'})",
        f"Download the plugin of the DDK's version and copy its image/ddk_platform_plugin/{platform.path.name} here",
    )


def _no_platform(root: Path) -> Problem:
    return Problem(
        "the DDK has no platform plugin, so omg can build for no chip",
        root / "platform",
        "no platform",
        "a folder per chip, such as platform/kirinx90",
        "Unpack the plugin of the same version and copy its image/ddk_platform_plugin/kirinx90 into platform",
    )


def _missing_programs(root: Path, programs: Sequence[Tool]) -> Iterator[Problem]:
    there = {program.name for program in programs}
    for name, path in (("omg", root / OMG / "omg"), (MASTER, root / OMG / "master" / "omg")):
        if name not in there:
            yield Problem(
                "a program of the DDK is missing", path, "no such file", "the program", "Unpack the DDK again"
            )
