"""A package folder in all states that copying, hand editing and bad luck produce."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gating import assert_refused, outcome
from packages import executor, write_json, write_manifest, write_package

from pytest_cannlm.build.folder import locate_package
from pytest_cannlm.compat.gate import READ_LIMIT, Target, decide
from pytest_cannlm.compat.package import EXECUTOR_LIMIT, MANIFEST_LIMIT
from pytest_cannlm.compat.places import folder_and_manifest, in_package

SIM = Target(chip="KirinX90", cann="6.1.1.0", simulated=True)
EMBEDDINGS = ("tiny_64_2048.embedding_weights", "tiny_64_2048.embedding_dequant_scale")
WEIGHTS = ("SubGraph_0.weight", *EMBEDDINGS)


def edit(package: Path, section: str, **changes: Any) -> None:
    data = executor()
    data[section].update(changes)
    write_json(package / "executor.json", data)


# Paths


@pytest.mark.parametrize("weight_path", ["weights", "weights/", "./weights/", "a/b/../../weights"])
def test_weights_in_a_folder_of_their_own(tmp_path: Path, weight_path: str) -> None:
    package = write_package(tmp_path / "p")
    (package / "weights").mkdir()
    (package / "a" / "b").mkdir(parents=True)
    for name in WEIGHTS:
        (package / name).rename(package / "weights" / name)
    edit(package, "autoregressive", weight_path=weight_path)
    assert decide(package, SIM).answer == "load"
    (package / "weights" / EMBEDDINGS[0]).unlink()
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", f"missing: weights/{EMBEDDINGS[0]}")


def test_names_may_have_folders_before_them(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "model").mkdir()
    (package / "tiny.omc").rename(package / "model" / "tiny.omc")
    edit(package, "autoregressive", model_path="model/tiny.omc")
    assert decide(package, SIM).answer == "load"
    edit(package, "autoregressive", model_path="model\\tiny.omc")
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", "a backslash", "model\\tiny.omc")


@pytest.mark.parametrize("where", ["folder", "model", "through"])
def test_links_out_of_the_package_are_not_followed(tmp_path: Path, where: str) -> None:
    package = write_package(tmp_path / "p")
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in WEIGHTS:
        shutil.copyfile(package / name, outside / name)
    if where == "model":
        (package / "tiny.omc").rename(outside / "tiny.omc")
        (package / "tiny.omc").symlink_to(outside / "tiny.omc")
    else:
        (package / "weights").symlink_to(outside)
        edit(package, "autoregressive", weight_path="weights" if where == "folder" else "weights/../weights")
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", "outside its folder")


def test_links_in_a_circle_are_missing_files(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "tokenizer.json").unlink()
    (package / "tokenizer.json").symlink_to("tokenizer.json")
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", "missing: tokenizer.json")


ON_DEVICE = "/data/storage/el2/base/haps/entry/files/qwen2"


def in_app(package: Path, **changes: str) -> dict[str, Any]:
    """Name model, weights and tokenizer as an app must."""
    data = executor()
    data["autoregressive"] = {"model_path": f"{ON_DEVICE}/tiny.omc", "weight_path": f"{ON_DEVICE}/"}
    data["tokenizer"]["path"] = f"{ON_DEVICE}/tokenizer.json"
    for field, value in changes.items():
        data["tokenizer" if field == "path" else "autoregressive"][field] = value
    write_json(package / "executor.json", data)
    return data


@pytest.mark.parametrize("name", ["tiny.omc", "tokenizer.json", *WEIGHTS])
def test_absolute_paths_of_an_app_are_places_in_the_package(tmp_path: Path, name: str) -> None:
    package = write_package(tmp_path / "p")
    in_app(package)
    assert decide(package, SIM).answer == "load"
    (package / name).unlink()
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", f"missing: {name}")


def test_absolute_paths_of_an_app_may_lead_below_its_folder(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    (package / "weights").mkdir()
    for name in WEIGHTS:
        (package / name).rename(package / "weights" / name)
    in_app(package, weight_path=f"{ON_DEVICE}//./weights")
    assert decide(package, SIM).answer == "load"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("path", "tokenizer.json", "autoregressive.weight_path"),
        ("path", f"{ON_DEVICE}2/tokenizer.json", "autoregressive.weight_path"),
        ("path", f"{ON_DEVICE}/../tokenizer.json", "autoregressive.weight_path"),
        ("weight_path", "./", "autoregressive.model_path"),
        ("model_path", "tiny.omc", "autoregressive.weight_path"),
        ("model_path", "/tiny.omc", "autoregressive.weight_path"),
    ],
)
def test_absolute_paths_without_one_folder_have_a_code_of_their_own(
    tmp_path: Path, field: str, value: str, said: str
) -> None:
    package = write_package(tmp_path / "p")
    data = in_app(package, **{field: value})
    section, _, key = said.partition(".")
    written = data[section][key]
    assert_refused(decide(package, SIM), "PACKAGE_PATH_ABSOLUTE", written, said, "Name all three by")


def test_embedding_file_with_an_absolute_path_is_refused(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    edit(package, "llm_config", embedding_weights=str(package / EMBEDDINGS[0]))
    decision = decide(package, SIM)
    assert_refused(decision, "PACKAGE_PATH_ABSOLUTE", "llm_config.embedding_weights", "Leave the path out")


@pytest.mark.parametrize(
    ("executor_json", "name", "expected"),
    [
        ({}, "/data/x", "/data/x"),
        ({"autoregressive": 1, "tokenizer": []}, "x", "x"),
        ({"autoregressive": {"model_path": "/m", "weight_path": "/"}, "tokenizer": {"path": "/t"}}, "/t", "/t"),
        ({"autoregressive": {"model_path": "/a/m", "weight_path": "/a"}, "tokenizer": {"path": "/a/t"}}, "/a", "."),
        (
            {"autoregressive": {"model_path": "/a/m", "weight_path": "/a"}, "tokenizer": {"path": "/a/t"}},
            "/b/t",
            "/b/t",
        ),
        ({"autoregressive": {"model_path": 3, "weight_path": "/a"}, "tokenizer": {"path": "/a/t"}}, "/a/t", "/a/t"),
    ],
)
def test_names_lose_the_folder_on_the_device(executor_json: dict[str, Any], name: str, expected: str) -> None:
    assert in_package(executor_json, name) == expected


# Files that hold nothing


@pytest.mark.parametrize("name", ["context.json", "tokenizer.json", *EMBEDDINGS])
@pytest.mark.parametrize(
    ("content", "said"), [(b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\noid x\n", "a git-lfs pointer")]
)
def test_empty_files_and_pointers_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    package = write_package(tmp_path / "p")
    (package / name).write_bytes(content)
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", f"{name} is {said}")


# Case of names


@pytest.mark.parametrize("name", ["tiny.omc", "tokenizer.json", "context.json", *WEIGHTS])
def test_name_in_another_case_is_missing_and_told(tmp_path: Path, name: str) -> None:
    package = write_package(tmp_path / "p")
    (package / name).rename(package / name.swapcase())
    decision = decide(package, SIM)
    said = f"missing: {name} (there is {name.swapcase()}, which is another name on a device)"
    assert_refused(decision, "PACKAGE_INCOMPLETE", said)


def test_name_in_another_case_is_refused_where_this_machine_would_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_package(tmp_path / "p")
    (package / "weights").mkdir()
    for name in WEIGHTS:
        (package / name).rename(package / "weights" / name)
    edit(package, "autoregressive", weight_path="Weights")
    (package / "Weights").symlink_to("weights")  # what a file system that ignores case makes of it
    assert decide(package, SIM).answer == "load"
    real = os.scandir

    class Listing:
        def __init__(self, path: Any) -> None:
            self.entries = [entry for entry in real(path) if entry.name != "Weights"]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Listing)
    decision = decide(package, SIM)
    assert_refused(decision, "PACKAGE_INCOMPLETE", f"Weights/{EMBEDDINGS[0]} (there is weights, which is another name")


def test_folder_that_cannot_be_listed_is_judged_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_package(tmp_path / "p")

    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert decide(package, SIM).answer == "load"


def test_folder_with_very_many_names_is_judged_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_cannlm.compat.places._MOST_NAMES", 3)
    package = write_package(tmp_path / "p")
    assert decide(package, SIM).answer == "load"
    (package / "tiny.omc").rename(package / "Tiny.OMC")
    assert "missing: tiny.omc;" in decide(package, SIM).explain().replace(" (/", ";")


# Files that are none


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["executor.json", "tiny.omc", "context.json", "tokenizer.json", *WEIGHTS])
def test_pipes_are_missing_files_and_are_not_waited_for(tmp_path: Path, name: str) -> None:
    package = write_package(tmp_path / "p")
    (package / name).unlink()
    os.mkfifo(package / name)
    assert_refused(decide(package, SIM), "PACKAGE_INCOMPLETE", f"missing: {name}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_in_place_of_model_and_manifest(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert_refused(decide(pipe, SIM), "OM_IO", "a device or pipe")
    assert_refused(decide(write_package(tmp_path / "p"), SIM, manifest=pipe), "PACKAGE_INCOMPLETE", "missing: pipe")


# executor.json


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_executor_may_have_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    package = write_package(tmp_path / "p")
    (package / "executor.json").write_text(json.dumps(executor()), encoding=encoding)
    assert decide(package, SIM).answer == "load"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["executor.json", "manifest.json"])
def test_other_encodings_are_named(tmp_path: Path, name: str, encoding: str) -> None:
    package, manifest = write_package(tmp_path / "p"), write_manifest(tmp_path / "manifest.json")
    path = manifest if name == "manifest.json" else package / name
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    decision = decide(package, SIM, manifest=manifest)
    assert_refused(decision, "PACKAGE_DAMAGED", f"{name} cannot be used: it is {encoding[:6].upper()}", "must be UTF-8")


@pytest.mark.parametrize("where", ["top", "llm_config"])
def test_a_name_that_stands_twice_has_no_value(tmp_path: Path, where: str) -> None:
    package = write_package(tmp_path / "p")
    text = json.dumps(executor())
    if where == "top":
        text, name = text[:-1] + ', "version": 1}', "version"
    else:
        text, name = text.replace('"vocab_size": 32', '"vocab_size": 64, "vocab_size": 32'), "vocab_size"
    (package / "executor.json").write_text(text, encoding="utf-8")
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", f"executor.json cannot be used: it has '{name}' twice")


@pytest.mark.parametrize("size", [100, 2 * MANIFEST_LIMIT])
def test_a_name_that_stands_twice_in_the_manifest(tmp_path: Path, size: int) -> None:
    manifest = write_manifest(tmp_path / "manifest.json")
    text = manifest.read_text(encoding="utf-8")[:-1]
    rest = json.dumps("x" * size)
    manifest.write_text(f'{text}, "build": {{"cann": "6.0.1.0"}}, "rest": {rest}}}', encoding="utf-8")
    decision = decide(write_package(tmp_path / "p"), SIM, manifest=manifest)
    assert_refused(decision, "PACKAGE_DAMAGED", "manifest.json cannot be used: it has 'build' twice")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number(tmp_path: Path, value: str) -> None:
    package = write_package(tmp_path / "p")
    text = json.dumps(executor()).replace('"version": 1', f'"version": {value}')
    (package / "executor.json").write_text(text, encoding="utf-8")
    assert_refused(decide(package, SIM), "PACKAGE_DAMAGED", f"{value} is no number of JSON")


@pytest.mark.parametrize("extra", [0, 1])
def test_executor_of_the_largest_size(tmp_path: Path, extra: int) -> None:
    package = write_package(tmp_path / "p")
    path = package / "executor.json"
    path.write_bytes(path.read_bytes().ljust(EXECUTOR_LIMIT + extra))
    decision = decide(package, SIM)
    if extra:
        said = f"its {EXECUTOR_LIMIT + 1} bytes are larger than {EXECUTOR_LIMIT} bytes, more than any engine needs"
        assert_refused(decision, "PACKAGE_DAMAGED", said)
        assert decision.bytes_read == EXECUTOR_LIMIT + 1
    else:
        assert decision.answer == "load"


# The manifest


def test_largest_executor_and_huge_manifest_leave_enough_for_the_model(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    path = package / "executor.json"
    path.write_bytes(path.read_bytes().ljust(EXECUTOR_LIMIT))
    manifest = write_manifest(tmp_path / "manifest.json", rest=["x" * 1000] * 5000)
    decision = decide(package, SIM, manifest=manifest)
    assert decision.answer == "load"
    assert outcome(decision, "manifest") == "ok"
    assert EXECUTOR_LIMIT + MANIFEST_LIMIT < decision.bytes_read <= READ_LIMIT < manifest.stat().st_size


# Damage on the way


@pytest.mark.parametrize("name", ["tiny.omc", *WEIGHTS])
def test_file_that_was_cut_on_a_full_disk(tmp_path: Path, name: str) -> None:
    package = write_package(tmp_path / "p")
    size = (package / name).stat().st_size
    os.truncate(package / name, size * 6 // 10)
    code = "OM_TRUNCATED" if name == "tiny.omc" else "PACKAGE_DAMAGED"
    assert_refused(decide(package, SIM), code, name)


def test_longer_old_file_of_the_same_name(tmp_path: Path) -> None:
    package = write_package(tmp_path / "p")
    with (package / "tiny.omc").open("ab") as file:
        file.write(b"what was here before")
    assert_refused(decide(package, SIM), "OM_LENGTH_MISMATCH", "tiny.omc", "20")


# Where a package is


def test_package_is_found_from_the_folder_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, manifest = write_package(tmp_path / "package"), write_manifest(tmp_path / "manifest.json")
    assert folder_and_manifest(tmp_path) == folder_and_manifest(package) == (package, manifest)
    monkeypatch.chdir(package)
    assert folder_and_manifest(Path()) == (Path(), manifest)
    (package / "executor.json").unlink()
    assert folder_and_manifest(tmp_path) == (package, manifest)
    manifest.unlink()
    assert folder_and_manifest(tmp_path) == (package, None)


@pytest.mark.parametrize("outside", [True, False])
def test_manifest_that_is_a_link_out_is_none(tmp_path: Path, outside: bool) -> None:
    home = tmp_path / "home"
    package = write_package(home / "package")
    real = write_manifest((tmp_path if outside else home) / "real.json")
    (home / "manifest.json").symlink_to(real)
    assert folder_and_manifest(home) == (package, None if outside else home / "manifest.json")
    assert locate_package(home).manifest == folder_and_manifest(home)[1]


def test_manifest_beside_a_folder_of_another_name_is_not_its_own(tmp_path: Path) -> None:
    package = write_package(tmp_path / "elsewhere")
    write_manifest(tmp_path / "manifest.json")
    assert folder_and_manifest(package) == (package, None)
    file = tmp_path / "package"
    file.write_bytes(b"")
    assert folder_and_manifest(file) == (file, None)
    assert folder_and_manifest(tmp_path / "none") == (tmp_path / "none", None)


@pytest.mark.parametrize("simulated", [True, False])
def test_target_that_is_whatever_the_package_is_for(tmp_path: Path, simulated: bool) -> None:
    target = Target(chip="KirinX90", cann="6.1.1.0", simulated=None)
    package = write_package(tmp_path / "p")
    if not simulated:
        model = package / "tiny.omc"
        model.write_bytes(model.read_bytes().replace(b"CANNLM-SIMULATED", bytes(16)))
    decision = decide(package, target)
    assert decision.answer == "load"
    engine = next(check for check in decision.checks if check.name == "engine")
    assert ("simulated" in engine.expected_from) is simulated
