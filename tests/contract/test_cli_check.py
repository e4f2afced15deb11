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


@pytest.mark.parametrize("chip", ["KirinX90A", "KirinXE90", "kirin x90 plus", "Kirin9030"])
def test_variants_of_kirin_chips_can_be_asked_about(check, tmp_path, chip):
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version=chip.replace(" ", ""))
    for target, expected in ((chip, 0), ("KirinX90", 1)):
        assert check(path, "--chip", target, "--cann", "6.1.1.0")[0] == expected


@pytest.mark.parametrize("chip", ["Kirin", "KirinX", "KrinX90A", "X90", "Kirin\u041590"])
def test_no_sibling_is_offered_for_an_unknown_chip(check, tmp_path, chip):
    code, document = check(tmp_path, "--chip", chip, "--cann", "6.1.1.0")
    assert code == 2
    assert "did you mean" not in document["message"]


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


def test_every_check_stands_in_the_document_with_package_and_target(check, tmp_path):
    package = write_package(tmp_path / "package")
    code, document = check(package, "--chip", "KirinX90", "--cann", "6.0.1.0")
    assert (code, document["package"]) == (1, str(package))
    assert document["target"]["chip"] == "KirinX90"
    assert document["target"]["cann"] == "6.0.1.0"
    (cann,) = [each for each in document["checks"] if each["name"] == "cann"]
    assert (cann["outcome"], cann["code"], cann["found"]) == ("mismatch", "CANN_VERSION_MISMATCH", "6.1.1.0")
    assert set(cann) == {
        "name", "outcome", "code", "found", "found_in", "expected", "expected_from", "rule", "remedy"
    }  # fmt: skip
    assert len(document["checks"]) > len(document["reasons"])


@pytest.fixture
def told(capsys, tmp_path):
    """What the command says to people about a package that may be spoiled first."""
    package = write_package(tmp_path / "package")

    def call(*arguments, spoil=lambda package: None):
        spoil(package)
        run(["check", str(package), "--chip", "KirinX90", "--cann", "6.1.1.0", *arguments])
        return capsys.readouterr().out

    return call


def test_people_read_short_lines(told):
    text = told("--cann", "6.0.1.0")
    assert text.startswith("refuse: CANN_VERSION_MISMATCH\n  cann mismatch (CANN_VERSION_MISMATCH): policy exact")
    assert [line.split(":")[0].strip() for line in text.splitlines()[2:]] == ["found", "expected", "remedy"]


def test_load_says_what_was_not_looked_at(told):
    assert told().splitlines()[0] == "load"
    assert "not looked at: other settings, the tokenizer, the weights (cannlm lint " in told().splitlines()[-1]
    assert "not looked at" not in told("--cann", "6.0.1.0")


def test_other_capitals_are_to_be_renamed(told):
    text = told(spoil=lambda package: (package / "tokenizer.json").rename(package / "Tokenizer.json"))
    assert "missing: tokenizer.json (there is Tokenizer.json, which is another name on a device)" in text
    assert "remedy: Rename Tokenizer.json to tokenizer.json\n" in text


def test_a_text_in_place_of_a_number_is_shown_as_one(told):
    def spoil(package):
        file = package / "executor.json"
        file.write_text(file.read_text().replace('"hidden_size": 16', '"hidden_size": "16"'))

    assert 'found: "16" (' in told(spoil=spoil)


@pytest.mark.parametrize(
    "command",
    [["check", "nosuch", "--chip", "KirinX90", "--cann", "6.1.1.0"], ["run", "nosuch", "--prompt", "x"]],
)
def test_a_path_with_nothing_at_it_is_wrong_use(capsys, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    assert "there is no such" in capsys.readouterr().err


def test_a_version_that_lacks_its_last_number_is_a_typing_error(check, tmp_path):
    package = write_package(tmp_path / "package")
    code, document = check(package, "--chip", "KirinX90", "--cann", "6.1.1")
    assert (code, document["field"]) == (2, "--cann")
    assert "Did you mean 6.1.1.0?" in document["message"]
    assert check(package, "--chip", "KirinX90", "--cann", "8.0.0")[0] == 1
    assert check(package, "--chip", "Ascend310B4", "--cann", "6.0.1")[0] == 1


def test_no_ascend_chip_is_called_simulated(check, tmp_path):
    _, document = check(write_package(tmp_path / "package"), "--chip", "Ascend310B4", "--cann", "8.0.0")
    assert "simulated Ascend" not in json.dumps(document)


@pytest.mark.parametrize(("name", "answer"), [("context.json", "load"), ("tokenizer.json", "refuse")])
def test_how_to_generate_may_be_changed_and_other_files_may_not(check, tmp_path, name, answer):
    package = write_package(tmp_path / "package")
    write_manifest(tmp_path / "manifest.json", files={name: {"bytes": 2, "sha256": "0" * 64}})
    (package / name).write_text('{"generate_options": {}}')
    assert check(tmp_path, "--chip", "KirinX90", "--cann", "6.1.1.0")[1]["answer"] == answer
