"""The vendor's tools from the command line: JSON, text and exit codes, as others rely on them."""

import json
import os
import sys
from pathlib import Path

import pytest
from tiny import tiny_llama

from pytest_cannlm.cli.app import run
from pytest_cannlm.settings import OPTIONS
from pytest_cannlm.testing import fake_ddk, fake_mobile_station
from pytest_cannlm.toolkits import find

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the vendor's tools are for Linux, their doubles for POSIX")


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """``cli(*arguments)`` -> (exit code, JSON document or text, standard error), on a machine without toolkits."""
    for name in (*(option.env for option in OPTIONS), "CANNLM_DDK", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "default_roots", lambda environment: (tmp_path,))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in arguments else out, err

    return call


def build(cli, *arguments):
    return cli("build", tiny_llama(), "--context", 64, *arguments, "--json")


@pytest.mark.parametrize("converter", ["omg", "atc"])
def test_a_package_by_the_vendor_s_converter(cli, tmp_path, converter):
    kit = (fake_ddk if converter == "omg" else fake_mobile_station)(tmp_path / "kits")
    code, answer, progress = build(
        cli, "--converter", converter, "--toolkit", kit, "--scheme", "fp16", "--out", tmp_path / "out"
    )
    assert code == 0
    assert [step["step"] for step in answer["steps"]] == ["quantize", "export", "convert", "assemble"]
    assert f"{converter} tiny_llama_fp16.omc: ended with status 0" in progress
    assert cli("lint", tmp_path / "out", "--json")[0] == 0
    manifest = json.loads(Path(answer["manifest"]).read_text("utf-8"))
    assert manifest["build"]["cann"] == ("6.1.1.0" if converter == "omg" else "9.0.0")
    assert (tmp_path / "out" / "convert.log").is_file()


def test_the_version_is_the_toolkit_s_unless_one_is_asked_for(cli, tmp_path):
    kit = fake_ddk(tmp_path, version="6.0.1.0")
    arguments = ("--converter", "omg", "--toolkit", kit, "--scheme", "fp16")
    code, answer, _ = build(cli, *arguments)
    assert code == 0
    assert cli("check", Path(answer["package"]), "--chip", "KirinX90", "--cann", "6.0.1.0", "--json")[0] == 0
    code, answer, _ = build(cli, *arguments, "--cann", "6.1.1.0")
    assert (code, answer["error"]) == (3, "TOOLKIT_VERSION")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--converter", "omg"], 3, "CANNLM_DDK"),
        (["--converter", "omg", "--scheme", "fp16", "--cann", "6.1.1.0"], 3, "TOOLKIT_MISSING"),
        (["--converter", "atc", "--scheme", "fp16"], 3, "set_env.sh"),
        (["--converter", "omg", "--toolkit", "DDK-tools-next-6.1.1.0"], 2, "cannlm dopt"),
        (["--converter", "omg", "--toolkit", "DDK-tools-next-6.1.1.0", "--quant-params", "no"], 2, "quant_params_file"),
        (["--toolkit", "DDK-tools-next-6.1.1.0"], 2, "toolkit"),
    ],
)
def test_what_cannot_be_built_is_told_before_anything_is(cli, tmp_path, arguments, code, named):
    if "--toolkit" in arguments:
        fake_ddk(tmp_path)
    found, answer, _ = build(cli, *arguments)
    assert found == code
    assert named in json.dumps(answer)
    assert not (tmp_path / "cache" / "builds").exists()


def test_a_failed_conversion_is_a_judgement_with_its_reason(cli, tmp_path):
    kit = fake_ddk(tmp_path, faults=["runs-on-cpu"])
    code, answer, _ = build(cli, "--converter", "omg", "--toolkit", kit, "--scheme", "fp16")
    assert code == 1
    assert answer["error"] == "CONVERSION_FAILED"
    assert "runs on the CPU" in answer["message"]
    assert any("partition type NPU:0, CPU:1" in note for note in answer["notes"])
    code, text, _ = cli("explain", answer["file"])
    assert "runs on the CPU" in text


def test_dopt_and_then_omg(cli, tmp_path):
    kit = fake_ddk(tmp_path)
    code, answer, progress = cli(
        "dopt", tiny_llama(), "--out", "q", "--toolkit", kit, "--python", sys.executable, "--group-size", 64, "--json"
    )
    assert code == 0
    assert set(answer) == {"quant_params", "group_size", "bytes", "doubts"}
    assert (answer["group_size"], answer["doubts"]) == (64, [])
    assert "dopt stage3: ended with status 0" in progress
    code, answer, _ = build(cli, "--converter", "omg", "--toolkit", kit, "--quant-params", answer["quant_params"])
    assert code == 0
    assert cli("lint", answer["package"], "--json")[0] == 0


def test_dopt_takes_a_folder(cli, tmp_path):
    code, answer, _ = cli("dopt", tmp_path / "model.gguf", "--out", "q", "--json")
    assert (code, answer["error"]) == (2, "BadInputError")


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--group-size", 7, "group_size"), ("--group-size", -5, "group_size"), ("--calibration", "no.json", "no.json")],
)
def test_dopt_refuses_what_would_fail_after_its_stages(cli, tmp_path, option, value, named):
    kit = fake_ddk(tmp_path)
    code, answer, _ = cli("dopt", tiny_llama(), "--out", "q", "--toolkit", kit, option, value, "--json")
    assert code == 2
    assert named in json.dumps(answer)
    assert not (tmp_path / "q").exists()
