"""Every file of the samples folder reads as its expected.json says, and is rebuilt byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from samples import samples_dir

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.writer import partitions_of, write_container
from pytest_cannlm.errors import ContainerError

NOT_OURS = {"sha256", "derived_from", "change", "must_report", "container_ok"}


def _folder() -> Path | None:
    samples = samples_dir()
    return samples / "om" if samples and (samples / "om" / "expected.json").is_file() else None


def _cases(*, rebuildable: bool = False) -> list[Any]:
    folder = _folder()
    if folder is None:
        return [pytest.param("", {}, marks=pytest.mark.skip(reason="no samples folder: set CANNLM_SAMPLES"))]
    files = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["files"]
    readable = (None, "OM_MODEL_DEF_UNREADABLE")
    return [
        pytest.param(name, facts, id=name)
        for name, facts in files.items()
        if not rebuildable or facts["error"] in readable
    ]


def _path(name: str) -> Path:
    folder = _folder()
    assert folder is not None
    return folder / name


@pytest.mark.parametrize(("name", "facts"), _cases())
def test_description_has_exactly_the_expected_values(name: str, facts: dict[str, Any]) -> None:
    described = json.loads(json.dumps(describe(_path(name))))
    expected = {key: value for key, value in facts.items() if key not in NOT_OURS}
    expected |= facts.get("container_ok", {})
    assert {key: described.get(key, "absent") for key in expected} == expected
    assert "simulated" not in described
    assert not [note for note in described.get("notes", ()) if "not read further" in note]


@pytest.mark.parametrize(("name", "facts"), _cases())
def test_error_message_carries_what_it_must_report(name: str, facts: dict[str, Any]) -> None:
    if not facts["error"]:
        container = open_container(_path(name))
        assert container.attributes() is not None
        return
    with pytest.raises(ContainerError) as caught:
        open_container(_path(name)).attributes()
    assert caught.value.code == facts["error"]
    for value in facts["must_report"].values():
        assert str(value) in str(caught.value)


@pytest.mark.parametrize(("name", "facts"), _cases(rebuildable=True))
def test_sound_file_is_rebuilt_byte_for_byte(name: str, facts: dict[str, Any], tmp_path: Path) -> None:
    container = open_container(_path(name))
    copy = tmp_path / "copy.om"
    size = write_container(copy, header=container.header, partitions=partitions_of(container))
    assert copy.read_bytes() == _path(name).read_bytes()
    assert size == container.size == facts["bytes"]
