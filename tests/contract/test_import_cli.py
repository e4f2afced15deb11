"""``cannlm import`` from the command line: JSON, exit codes, and that the other commands take what it makes."""

import json
import shutil
from pathlib import Path

import pytest

from pytest_cannlm.cli.app import run
from pytest_cannlm.devices import parse_device
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.elsewhere import UNKNOWN_SCHEME, resolve
from pytest_cannlm.settings import OPTIONS


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, tiny_packages):
    """``cli(*arguments)`` -> (exit code, JSON document or text, standard error)."""
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    monkeypatch.setenv("CANNLM_CACHE", str(tiny_packages.cache))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in arguments else out, err

    return call


@pytest.fixture
def download(tiny_packages, tmp_path) -> Path:
    """A zip of a package, as a download that lost its suffix."""
    package = tiny_packages.built().package
    shutil.make_archive(str(tmp_path / "Tiny OMC"), "zip", package.parent, package.name)
    (tmp_path / "unpacked").mkdir()
    return (tmp_path / "Tiny OMC.zip").rename(tmp_path / "Tiny OMC")


def test_an_imported_package_is_one_for_every_command(cli, download, tmp_path):
    code, answer, progress = cli("import", download, "--json")
    assert code == 0
    assert set(answer) == {"package", "manifest", "good", "source", "changes", "lint"}
    assert (answer["good"], answer["source"]["name"], answer["changes"]) == (True, "Tiny OMC", {})
    assert Path(answer["package"]) == tmp_path / "Tiny-OMC" / "package"
    assert Path(answer["manifest"]).is_file()
    assert "import Tiny-OMC: done" in progress
    folder = tmp_path / "Tiny-OMC"
    assert cli("lint", folder, "--hashes", "--json")[0] == 0
    assert cli("check", folder, "--chip", "KirinX90", "--cann", "6.1.1.0", "--json")[0] == 0
    assert cli("check", folder, "--chip", "KirinX90", "--cann", "6.0.1.0", "--json")[0] == 1
    assert cli("inspect", folder, "--json")[0] == 0
    arguments = ("--prompt", "a", "--raw", "--max-new-tokens", 2, "--greedy", "--json")
    code, reply, _ = cli("run", folder, *arguments)
    assert (code, len(reply["tokens"])) == (0, 2)
    resolved = resolve(Case(device=parse_device("sim"), model=str(folder), given={}))
    assert (resolved.package.package, resolved.scheme) == (folder / "package", UNKNOWN_SCHEME)
    code, answer, _ = cli("import", download, "--json")
    assert code == 2
    assert "--out" in answer["remedy"]


def test_an_error_of_the_lint_is_exit_code_1_and_is_kept_only_if_asked(cli, download, tmp_path):
    shutil.unpack_archive(download, tmp_path / "unpacked", "zip")
    source = tmp_path / "unpacked" / "package"
    (source / "context.json").unlink()
    (source / "context.json").write_text("{}", encoding="utf-8")
    code, answer, _ = cli("import", source, "--out", "out", "--json")
    assert (code, answer["package"], answer["manifest"], answer["good"]) == (1, None, None, False)
    assert answer["lint"]["counts"]["error"] > 0
    assert not (tmp_path / "out").exists()
    code, text, _ = cli("import", source, "--out", "out")
    assert code == 1
    assert "error PKG010 context.json" in text
    assert "nothing was imported" in text
    code, text, _ = cli("import", source, "--out", "out", "--keep")
    assert code == 1
    assert text.splitlines()[-1] == str(tmp_path / "out" / "package")


def test_what_was_shared_or_changed_is_said(cli, download, tmp_path):
    shutil.unpack_archive(download, tmp_path / "unpacked", "zip")
    source = tmp_path / "unpacked" / "package"
    data = json.loads((source / "tokenizer.json").read_text("utf-8"))
    data["model"]["ignore_merges"] = False
    data["model"]["merges"] = [merge.split(" ") for merge in data["model"]["merges"]]
    (source / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    code, text, _ = cli("import", source, "--out", "out")
    assert code == 1
    assert "try --fix" in text
    code, text, _ = cli("import", source, "--out", "out", "--name", "mine", "--fix", "--link")
    assert code == 0
    assert "tokenizer.json: merges as texts" in text
    assert text.splitlines()[-1] == str(tmp_path / "out" / "package")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert manifest["model"] == {"name": "mine"}
    assert ("change them in neither place: SubGraph_0.weight" in text) == bool(manifest["source"]["linked"])


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["nowhere"], 2, "no such file"),
        (["unpacked"], 2, "SOURCE_NO_PACKAGE"),
        (["Tiny OMC", "--cann", "6.0.1.0"], 2, "SOURCE_CONTRADICTS"),
        (["Tiny OMC", "--chip", "Kirin9020"], 2, "SOURCE_CONTRADICTS"),
        (["Tiny OMC", "--set", "llm_config.hidden_sizes=1"], 2, "llm_config.hidden_size"),
    ],
)
def test_what_cannot_be_imported(cli, download, tmp_path, arguments, code, named):
    found, answer, _ = cli("import", *arguments, "--out", "out", "--json")
    assert found == code
    assert named in json.dumps(answer)
    assert not (tmp_path / "out").exists()
