"""The user's list of version pairs: read, refused with the place, and used."""

import json
from pathlib import Path

import pytest

from pytest_cannlm.compat.pairs import MAX_BYTES, read_pairs
from pytest_cannlm.compat.versions import Pair
from pytest_cannlm.errors import UsageError

GOOD = {"versions": ["6.1.1.0", "108.631.120.010"], "source": "the bench"}
TOML = """
[[pairs]]
versions = ["6.1.1.0", "hiaiversion 108.631.120.010"]
source = "the bench"
"""


def written(folder: Path, content: object, name: str = "pairs.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_without_a_file_there_are_no_pairs() -> None:
    assert read_pairs(None) == ()


def test_json_and_toml_have_one_shape(tmp_path: Path) -> None:
    path = written(tmp_path, {"pairs": [GOOD]})
    assert read_pairs(path) == (Pair("6.1.1.0", "108.631.120.010", "pairs.json: the bench"),)
    assert [pair.source for pair in read_pairs(written(tmp_path, TOML, "p.toml"))] == ["p.toml: the bench"]
    assert read_pairs(written(tmp_path, {"pairs": []}, "empty.json")) == ()
    assert read_pairs(written(tmp_path, "\ufeff" + json.dumps({"pairs": [GOOD]}), "bom.json"))


def test_a_toolkit_may_have_several_devices_and_a_release_several_builds(tmp_path: Path) -> None:
    pairs = [GOOD, {**GOOD, "versions": ["6.1.1.0", "108.631.120.011"]}]
    pairs += [{**GOOD, "versions": ["8.0.0", build]} for build in ("7.6.0.1.220", "7.6.0.2.220")]
    assert len(read_pairs(written(tmp_path, {"pairs": pairs}))) == 4


def test_a_file_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path, {"pairs": [GOOD]})
    first = read_pairs(path)
    path.unlink()
    assert read_pairs(path) is first


@pytest.mark.parametrize(
    ("content", "field", "found"),
    [
        ("{", None, "line 1"),
        ("[" * 100_000, None, ""),
        ([], None, "a list"),
        ({}, None, "nothing"),
        ({"pairs": {}}, None, "pairs"),
        ({"pairs": [], "releases": []}, None, "releases"),
        ({"pairs": ["6.1.1.0"]}, "pairs[0]", "6.1.1.0"),
        ({"pairs": [GOOD, {"versions": ["6.1.1.0", "8.0.0"]}]}, "pairs[1]", "versions"),
        ({"pairs": [{**GOOD, "sauce": ""}]}, "pairs[0]", "sauce"),
        ({"pairs": [{**GOOD, "source": " "}]}, "pairs[0].source", " "),
        ({"pairs": [{**GOOD, "source": 1}]}, "pairs[0].source", "1"),
        ({"pairs": [{**GOOD, "versions": "6.1.1.0"}]}, "pairs[0].versions", "6.1.1.0"),
        ({"pairs": [{**GOOD, "versions": ["6.1.1.0"]}]}, "pairs[0].versions", "6.1.1.0"),
        ({"pairs": [{**GOOD, "versions": ["6.1.1.0", 9]}]}, "pairs[0].versions[1]", "9"),
        ({"pairs": [{**GOOD, "versions": ["6.1.1.0", "24"]}]}, "pairs[0].versions[1]", "an API level"),
        ({"pairs": [{**GOOD, "versions": ["0.0.0", "6.1.1.0"]}]}, "pairs[0].versions[0]", "unset"),
        ({"pairs": [{**GOOD, "versions": ["6.1.1.0", "6.0.1.0"]}]}, "pairs[0].versions", "both build"),
        ({"pairs": [GOOD, {**GOOD, "versions": ["6.0.1.0", "108.631.120.010"]}]}, "pairs[1].versions", "6.0.1.0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, content: object, field: str | None, found: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        read_pairs(path)
    assert (caught.value.file, caught.value.field) == (str(path), field)
    assert found in str(caught.value.found)
    assert caught.value.expected
    assert caught.value.remedy


def test_the_line_of_a_toml_error_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2"):
        read_pairs(written(tmp_path, "x = 1\n[[pairs\n", "pairs.toml"))


def test_what_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?i)no such file"):
        read_pairs(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="more than"):
        read_pairs(written(tmp_path, " " * (MAX_BYTES + 1)))
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_pairs(binary)
