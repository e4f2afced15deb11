"""``cannlm doctor`` on toolkits: which, which version, read where, what is wrong, and whether it fits the device."""

import dataclasses
import json
from pathlib import Path

import pytest
from installations import cann, ddk

from pytest_cannlm.cli import host
from pytest_cannlm.cli.app import run
from pytest_cannlm.devices import open_device, parse_device
from pytest_cannlm.settings import OPTIONS

PAIRS = '[[pairs]]\nversions = ["6.1.1.0", "108.631.120.010"]\nsource = "the bench"\n'
VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_OPP_PATH",
    "ASCEND_AICPU_PATH",
    "CANNLM_DDK",
    "DDK_HOME",
)


@pytest.fixture
def home(monkeypatch, tmp_path):
    """The user's home folder, the only place with toolkits; PATH and variables lead nowhere."""
    for name in (*VARIABLES, *(option.env for option in OPTIONS), "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pytest_cannlm.toolkits.find.default_roots", lambda environment: (Path(environment["HOME"]),))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def doctor(capsys, home):
    def call(*arguments):
        capsys.readouterr()
        code = run(["doctor", *map(str, arguments)])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in arguments else out

    return call


@pytest.fixture
def real_device(monkeypatch):
    """A device on a cable that answers: ``real_device(cann=..., device_version=...)``."""

    def make(**facts):
        class Real:
            def __init__(self, spec):
                simulated = open_device(parse_device("sim"))
                self.info = dataclasses.replace(simulated.info, kind="hdc", name=spec.text, simulated=False, **facts)

            def close(self):
                pass

        monkeypatch.setattr(host, "open_device", Real)

    return make


def test_no_toolkit_is_no_failure_for_the_simulator(doctor):
    code, answer = doctor("--json")
    assert (code, answer["ok"], answer["toolkits"], answer["problems"]) == (0, True, [], [])
    assert answer["devices"] == [
        {"name": "sim", "chip": "KirinX90", "version": "6.1.1.0", "simulated": True, "problem": None}
    ]
    assert "CANN toolkit: none found" in doctor()[1]


def test_each_toolkit_with_version_place_and_fit(doctor, home):
    ddk(home, name="DDK-tools-next-6.1.1.0")
    cann(home / "cann-8.0.0", versions={"compiler": "7.6.0.1.220", "opp": "7.3.0.1.231"})
    code, answer = doctor("--npu", "sim", "--npu", "sim:kirinx90?cann=6.0.1.0", "--json")
    assert (code, answer["ok"]) == (0, True)
    by_kind = {toolkit["kind"]: toolkit for toolkit in answer["toolkits"]}
    assert set(by_kind) == {"ddk", "ascend"}
    ours = by_kind["ddk"]
    assert set(ours) == {
        *("kind", "root", "version", "read_from", "versions", "platforms", "tools", "archives", "host", "driver"),
        *("found_by", "selected_by", "problems", "matches"),
    }
    assert (ours["version"], ours["read_from"]) == (
        "6.1.1.0",
        f"the name of {(home / 'DDK-tools-next-6.1.1.0').resolve()}",
    )
    assert [(match["device"], match["outcome"]) for match in ours["matches"]] == [
        ("sim", "ok"),
        ("sim:kirinx90?cann=6.0.1.0", "mismatch"),
    ]
    assert all("policy exact" in match["rule"] for match in ours["matches"])
    assert by_kind["ascend"]["matches"][0]["outcome"] == "unknown"
    (problem,) = by_kind["ascend"]["problems"]
    assert set(problem) == {"what", "file", "found", "expected", "remedy"}


def test_the_text_says_the_same_with_fix_lines(doctor, home, monkeypatch):
    ddk(home, mode=0o644)
    monkeypatch.setenv("CANNLM_DDK", str(home / "DDK-tools-next-6.1.1.0"))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home / "gone"))
    code, text = doctor()
    assert code == 0
    assert "toolkit   DDK 6.1.1.0: " in text
    assert "(selected by CANNLM_DDK)" in text
    assert "version read in: the name of " in text
    assert "builds for: KirinX90" in text
    assert "against sim (KirinX90, 6.1.1.0): ok (policy exact: both must be the same version)" in text
    assert "fix: chmod +x " in text
    assert "problem   ASCEND_HOME_PATH leads to no toolkit" in text


