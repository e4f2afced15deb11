"""Version files, names and programs of any content: read, or said to be unreadable, never an exception."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from installations import elf

from pytest_cannlm.compat.versions import parse
from pytest_cannlm.toolkits import Problem, find_toolkits
from pytest_cannlm.toolkits.elf import interpreter
from pytest_cannlm.toolkits.names import ddk_version, plugin_version, release_version
from pytest_cannlm.toolkits.versionfiles import read_keys, running_versions

PROGRAM = elf("/lib/ld.so")
names = st.text("dkDKirnx90-_.plugiabcv 6151()", max_size=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(content=st.one_of(st.binary(max_size=300), st.text("Version=:[]78.0RC\n #_running_version", max_size=300)))
def test_version_files(folder: Path, content: bytes | str) -> None:
    path = folder / "version.info"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    keys = read_keys(path)
    if isinstance(keys, Problem):
        assert keys.found
        assert keys.remedy
    else:
        assert all(key == key.lower() for key in keys)
        running_versions(keys)


@given(at=st.integers(0, len(PROGRAM) - 1), value=st.binary(min_size=1, max_size=8), end=st.integers(0, len(PROGRAM)))
def test_damaged_programs(folder: Path, at: int, value: bytes, end: int) -> None:
    path = folder / "program"
    path.write_bytes((PROGRAM[:at] + value + PROGRAM[at + len(value) :])[:end])
    found = interpreter(path)
    assert found is None or isinstance(found, Path)


@given(names)
@example("DDK-tools-next-6.1.1.0")
def test_names_hold_a_version_or_none(name: str) -> None:
    plugin = plugin_version(name)
    for version in (ddk_version(name), release_version(name), plugin[1] if plugin else None):
        assert version is None or version == parse(str(version))


@given(
    st.dictionaries(
        st.sampled_from(["PATH", "ASCEND_HOME_PATH", "CANNLM_DDK", "LD_LIBRARY_PATH"]), st.text(max_size=40)
    )
)
def test_any_environment(environment: dict[str, str]) -> None:
    assert isinstance(find_toolkits(environment, roots=()), tuple)
