"""CANN: its version files, sound, missing, broken, and contradicting each other."""

import os
from pathlib import Path

import pytest
from installations import cann, write

from pytest_cannlm.compat.versions import parse, translate
from pytest_cannlm.toolkits import Problem, Toolkit, find_toolkits
from pytest_cannlm.toolkits.files import MAX_BYTES
from pytest_cannlm.toolkits.versionfiles import read_keys, running_versions

CFG = "# version: 1.0\ncompiler_running_version=[7.6.0.1.220:8.0.0]\nopp_running_version=[7.6.0.1.220:8.0.0]\n"
INSTALL = "package_name=Ascend-cann-toolkit\nversion=8.0.0\ninnerversion=V100R001C20SPC001B251\narch=x86_64\nos=linux\n"

posix = pytest.mark.skipif(os.name != "posix", reason="links as on Linux")


def only(folder: Path) -> Toolkit:
    (toolkit,) = find_toolkits({}, roots=[folder])
    return toolkit


def complaints(toolkit: Toolkit) -> str:
    return "\n".join(problem.what for problem in toolkit.problems)


def test_a_sound_installation_agrees_with_itself(tmp_path: Path) -> None:
    versions = {"compiler": "7.6.0.1.220", "opp": "7.6.0.1.220."}
    root = cann(tmp_path / "8.0.0", versions=versions, cfg=CFG, install=INSTALL)
    write(root / "scene.info", "os=linux\narch=x86_64\n")
    toolkit = only(tmp_path)
    assert (toolkit.kind, toolkit.root, toolkit.host) == ("ascend", root.resolve(), "linux x86_64")
    assert toolkit.problems == ()
    assert toolkit.version is not None
    assert (toolkit.version.part, toolkit.version.where) == (
        "compiler",
        f"Version of {root.resolve() / 'compiler' / 'version.info'}",
    )
    assert {read.part for read in toolkit.versions} == {"compiler", "opp", "release", "folder"}
    assert [platform.chip for platform in toolkit.platforms] == ["KirinX90"]


def test_what_an_installation_says_of_itself_joins_number_spaces(tmp_path: Path) -> None:
    cann(tmp_path / "x" / "cann", cfg="compiler_running_version=[7.9.0.1.5:8.9.0]", versions={}, install=INSTALL)
    toolkit = only(tmp_path / "x")
    assert translate(parse("7.9.0.1.5"), "public", toolkit.pairs) == parse("8.9.0")
    assert translate(parse("V100R001C20SPC001B251"), "ascend-internal", toolkit.pairs) == parse("7.6.0.1.220")


@pytest.mark.parametrize(
    ("install", "platforms", "kind"),
    [
        (INSTALL, ("Ascend310B4", "KirinX90"), "ascend"),
        (INSTALL, (), "ascend"),
        (INSTALL, ("KirinX90",), "mobile-station"),
        (INSTALL.replace("cann-toolkit", "cann-toolkit-mobile-station"), (), "mobile-station"),
    ],
)
def test_kinds(tmp_path: Path, install: str, platforms: tuple[str, ...], kind: str) -> None:
    cann(tmp_path / "cann", install=install, platforms=platforms)
    assert only(tmp_path).kind == kind


@pytest.mark.parametrize(
    ("options", "what", "found"),
    [
        ({"versions": {"compiler": "7.6.0.1.220", "opp": "7.3.0.1.231"}}, "opp and compiler are of different", "7.3.0"),
        (
            {"cfg": CFG.replace("7.6.0.1.220:8.0.0", "7.3.0.1.231:8.0.RC2")},
            "two files give compiler different",
            "7.3.0",
        ),
        ({"install": INSTALL.replace("version=8.0.0", "version=8.1.RC1")}, "release and compiler are of", "8.1.RC1"),
        ({"versions": {"compiler": "newest"}}, "holds no version", "Version=newest"),
        ({"versions": {"compiler": ""}}, "holds no version", "no Version"),
        ({"cfg": "nothing=here\n"}, "holds no version", "no compiler_running_version"),
        ({"versions": {}}, "cannot be read", "no such file"),
    ],
)
def test_contradicting_and_empty_files_are_reported(
    tmp_path: Path, options: dict[str, object], what: str, found: str
) -> None:
    root = cann(tmp_path / "cann", **options)  # type: ignore[arg-type]
    write(root / "compiler" / "bin" / "atc", mode=0o755)
    problems = [problem for problem in only(tmp_path).problems if what in problem.what and found in problem.found]
    assert problems
    assert all(problem.expected and problem.remedy and problem.file.is_absolute() for problem in problems)