def test_the_driver_beside_a_toolkit_is_shown(doctor, home):
    file = home / "Ascend" / "driver" / "version.info"
    file.parent.mkdir(parents=True)
    file.write_text("Version=24.1.rc2\n")
    cann(home / "Ascend" / "cann-8.0.0")
    (toolkit,) = doctor("--json")[1]["toolkits"]
    assert (toolkit["driver"]["version"], toolkit["driver"]["part"]) == ("24.1.rc2", "driver")
    assert f"driver beside it: 24.1.rc2 (Version of {file.resolve()})" in doctor()[1]


def test_the_policy_of_the_settings_judges(doctor, home, tmp_path):
    ddk(home, name="DDK-tools-next-6.0.1.0")
    assert "against sim (KirinX90, 6.1.1.0): mismatch (policy exact" in doctor()[1]
    (tmp_path / "cannlm.toml").write_text('cann_policy = "window"\n')
    assert "against sim (KirinX90, 6.1.1.0): ok (policy window" in doctor()[1]


def test_hashing_is_done_on_request(doctor, home):
    ddk(home)
    (home / "DDK-tools-next-6.1.1.0.zip").write_bytes(b"not the vendor's")
    assert "not what its name says" not in doctor()[1]
    code, text = doctor("--hash")
    assert (code, "an archive is not what its name says" in text) == (0, True)


def test_a_real_device_that_cannot_be_driven_fails_and_is_not_replaced(doctor, home):
    ddk(home)
    code, answer = doctor("--npu", "hdc", "--json")
    assert (code, answer["ok"]) == (3, False)
    assert "cannot drive" in answer["devices"][0]["problem"]
    assert answer["toolkits"][0]["matches"][0]["outcome"] == "unknown"
    assert "MISSING   hdc:" in doctor("--npu", "hdc")[1]


def test_a_device_that_is_none_is_wrong_use(doctor):
    assert doctor("--npu", "hdd", "--json")[0] == 2


def test_a_wrong_list_of_pairs_is_wrong_use(doctor, home, tmp_path):
    ddk(home)
    assert doctor("--version-pairs", tmp_path / "missing.toml", "--json")[0] == 2


def test_a_real_device_needs_a_toolkit_that_fits(doctor, home, real_device, monkeypatch, tmp_path):
    real_device(cann="6.1.1.0")
    assert doctor("--npu", "hdc")[0] == 3  # no toolkit
    ddk(home, name="DDK-tools-next-6.1.1.0")
    assert doctor("--npu", "hdc")[0] == 0
    old = ddk(home, name="DDK-tools-next-6.0.1.0")
    assert doctor("--npu", "hdc")[0] == 0  # nothing is selected, and one of the two fits
    monkeypatch.setenv("CANNLM_DDK", str(old))
    assert doctor("--npu", "hdc")[0] == 3  # the selected one does not


def test_a_real_device_of_another_number_space_is_unknown_until_a_pair_joins_them(doctor, home, real_device, tmp_path):
    ddk(home)
    real_device(cann=None, device_version="108.631.120.010")
    assert doctor("--npu", "hdc")[0] == 4
    (tmp_path / "pairs.toml").write_text(PAIRS)
    code, text = doctor("--npu", "hdc", "--version-pairs", tmp_path / "pairs.toml")
    assert code == 0
    assert "6.1.1.0 = 108.631.120.010 by pairs.toml: the bench" in text


def test_what_is_ok_needs_no_fix(doctor):
    checks = doctor("--json")[1]["checks"]
    assert all(check["fix"] is None for check in checks if check["state"] == "ok")


def test_an_internal_version_is_shown_with_its_public_name(doctor, home):
    cann(home / "cann-9.0.0", versions={"compiler": "7.6.0.1.220"})
    text = doctor()[1]
    assert "toolkit   CANN 7.6.0.1.220, which is 8.0.0: " in text
    assert "found 9.0.0 (the name); expected 7.6.0.1.220, which is 8.0.0, Version of " in text
