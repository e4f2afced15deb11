"""Where toolkits are found, which one the environment selects, and what is wrong with the environment."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from installations import cann, ddk, write

from pytest_cannlm.compat.versions import Pair, parse
from pytest_cannlm.toolkits import Problem, Toolkit, default_roots, environment_problems, find_toolkits, match

posix = pytest.mark.skipif(os.name != "posix", reason="programs and links as on Linux")


def survey(environment: Mapping[str, object], *roots: Path) -> tuple[tuple[Toolkit, ...], tuple[Problem, ...]]:
    texts = {name: str(value) for name, value in environment.items()}
    toolkits = find_toolkits(texts, roots=roots)
    return toolkits, environment_problems(texts, toolkits, roots=roots)


def test_nothing_anywhere_is_no_toolkit_and_no_problem(tmp_path: Path) -> None:
    assert survey({}, tmp_path, tmp_path / "missing") == ((), ())


def test_default_roots_go_by_the_environment_alone(tmp_path: Path) -> None:
    assert default_roots({}) == (Path("/usr/local/Ascend"),)
    assert tmp_path / "Ascend" in default_roots({"HOME": str(tmp_path)})
    assert tmp_path in default_roots({"USERPROFILE": str(tmp_path)})
    root = cann(tmp_path / "Ascend" / "cann-8.0.0")
    assert root.resolve() in {toolkit.root for toolkit in find_toolkits({"HOME": str(tmp_path)})}


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH"])
def test_variables_of_cann(tmp_path: Path, variable: str) -> None:
    root = cann(tmp_path / "anywhere")
    (toolkit,), problems = survey({variable: root})
    assert (toolkit.root, toolkit.selected_by, problems) == (root.resolve(), (variable,), ())


def test_the_operator_packages_variable_names_a_part(tmp_path: Path) -> None:
    root = cann(tmp_path / "anywhere", versions={"compiler": "7.6.0.1.220", "opp": "7.6.0.1.220"})
    (toolkit,), problems = survey({"ASCEND_OPP_PATH": root / "opp"})
    assert (toolkit.root, problems) == (root.resolve(), ())


@pytest.mark.parametrize("variable", ["CANNLM_DDK", "DDK_HOME", "DDK", "HIAI_DDK_PATH"])
@pytest.mark.parametrize("below", [".", "tools", "tools/tools_omg", "tools/tools_omg/master"])
def test_variables_of_a_ddk(tmp_path: Path, variable: str, below: str) -> None:
    tools = ddk(tmp_path)
    (toolkit,), problems = survey({variable: tools.parent / below})
    assert (toolkit.root, toolkit.selected_by, problems) == (tools.resolve(), (variable,), ())


def test_a_variable_that_only_sounds_like_it_is_not_followed(tmp_path: Path) -> None:
    assert survey({"NDK_HOME": ddk(tmp_path), "DDK_VERSION": ddk(tmp_path / "other")}) == ((), ())


@pytest.mark.parametrize("variable", ["CANNLM_DDK", "ASCEND_HOME_PATH"])
def test_a_variable_that_leads_nowhere_is_reported(tmp_path: Path, variable: str) -> None:
    for path, found in ((tmp_path, "no toolkit in it"), (tmp_path / "gone", "no such folder")):
        toolkits, (problem,) = survey({variable: path})
        assert toolkits == ()
        assert (problem.file, problem.found) == (path, found)
        assert variable in problem.what
        assert variable in problem.remedy


def test_other_peoples_ddk_variables_may_mean_another_ddk(tmp_path: Path) -> None:
    assert survey({"DDK_HOME": tmp_path}) == ((), ())


def test_all_installed_are_listed_and_the_selected_one_comes_first(tmp_path: Path) -> None:
    old = ddk(tmp_path, name="DDK-tools-next-6.0.1.0")
    new = ddk(tmp_path, name="DDK-tools-next-6.1.1.0")
    server = cann(tmp_path / "Ascend" / "cann-8.0.0")
    toolkits, problems = survey({"PATH": new / "tools_omg"}, tmp_path)
    assert problems == ()
    assert toolkits[0].root == new.resolve()
    assert {toolkit.root for toolkit in toolkits} == {path.resolve() for path in (old, new, server)}
    assert [toolkit.selected_by for toolkit in toolkits] == [("omg on PATH",), (), ()]


def test_the_first_program_on_path_selects(tmp_path: Path) -> None:
    old, new = (ddk(tmp_path, name=f"DDK-tools-next-{version}") for version in ("6.0.1.0", "6.1.1.0"))
    toolkits, _ = survey({"PATH": os.pathsep.join(map(str, (new / "tools_omg", old / "tools_omg")))})
    assert [(toolkit.root, bool(toolkit.selected_by)) for toolkit in toolkits] == [
        (new.resolve(), True),
        (old.resolve(), False),
    ]


@posix
def test_a_link_on_path_is_followed(tmp_path: Path) -> None:
    tools, root = ddk(tmp_path), cann(tmp_path / "cann")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "omg").symlink_to(tools / "tools_omg" / "omg")
    (programs / "atc").symlink_to(root / "bin" / "atc")
    toolkits, problems = survey({"PATH": programs})
    assert ({toolkit.root for toolkit in toolkits}, problems) == ({tools.resolve(), root.resolve()}, ())


def test_a_program_of_somebody_else_is_no_toolkit(tmp_path: Path) -> None:
    ddk(tmp_path, name=".")  # a DDK that lies beside the folder of programs, not around it
    write(tmp_path / "bin" / "omg", mode=0o755)
    toolkits, (problem,) = survey({"PATH": tmp_path / "bin"})
    assert toolkits == ()
    assert "belongs to no toolkit" in problem.what


def test_the_program_behind_the_wrapper_is_reported(tmp_path: Path) -> None:
    tools = ddk(tmp_path)
    _, (problem,) = survey({"PATH": tools / "tools_omg" / "master"})
    assert "past the wrapper" in problem.what
    assert str(tools.resolve() / "tools_omg") in problem.remedy


def test_path_of_one_and_operators_of_another_is_reported(tmp_path: Path) -> None:
    one = cann(tmp_path / "one", versions={"compiler": "7.6.0.1.220"})
    other = cann(tmp_path / "other", versions={"compiler": "7.3.0.1.231", "opp": "7.3.0.1.231"})
    toolkits, (problem,) = survey({"PATH": one / "bin", "ASCEND_OPP_PATH": other / "opp"})
    assert [toolkit.selected_by for toolkit in toolkits] == [("ASCEND_OPP_PATH",), ("atc on PATH",)]
    assert problem.what == "the environment mixes two toolkits"
    assert "7.6.0.1.220" in problem.found
    assert "7.3.0.1.231" in problem.expected


def test_libraries_of_another_toolkit_are_reported(tmp_path: Path) -> None:
    old, new = (ddk(tmp_path, name=f"DDK-tools-next-{version}") for version in ("6.0.1.0", "6.1.1.0"))
    libraries = os.pathsep.join(str(tools / "tools_omg" / "master" / "lib64") for tools in (old, old, new))
    _, problems = survey({"PATH": new / "tools_omg", "LD_LIBRARY_PATH": libraries}, tmp_path)
    assert [problem.found.split(" leads")[0] for problem in problems] == ["LD_LIBRARY_PATH"]
    assert survey({"LD_LIBRARY_PATH": libraries}, tmp_path)[1] == ()


@posix
def test_links_in_a_circle_and_locked_folders_are_survived(tmp_path: Path) -> None:
    tools = ddk(tmp_path)
    for name in ("ascend-loop", "latest"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "cann").symlink_to("cann")
    locked = tmp_path / "cann-locked"
    locked.mkdir(mode=0o000)
    environment = {"ASCEND_HOME_PATH": tmp_path / "cann", "CANNLM_DDK": tmp_path / "latest" / "latest"}
    toolkits, problems = survey(environment, tmp_path)
    locked.chmod(0o700)
    assert {toolkit.root for toolkit in toolkits} == {tools.resolve()}
    nowhere = f"{tmp_path / 'cann'} is a link to cann, which leads nowhere"
    assert [problem.found for problem in problems] == [nowhere, "no toolkit in it"]


@posix
def test_a_broken_link_is_told_with_its_target_whether_or_not_a_variable_leads_over_it(tmp_path: Path) -> None:
    latest = tmp_path / "Ascend" / "ascend-toolkit" / "latest"
    latest.parent.mkdir(parents=True)
    latest.symlink_to("8.9.0")
    toolkits, (problem,) = survey({}, tmp_path / "Ascend")
    assert toolkits == ()
    assert (problem.file, problem.found) == (latest, "a link to 8.9.0, which leads nowhere")
    for path in (latest, latest / "opp"):
        _, (first, *_) = survey({"ASCEND_HOME_PATH": path}, tmp_path / "Ascend")
        assert (first.file, first.found) == (path, f"{latest} is a link to 8.9.0, which leads nowhere")
    assert len(survey({"ASCEND_HOME_PATH": latest}, tmp_path / "Ascend")[1]) == 1


@pytest.mark.parametrize("folder", ["Downloads", "work", "Ascend/nnae/8.0.0", "."])
def test_where_people_and_installers_put_toolkits(tmp_path: Path, folder: str) -> None:
    tools = cann(tmp_path / folder) if "nnae" in folder else ddk(tmp_path / folder)
    roots = {toolkit.root for toolkit in find_toolkits({"HOME": str(tmp_path)})}
    assert tools.resolve() in roots


def test_many_folders_are_not_all_looked_at(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"cann-{number:03}").mkdir()
    cann(tmp_path / "cann-299")
    assert find_toolkits({}, roots=[tmp_path]) == ()


@pytest.mark.parametrize(
    ("chip", "device", "policy", "outcome", "rule"),
    [
        ("kirin x90", "6.1.1.0", "exact", "ok", "policy exact"),
        ("KirinX90", "6.0.1.0", "exact", "mismatch", "policy exact"),
        ("KirinX90", "6.0.1.0", "off", "off", "not compared"),
        ("KirinX90", "108.631.120.010", "exact", "unknown", "no known pair"),
        ("KirinX90", None, "exact", "unknown", "version of the device is not known"),
        ("Kirin9020", "6.1.1.0", "exact", "mismatch", "builds for KirinX90, not for Kirin9020"),
    ],
)
def test_a_toolkit_against_a_device(
    tmp_path: Path, chip: str, device: str | None, policy: str, outcome: str, rule: str
) -> None:
    ddk(tmp_path)
    (toolkit,) = find_toolkits({}, roots=[tmp_path])
    version = parse(device) if device else None
    found = match(toolkit, chip=chip, version=version, policy=policy)  # type: ignore[arg-type]
    assert found.outcome == outcome
    assert rule in found.rule


def test_a_pair_decides_what_is_otherwise_unknown(tmp_path: Path) -> None:
    ddk(tmp_path)
    (toolkit,) = find_toolkits({}, roots=[tmp_path])
    pair = Pair("6.1.1.0", "108.631.120.010", "the bench")
    found = match(toolkit, chip="KirinX90", version=parse("108.631.120.010"), policy="exact", pairs=[pair])
    assert found.outcome == "ok"
    assert "by the bench" in found.rule


def test_a_toolkit_that_does_not_say_what_it_is_or_builds_for(tmp_path: Path) -> None:
    ddk(tmp_path / "a", name="ddk")
    (nameless,) = find_toolkits({}, roots=[tmp_path / "a"])
    assert "version of the toolkit" in match(nameless, chip="KirinX90", version=parse("6.1.1.0"), policy="exact").rule
    ddk(tmp_path / "b", platforms=())
    (bare,) = find_toolkits({}, roots=[tmp_path / "b"])
    assert match(bare, chip="KirinX90", version=parse("6.1.1.0"), policy="exact").outcome == "mismatch"
    cann(tmp_path / "c" / "cann", platforms=())
    (server,) = find_toolkits({}, roots=[tmp_path / "c"])
    assert match(server, chip="KirinX90", version=parse("7.6.0.1.220"), policy="exact").outcome == "unknown"
    assert match(server, chip="Ascend310B4", version=parse("8.0.0"), policy="exact").outcome == "ok"


def test_a_ddk_without_its_converter_is_told_of(tmp_path: Path) -> None:
    tools = tmp_path / "DDK-tools-next-6.1.1.0" / "tools"
    tools.mkdir(parents=True)
    ddk(tmp_path, name="DDK-tools-next-6.0.1.0")
    (tmp_path / "DDK-docs-6.1.1.0").mkdir()
    (problem,) = survey({}, tmp_path)[1]
    assert (problem.file, problem.expected) == (tools, "tools_omg/omg")