def test_a_folder_that_is_named_for_another_version_is_reported(tmp_path: Path) -> None:
    cann(tmp_path / "cann-9.0.0", versions={"compiler": "8.5.0.rc001"})
    toolkit = only(tmp_path)
    assert toolkit.version is not None
    assert str(toolkit.version.version) == "8.5.0.rc001"
    (problem,) = toolkit.problems
    assert problem.what == "folder and compiler are of different versions"
    assert problem.found == "9.0.0 (the name)"
    assert "name of what is in it" in problem.remedy


@pytest.mark.parametrize("name", ["version.info", "compiler/version.info", "share/info/compiler/version.info"])
def test_places_of_the_compilers_version(tmp_path: Path, name: str) -> None:
    root = cann(tmp_path / "cann", versions={})
    write(root / "compiler" / "bin" / "atc", mode=0o755)
    write(root / name, "Version: 8.5.0\n")
    toolkit = only(tmp_path)
    assert toolkit.version is not None
    assert toolkit.version.file == (root / name).resolve()


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"x" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"), (b"Version=\0", "binary data")],
)
def test_hostile_files_are_a_problem_not_an_error(tmp_path: Path, content: bytes, found: str) -> None:
    problem = read_keys(write(tmp_path / "version.info", content))
    assert isinstance(problem, Problem)
    assert problem.found == found
    cann(tmp_path / "cann")
    write(tmp_path / "cann" / "compiler" / "version.info", content)
    assert "cannot be read" in complaints(only(tmp_path))


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert isinstance(read_keys(tmp_path / "version.info"), Problem)


def test_an_operator_package_of_another_release_is_reported(tmp_path: Path) -> None:
    root = cann(tmp_path / "cann", versions={"compiler": "8.5.0"}, install="version=8.5.0\n")
    write(root / "x86_64-linux" / "ascend_ops_install.info", "version=8.3.RC1\n")
    (problem,) = only(tmp_path).problems
    assert problem.what == "opp and compiler are of different versions"
    assert problem.file.name == "ascend_ops_install.info"


def test_both_forms_of_a_line(tmp_path: Path) -> None:
    text = "# version: 1.0\r\nVersion=8.2.0.0.201.\nos : linux\nVersion=other\nnonsense\n path = a=b:c \n"
    keys = read_keys(write(tmp_path / "version.info", text))
    assert keys == {"version": "8.2.0.0.201.", "os": "linux", "path": "a=b:c"}


def test_running_versions() -> None:
    keys = {"runtime_running_version": "[7.3.0.1.231:8.0.RC2]", "opp_running_version": "7.3", "runtime_x": "[1:2]"}
    assert running_versions(keys) == {"runtime": ("runtime_running_version", "7.3.0.1.231", "8.0.RC2")}


