"""Copies that claim something else or are damaged: nothing reaches the original, and large files are not copied."""

import json
import os

import pytest
from packages import write_manifest, write_package

from pytest_cannlm.build import PackageFolder, find_package, locate_package, relabel, stand_in
from pytest_cannlm.build.package import verify
from pytest_cannlm.build.weights import WEIGHT_FILE
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.container.kirin import read_simulated
from pytest_cannlm.errors import PackageError, UsageError

MIB = 2**20


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_relabelled_copy_differs_only_in_what_it_claims(tiny_packages, tmp_path):
    package = tiny_packages()
    copy = relabel(package, tmp_path / "copy", cann="6.0.1.0", chip="Kirin9020")
    made = read_simulated(copy.model)
    assert (made.chip, made.build_version) == ("Kirin9020", "6.0.1.0")
    assert copy.data["build"]["cann"] == "6.0.1.0"
    verify(copy)
    original = read_simulated(package.model)
    assert (original.chip, original.build_version) == ("KirinX90", "6.1.1.0")
    assert made.runtime_graph == original.runtime_graph
    before, after = contents(package.package), contents(copy.package)
    assert [str(name) for name in before if before[name] != after[name]] == [package.model.name]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_never_reaches_the_original(tiny_packages, tmp_path, damage):
    package = tiny_packages()
    before, manifest = contents(package.package), package.manifest.read_text()
    copy = relabel(package, tmp_path / "copy", damage=damage)
    assert contents(package.package) == before
    assert package.manifest.read_text() == manifest
    assert (contents(copy.package) != before) == (damage != "stale-manifest")
    assert (json.loads(copy.manifest.read_text()) != package.data) == (damage == "stale-manifest")


def test_a_longer_version_changes_the_copys_size_in_its_manifest_too(tiny_packages, tmp_path):
    copy = relabel(tiny_packages(), tmp_path / "copy", cann="16.10.11.120")
    verify(copy)
    assert copy.data["files"] != tiny_packages().data["files"]


def test_how_to_generate_may_be_changed_and_nothing_else(tiny_packages, tmp_path):
    copy = relabel(tiny_packages(), tmp_path / "copy")
    copy.package.joinpath("context.json").write_text("{}")
    verify(copy)
    copy.package.joinpath("tokenizer.json").write_text("{}")
    with pytest.raises(PackageError, match=r"tokenizer\.json"):
        verify(copy)


def test_unknown_damage_is_refused(tiny_packages, tmp_path):
    with pytest.raises(UsageError, match="truncate"):
        relabel(tiny_packages(), tmp_path / "copy", damage="melt")


@pytest.fixture
def large(tmp_path):
    """A package whose weights claim 5 GiB, of which nothing is on disk, and whose model is large too."""
    folder = write_package(tmp_path / "large" / "package")
    os.truncate(folder / WEIGHT_FILE, 5 * 2**30)
    os.truncate(folder / "tiny.omc", 64 * MIB)
    return PackageFolder(folder, write_manifest(folder.parent / "manifest.json"), {})


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "trailing"])
def test_no_large_file_is_copied(large, tmp_path, damage):
    copy = relabel(large, tmp_path / "copy", damage=damage)
    for file in copy.package.iterdir():
        is_link = file.stat().st_ino == (large.package / file.name).stat().st_ino
        assert is_link or _on_disk(file) <= MIB, f"{file.name} was copied"


def _on_disk(file):
    return getattr(file.stat(), "st_blocks", 0) * 512


def beginnings(folder):
    """Size and first bytes of every file."""

    def beginning(path):
        with path.open("rb") as file:
            return path.stat().st_size, file.read(64)

    return {path.name: beginning(path) for path in folder.iterdir()}


def test_a_stand_in_is_nobody_else_s_and_takes_no_space(large, tmp_path):
    before = beginnings(large.package)
    copy = stand_in(large, tmp_path / "copy")
    assert beginnings(copy.package) == before
    for file in copy.package.iterdir():
        assert _on_disk(file) <= MIB
        os.truncate(file, 0)
    copy.manifest.write_text("")
    assert beginnings(large.package) == before
    assert large.manifest.stat().st_size > 0


def test_a_stand_in_of_a_small_package_is_the_same(tiny_packages, tmp_path):
    copy = stand_in(tiny_packages(), tmp_path / "copy")
    assert contents(copy.package) == contents(tiny_packages().package)
    verify(copy)


