"""``cannlm check``: what it is asked, what it answers, and with which exit code; on Kirin and on Ascend files."""

import json

import pytest
from gating import write_ascend, write_real
from packages import write_manifest, write_package
from samples import samples_dir

from pytest_cannlm.cli.app import run

ATTRS = {"soc_version": "Ascend310B4", "atc_version": "7.6.0.1.220", "opp_version": "7.6.0.1.220"}
SERVER = ["--chip", "Ascend310B4", "--cann", "8.0.0"]
SAMPLE = samples_dir() and samples_dir() / "om" / "synth" / "synth_ascend_v2.om"


@pytest.fixture
def check(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder; answers with the exit code and the document."""
    monkeypatch.chdir(tmp_path)

    def call(path, *arguments):
        code = run(["check", str(path), *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize(
    ("attrs", "arguments", "answer", "code"),
    [
        ({}, [], "load", None),
        ({}, ["--cann", "7.6.0.1.220"], "load", None),
        ({}, ["--cann", "8.0.RC3"], "refuse", "CANN_VERSION_MISMATCH"),
        ({"atc_version": "7.5.0.1.129"}, [], "refuse", "CANN_VERSION_MISMATCH"),
        ({"atc_version": "7.5.0.1.129"}, ["--policy", "window"], "load", None),
        ({"atc_version": "7.6.0.9.999"}, [], "unknown", "CANN_VERSION_UNKNOWN"),
        ({"soc_version": "Ascend310B1"}, [], "refuse", "CHIP_MISMATCH"),
        ({"soc_version": "Ascend310B1"}, ["--same-architecture", "Ascend310B1,Ascend310B4"], "load", None),
        ({"soc_version": ""}, [], "unknown", "CHIP_UNKNOWN"),
        ({}, ["--chip", "KirinX90", "--cann", "6.1.1.0"], "refuse", "CHIP_MISMATCH"),
    ],
)
def test_ascend_model(check, tmp_path, attrs, arguments, answer, code):
    path = write_ascend(tmp_path / "m.om", **{**ATTRS, **attrs})
    found, document = check(path, *SERVER, *arguments)
    assert (document["answer"], document["code"]) == (answer, code)
    assert found == {"load": 0, "refuse": 1, "unknown": 4}[answer]
    assert 0 < document["bytes_read"] <= 64 * 1024


@pytest.mark.parametrize(("opp", "answer"), [([], "unknown"), (["7.6.0.1.220"], "load"), (["7.6.0.1.221"], "refuse")])
def test_dynamic_ascend_model_is_held_against_the_operator_package(check, tmp_path, opp, answer):
    path = write_ascend(tmp_path / "m.om", dynamic=True, **ATTRS)
    _, document = check(path, *SERVER, *(["--opp-version", *opp] if opp else []))
    assert document["answer"] == answer


@pytest.mark.parametrize(("cpu", "answer"), [(None, "unknown"), ("aarch64", "load"), ("x86_64", "refuse")])
def test_ascend_model_with_libraries_is_held_against_the_host(check, tmp_path, cpu, answer):
    path = write_ascend(tmp_path / "m.om", need_check=1, host_env_os="linux", host_env_cpu="aarch64", **ATTRS)
    _, document = check(path, *SERVER, *(["--host-os", "linux", "--host-cpu", cpu] if cpu else []))
    assert document["answer"] == answer


@pytest.mark.skipif(not SAMPLE, reason="no sample files here")
def test_ascend_sample(check):
    assert check(SAMPLE, *SERVER)[0] == 0
    assert check(SAMPLE, *SERVER, "--chip", "Ascend910B4")[0] == 1


@pytest.mark.parametrize("given", ["Ascend310B4", "Ascend310B4,", "Ascend310B4,Toaster", "KirinX90,KirinX90A", ""])
def test_a_group_of_chips_that_is_none_is_wrong_use(check, tmp_path, given):
    path = write_ascend(tmp_path / "m.om", **ATTRS)
    code, document = check(path, *SERVER, "--same-architecture", given)
    assert (code, document["error"], document["field"]) == (2, "UsageError", "--same-architecture")


@pytest.mark.parametrize("chip", ["Ascend 310B4", "ascend310b4", "Ascend910_9391"])
def test_ascend_chips_are_known_by_their_form(check, tmp_path, chip):
    path = write_ascend(tmp_path / "m.om", **{**ATTRS, "soc_version": chip.replace(" ", "")})
    assert check(path, "--chip", chip, "--cann", "8.0.0")[0] == 0


@pytest.mark.parametrize("chip", ["Ascend", "Ascend\uff1310B4", "Ascend310B4;", "AscendX", "\u041airinX90"])
def test_what_is_no_ascend_chip_is_wrong_use(check, tmp_path, chip):
    assert check(tmp_path, "--chip", chip, "--cann", "8.0.0")[0] == 2


def test_package_without_its_executor_is_refused_like_any_broken_one(check, tmp_path):
    package = write_package(tmp_path / "package")
    write_manifest(tmp_path / "manifest.json")
    (package / "executor.json").unlink()
    for path in (package, tmp_path):
        code, document = check(path, "--chip", "KirinX90", "--cann", "6.1.1.0")
        assert (code, document["answer"], document["code"]) == (1, "refuse", "PACKAGE_INCOMPLETE")


def test_manifest_that_is_broken_is_named(check, tmp_path):
    package = write_package(tmp_path / "package")
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    code, document = check(package, "--chip", "KirinX90", "--cann", "6.1.1.0")
    assert (code, document["code"]) == (1, "PACKAGE_DAMAGED")
    assert "manifest.json" in document["reasons"][0]


def test_model_named_in_the_package_decides_what_the_target_is(check, tmp_path):
    package = write_package(tmp_path / "package")
    write_real(package / "another.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    assert check(package, "--chip", "KirinX90", "--cann", "6.1.1.0")[0] == 0
    assert check(package / "another.omc", "--chip", "KirinX90", "--cann", "6.1.1.0")[0] == 0


def test_setting_for_unknown_versions_holds_here_too(check, tmp_path, monkeypatch):
    path = write_real(tmp_path / "m.omc", soc_version="KirinX90")
    arguments = [path, "--chip", "KirinX90", "--cann", "6.1.1.0"]
    assert check(*arguments)[0] == 4
    monkeypatch.setenv("CANNLM_CANN_UNKNOWN", "load")
    code, document = check(*arguments)
    assert (code, document["answer"], document["code"]) == (0, "load", "CANN_VERSION_UNKNOWN")
    assert "loaded unchecked" in document["reasons"][0]