@posix
def test_a_folder_of_links_is_the_installation_behind_it(tmp_path: Path) -> None:
    root = cann(tmp_path / "ascend-toolkit" / "8.0.0", versions={"compiler": "7.6.0.1.220", "opp": "7.6.0.1.220"})
    latest = tmp_path / "ascend-toolkit" / "latest"
    latest.mkdir()
    for part in ("compiler", "opp"):
        (latest / part).symlink_to(f"../8.0.0/{part}")
    assert only(tmp_path).root == root.resolve()


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "PATH", None])
@posix
def test_the_version_file_of_latest_is_read_before_anything_is_called_a_contradiction(
    tmp_path: Path, variable: str | None
) -> None:
    versions = {"compiler": "7.9.0.1.5", "opp": "7.9.0.1.5"}
    root = cann(tmp_path / "Ascend" / "8.9.0", versions=versions, install="version=8.9.0\n")
    latest = tmp_path / "Ascend" / "latest"
    latest.mkdir()
    for part in ("compiler", "opp"):
        (latest / part).symlink_to(f"../8.9.0/{part}")
    write(latest / "version.cfg", CFG.replace("7.6.0.1.220:8.0.0", "7.9.0.1.5:8.9.0"))
    environment = {"ASCEND_HOME_PATH": str(latest), "PATH": str(root / "bin"), None: ""}[variable]
    found = find_toolkits({variable: environment} if variable else {}, roots=[tmp_path] if variable is None else [])
    (toolkit,) = found
    assert (toolkit.root, toolkit.problems) == (root.resolve(), ())
    assert translate(parse("7.9.0.1.5"), "public", toolkit.pairs) == parse("8.9.0")
    assert len([read for read in toolkit.versions if read.file == latest / "version.cfg"]) == 2


@posix
def test_a_version_file_of_latest_that_says_another_version_is_a_contradiction(tmp_path: Path) -> None:
    root = cann(tmp_path / "8.0.0", versions={"compiler": "7.6.0.1.220", "opp": "7.6.0.1.220"})
    latest = tmp_path / "latest"
    latest.mkdir()
    (latest / "compiler").symlink_to(root / "compiler")
    write(latest / "version.cfg", CFG.replace("7.6.0.1.220:8.0.0", "7.3.0.1.231:8.0.RC2"))
    assert "two files give compiler different versions" in complaints(only(tmp_path))


def test_a_build_that_no_list_joins_with_its_release_accuses_nobody(tmp_path: Path) -> None:
    cann(tmp_path / "8.0.0", versions={"compiler": "7.6.0.2.220"}, install=INSTALL)
    assert only(tmp_path).problems == ()


def test_the_driver_beside_it_counts_apart(tmp_path: Path) -> None:
    write(tmp_path / "driver" / "version.info", "Version=24.1.rc2\n")
    cann(tmp_path / "ascend-toolkit" / "cann", versions={"compiler": "newest"})
    toolkit = only(tmp_path)
    assert toolkit.driver is not None
    assert (str(toolkit.driver.version), toolkit.driver.key) == ("24.1.rc2", "Version")
    assert toolkit.version is None
    assert "driver" not in complaints(toolkit)


@posix
def test_links_into_two_installations_are_an_installation_that_contradicts_itself(tmp_path: Path) -> None:
    old = cann(tmp_path / "7.0.0", versions={"compiler": "7.3.0.1.231", "opp": "7.3.0.1.231"})
    new = cann(tmp_path / "8.0.0", versions={"compiler": "7.6.0.1.220", "opp": "7.6.0.1.220"})
    mixed = tmp_path / "latest"
    mixed.mkdir()
    (mixed / "compiler").symlink_to(new / "compiler")
    (mixed / "opp").symlink_to(old / "opp")
    by_root = {toolkit.root: toolkit for toolkit in find_toolkits({}, roots=[tmp_path])}
    assert set(by_root) == {old.resolve(), new.resolve(), mixed.resolve()}
    assert "opp and compiler are of different versions" in complaints(by_root[mixed.resolve()])


@posix
def test_a_version_file_that_leads_to_itself_is_a_problem(tmp_path: Path) -> None:
    root = cann(tmp_path / "cann", versions={})
    write(root / "compiler" / "bin" / "atc", mode=0o755)
    (root / "compiler" / "version.info").symlink_to("version.info")
    toolkit = only(tmp_path)
    assert toolkit.version is None
    assert "a version file cannot be read" in complaints(toolkit)


def test_the_missing_version_file_of_a_part_is_told_where_the_others_have_theirs(tmp_path: Path) -> None:
    root = cann(tmp_path / "cann", versions=dict.fromkeys(("compiler", "toolkit", "opp"), "7.6.0.1.220"))
    assert only(tmp_path).problems == ()
    (root / "toolkit" / "version.info").unlink()
    (problem,) = only(tmp_path).problems
    assert (problem.what, problem.file) == ("a version file cannot be read", root.resolve() / "toolkit/version.info")