def test_a_broken_package_can_be_given_away_too(tmp_path):
    folder = write_package(tmp_path / "p" / "package")
    (folder / "loop").symlink_to("loop")
    (folder / "executor.json").write_text("[")
    (folder.parent / "manifest.json").write_text("[")
    copy = stand_in(find_package(folder), tmp_path / "copy")
    assert (copy.package / "executor.json").read_text() == copy.manifest.read_text() == "["


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 200_000, '{"a": 1, "a": 2}', "{}".encode("utf-16")])
@pytest.mark.parametrize("name", ["package/executor.json", "manifest.json"])
def test_a_file_that_says_nothing_usable_is_damage_and_no_traceback(tmp_path, name, text):
    folder = write_package(tmp_path / "p" / "package")
    write_manifest(folder.parent / "manifest.json")
    (folder.parent / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    found = find_package(folder)
    assert found.package == folder
    with pytest.raises(PackageError) as caught:
        _ = (locate_package(folder).data, found.context)
    assert caught.value.code == "PACKAGE_DAMAGED"
    with pytest.raises(PackageError):
        relabel(found, tmp_path / "copy", cann="6.0.1.0")


@pytest.mark.parametrize("said", ["1e999", "256.5", '"256"', "true", "null"])
def test_a_context_that_is_no_whole_number_is_damage(tmp_path, said):
    folder = write_package(tmp_path / "p")
    executor = json.loads((folder / "executor.json").read_text())
    executor["llm_config"]["kv_cache_max_len"] = "HERE"
    (folder / "executor.json").write_text(json.dumps(executor).replace('"HERE"', said))
    with pytest.raises(PackageError, match="kv_cache_max_len"):
        _ = locate_package(folder).context


@pytest.mark.parametrize("key", ["model_path", "weight_path"])
def test_a_package_that_leads_out_of_itself_is_not_followed(tmp_path, key):
    folder = write_package(tmp_path / "p")
    executor = json.loads((folder / "executor.json").read_text())
    executor["autoregressive"][key] = "../other"
    (folder / "executor.json").write_text(json.dumps(executor))
    wrong = {"cann": "6.0.1.0"} if key == "model_path" else {"damage": "truncate"}
    with pytest.raises(PackageError, match="outside the package"):
        relabel(locate_package(folder), tmp_path / "copy", **wrong)


@pytest.mark.parametrize("build", ["null", "[]", "3"])
def test_a_manifest_of_odd_parts_is_relabelled_without_them(tmp_path, build):
    folder = write_package(tmp_path / "p" / "package")
    (folder.parent / "manifest.json").write_text(f'{{"build": {build}, "files": {build}}}')
    copy = relabel(find_package(folder), tmp_path / "copy", cann="6.0.1.0")
    assert copy.data == {"build": json.loads(build), "files": json.loads(build)}


def test_a_destroyed_header_keeps_the_files_size(large, tmp_path):
    copy = relabel(large, tmp_path / "copy", damage="header")
    assert copy.model.stat().st_size == large.model.stat().st_size
    assert copy.model.read_bytes()[:17] == bytes(16) + large.model.read_bytes()[16:17]


def test_folders_inside_and_links_are_copied_as_what_they_hold(tmp_path):
    folder = write_package(tmp_path / "p")
    (folder / "w").mkdir()
    for name in (WEIGHT_FILE, "tiny_64_2048.embedding_weights", "tiny_64_2048.embedding_dequant_scale"):
        (folder / name).rename(folder / "w" / name)
    (folder / "blob").write_bytes((folder / "tiny.omc").read_bytes())
    (folder / "tiny.omc").unlink()
    (folder / "tiny.omc").symlink_to("blob")
    executor = json.loads((folder / "executor.json").read_text())
    executor["autoregressive"]["weight_path"] = "w"
    (folder / "executor.json").write_text(json.dumps(executor))
    source = PackageFolder(folder, None, {})
    before = contents(folder)
    relabelled = relabel(source, tmp_path / "a", cann="6.0.1.0")
    assert read_simulated(relabelled.model).build_version == "6.0.1.0"
    cut = relabel(source, tmp_path / "b", damage="truncate")
    assert cut.weights.parent.name == "w"
    assert cut.weights.stat().st_size == source.weights.stat().st_size // 2
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("damage", "needed"), [("truncate", WEIGHT_FILE), ("stale-manifest", "a manifest.json beside the package")]
)
def test_what_is_not_there_cannot_be_damaged(tmp_path, damage, needed):
    folder = write_package(tmp_path / "p")
    (folder / WEIGHT_FILE).unlink()
    with pytest.raises(UsageError, match=needed):
        relabel(PackageFolder(folder, None, {}), tmp_path / "copy", damage=damage)


def test_a_manifest_that_says_little_is_made_to_say_no_more(tmp_path):
    folder = write_package(tmp_path / "p" / "package")
    for number, said in enumerate(({}, {"build": {"cann": "6.1.1.0"}}, {"files": {}})):
        (folder.parent / "manifest.json").write_text(json.dumps(said))
        copy = relabel(find_package(folder), tmp_path / f"copy{number}", cann="6.0.1.0", chip="Kirin9020")
        assert copy.data == ({"build": {"cann": "6.0.1.0"}} if "build" in said else said)
        with pytest.raises(UsageError, match="sizes of files"):
            relabel(find_package(folder), tmp_path / f"stale{number}", damage="stale-manifest")


@pytest.mark.parametrize("text", ["{", "[]", '{"autoregressive": []}'])
def test_an_executor_json_that_cannot_be_used_is_named(tmp_path, text):
    folder = write_package(tmp_path / "p")
    (folder / "executor.json").write_text(text)
    with pytest.raises(PackageError, match=r"executor\.json") as caught:
        relabel(PackageFolder(folder, None, {}), tmp_path / "copy", cann="6.0.1.0")
    assert caught.value.code == "PACKAGE_DAMAGED"


def test_a_package_is_found_whole_or_broken(tmp_path):
    folder = write_package(tmp_path / "built" / "package")
    manifest = write_manifest(tmp_path / "built" / "manifest.json")
    for path in (folder, folder.parent):
        found = find_package(path)
        assert (found.package, found.manifest, found.data["simulated"]) == (folder, manifest, True)
    manifest.write_text("{")
    assert find_package(folder) == PackageFolder(folder, manifest, {})
    (folder / "executor.json").unlink()
    assert find_package(folder) == PackageFolder(folder, manifest, {})
    (folder / "tiny.omc").unlink()
    assert find_package(folder.parent) == PackageFolder(folder, manifest, {})
    manifest.unlink()
    assert find_package(folder.parent) is None


def test_checkpoints_and_files_are_no_packages(tmp_path):
    from tiny import tiny_llama

    (tmp_path / "model.gguf").touch()
    for path in (tiny_llama(), tmp_path, tmp_path / "model.gguf", tmp_path / "nowhere"):
        assert find_package(path) is None
