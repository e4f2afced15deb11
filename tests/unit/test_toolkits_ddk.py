"""The DDK: versions from names and hashes, plugins, and why omg would not run."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from installations import ddk, elf, write

from pytest_cannlm.compat.versions import parse
from pytest_cannlm.toolkits import Toolkit, archives, find_toolkits
from pytest_cannlm.toolkits.elf import interpreter
from pytest_cannlm.toolkits.names import ddk_version, plugin_version, release_version

posix = pytest.mark.skipif(os.name != "posix", reason="execute bits and links as on Linux")


def only(folder: Path, **options: bool) -> Toolkit:
    (toolkit,) = find_toolkits({}, roots=[folder], **options)
    return toolkit


def complaints(toolkit: Toolkit) -> str:
    return "\n".join(problem.what for problem in toolkit.problems)


def test_a_sound_ddk_has_version_platform_and_no_problem(tmp_path: Path) -> None:
    tools = ddk(tmp_path)
    toolkit = only(tmp_path)
    assert (toolkit.kind, toolkit.root) == ("ddk", tools.resolve())
    assert toolkit.problems == ()
    assert toolkit.version is not None
    assert (str(toolkit.version.version), toolkit.version.file.name) == ("6.1.1.0", "DDK-tools-next-6.1.1.0")
    assert [platform.chip for platform in toolkit.platforms] == ["KirinX90"]
    assert [tool.name for tool in toolkit.tools] == ["omg", "master/omg"]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("DDK-tools-next-6.1.1.0", "6.1.1.0"),
        ("DDK-tools-next-6.0.1.0 (1)", "6.0.1.0"),
        ("hwhiai-ddk-5.1.1.1", "5.1.1.1"),
        ("ddk_6.1.1.0", "6.1.1.0"),
        ("DDK-tools-next", None),
        ("NDK-6.1.1.0", None),
        ("DDK-tools-next-6.1.1", None),
    ],
)
def test_versions_in_names_of_a_ddk(name: str, version: str | None) -> None:
    assert ddk_version(name) == (parse(version) if version else None)


def test_versions_in_names_of_plugins_and_releases() -> None:
    assert plugin_version("kirinx90-plugin-next-6.1.1.0") == ("kirinx90", parse("6.1.1.0"))
    assert plugin_version("Kirin9020-plugin-next-6.0.1.0") == ("kirin9020", parse("6.0.1.0"))
    assert plugin_version("kirin-plugin-next-6.0.1.0") is None
    assert release_version("cann-9.0.0") == parse("9.0.0")
    assert release_version("8.0.RC2.alpha001") == parse("8.0.RC2.alpha001")
    assert release_version("latest") is None


def test_without_a_name_the_version_is_unknown_and_said_so(tmp_path: Path) -> None:
    ddk(tmp_path, name="ddk")
    toolkit = only(tmp_path)
    assert toolkit.version is None
    assert "version of the DDK is not known" in complaints(toolkit)


def test_a_renamed_ddk_has_the_version_of_the_one_archive_beside_it(tmp_path: Path) -> None:
    ddk(tmp_path, name="ddk")
    archive = write(tmp_path / "DDK-tools-next-6.1.1.0.zip", "PK")
    toolkit = only(tmp_path)
    assert toolkit.version is not None
    assert (str(toolkit.version.version), toolkit.version.file) == ("6.1.1.0", archive.resolve())
    write(tmp_path / "DDK-tools-next-6.0.1.0.zip", "PK")
    assert only(tmp_path).version is None


def test_two_names_that_differ_are_reported(tmp_path: Path) -> None:
    ddk(tmp_path / "DDK-tools-next-6.0.1.0")
    toolkit = only(tmp_path)
    assert toolkit.version is not None
    assert str(toolkit.version.version) == "6.1.1.0"
    assert "two names give the DDK two versions" in complaints(toolkit)


def test_the_plugin_of_another_version_is_reported(tmp_path: Path) -> None:
    ddk(tmp_path)
    (tmp_path / "kirinx90-plugin-next-6.0.1.0").mkdir()
    toolkit = only(tmp_path)
    (problem,) = toolkit.problems
    assert "plugin of KirinX90 is not of the DDK's version" in problem.what
    assert problem.found.startswith("6.0.1.0")
    assert problem.expected.startswith("6.1.1.0")
    assert problem.remedy


def test_plugins_of_two_versions_leave_that_of_a_copy_unknown(tmp_path: Path) -> None:
    ddk(tmp_path)
    for version in ("6.0.1.0", "6.1.1.0"):
        (tmp_path / f"kirinx90-plugin-next-{version}").mkdir()
    toolkit = only(tmp_path)
    assert toolkit.platforms[0].version is None
    assert toolkit.problems == ()


def test_a_plugin_beside_two_ddks_may_be_the_other_ones(tmp_path: Path) -> None:
    for version in ("6.0.1.0", "6.1.1.0"):
        ddk(tmp_path, name=f"DDK-tools-next-{version}")
    (tmp_path / "kirinx90-plugin-next-6.0.1.0").mkdir()
    toolkits = find_toolkits({}, roots=[tmp_path])
    assert [platform.version for toolkit in toolkits for platform in toolkit.platforms] == [None, None]
    assert [problem for toolkit in toolkits for problem in toolkit.problems] == []


@posix
def test_a_linked_plugin_is_known_by_where_the_link_leads(tmp_path: Path) -> None:
    tools = ddk(tmp_path, platforms=())
    for version in ("6.0.1.0", "6.1.1.0"):
        (tmp_path / f"kirinx90-plugin-next-{version}" / "image" / "ddk_platform_plugin" / "kirinx90").mkdir(
            parents=True
        )
    (tools / "platform").mkdir()
    origin = tmp_path / "kirinx90-plugin-next-6.0.1.0" / "image" / "ddk_platform_plugin" / "kirinx90"
    (tools / "platform" / "kirinx90").symlink_to(origin)
    (platform,) = only(tmp_path).platforms
    assert platform.version is not None
    assert str(platform.version.version) == "6.0.1.0"


def test_a_ddk_without_plugin_is_reported(tmp_path: Path) -> None:
    ddk(tmp_path, platforms=())
    assert "no platform plugin" in complaints(only(tmp_path))


@posix
def test_lost_execute_bits_are_reported_with_the_command(tmp_path: Path) -> None:
    tools = ddk(tmp_path, mode=0o644)
    toolkit = only(tmp_path)
    assert [problem.remedy for problem in toolkit.problems] == [
        f"chmod +x {tools.resolve() / 'tools_omg' / 'omg'}",
        f"chmod +x {tools.resolve() / 'tools_omg' / 'master' / 'omg'}",
    ]


def test_a_missing_loader_is_reported_with_the_command(tmp_path: Path) -> None:
    ddk(tmp_path)
    (tmp_path / "loader.so").unlink()
    (problem,) = only(tmp_path).problems
    assert "loader that it asks for is missing" in problem.what
    assert problem.remedy.endswith(f"ln -s /lib64/ld-linux-x86-64.so.2 {tmp_path / 'loader.so'}")


@pytest.mark.parametrize("missing", ["omg", "master/omg"])
def test_a_missing_program_is_reported(tmp_path: Path, missing: str) -> None:
    tools = ddk(tmp_path)
    (tools / "tools_omg" / missing).unlink()
    toolkit = only(tmp_path)
    assert [problem.file for problem in toolkit.problems] == [tools.resolve() / "tools_omg" / missing]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (elf("/lib/ld.so"), Path("/lib/ld.so")),
        (b"#!/bin/sh\n", None),
        (b"", None),
        (elf("/lib/ld.so")[:100], None),
        (elf("/lib/ld.so")[:-4], None),
        (b"\x7fELF\x01\x01" + bytes(200), None),
        (b"\x7fELF\x02\x01" + b"\xff" * 200, None),
    ],
)
def test_interpreters(tmp_path: Path, content: bytes, found: Path | None) -> None:
    assert interpreter(write(tmp_path / "program", content)) == found


def test_archives_are_hashed_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ddk(tmp_path, name="ddk")
    archive = write(tmp_path / "DDK-tools-next-6.1.1.0.zip", "content")
    known = {hashlib.sha256(b"content").hexdigest(): ("DDK-tools-next-6.0.1.0.zip", parse("6.0.1.0"))}
    monkeypatch.setattr(archives, "_known", lambda: known)
    assert [one.sha256 for one in only(tmp_path).archives] == [None]
    toolkit = only(tmp_path, hash_archives=True)
    assert toolkit.archives[0].identified == parse("6.0.1.0")
    assert toolkit.version is not None
    assert (str(toolkit.version.version), toolkit.version.key) == ("6.0.1.0", "the hash")
    assert "an archive is not what its name says" in complaints(toolkit)
    assert archive.resolve() in {problem.file for problem in toolkit.problems}


@pytest.mark.parametrize(("version", "reported"), [("6.1.1.0", True), ("7.0.0.0", False)])
def test_an_unknown_hash_is_wrong_only_under_a_known_name(tmp_path: Path, version: str, reported: bool) -> None:
    ddk(tmp_path, name=f"DDK-tools-next-{version}")
    write(tmp_path / f"DDK-tools-next-{version}.zip", "not the vendor's")
    toolkit = only(tmp_path, hash_archives=True)
    assert toolkit.archives[0].identified is None
    assert ("not what its name says" in complaints(toolkit)) is reported


def test_every_known_archive_has_a_source_and_the_version_of_its_name() -> None:
    data = json.loads(Path(archives.__file__).with_name("archives.json").read_text(encoding="utf-8"))
    for entry in data["archives"]:
        stem = entry["name"].removesuffix(".zip")
        plugin = plugin_version(stem)
        assert (plugin[1] if plugin else ddk_version(stem)) == parse(entry["version"])
        assert len(entry["sha256"]) == 64
        assert entry["source"]
