"""Which chip this is: the order of the places that are asked, and what each may say."""

import sys

import pytest

from pytest_cannlm.cloud.detect import Detected, Probe, detect_chip, device_probes, read_parameter

HARDWARE = "ohos.boot.hardware"
CAPABILITY = "const.SystemCapability.AI.CANN.LLMEngine"


def device(tmp_path, *, parameters=None, command_line=None):
    file = tmp_path / "cmdline"
    if command_line is not None:
        file.write_text(command_line)
    return device_probes(param=(parameters or {}).get, command_line=file)


@pytest.mark.parametrize(
    ("facts", "chip", "where"),
    [
        ({"parameters": {HARDWARE: "KirinX90"}}, "KirinX90", f"param get {HARDWARE}"),
        ({"parameters": {HARDWARE: "kirin9020"}, "command_line": "KirinX90"}, "Kirin9020", f"param get {HARDWARE}"),
        ({"parameters": {CAPABILITY: "true"}}, None, f"param get {CAPABILITY} (said 'true')"),
        ({"parameters": {HARDWARE: "default"}, "command_line": "KirinX90"}, "KirinX90", "cmdline"),
        ({"parameters": {HARDWARE: "kirin"}, "command_line": "kirin_boot=1 KirinX90"}, "KirinX90", "cmdline"),
        ({"parameters": {HARDWARE: "rk3568"}}, None, f"param get {HARDWARE} (said 'rk3568')"),
        ({"parameters": {CAPABILITY: "false"}, "command_line": "a hardware=kirin9020 b"}, "Kirin9020", "cmdline"),
        ({"command_line": "x NPU_ohos.boot.hardware.KirinX90_v2_0 y"}, "KirinX90", "cmdline"),
        ({"command_line": "hardware=KirinX90A"}, "KirinX90A", "cmdline"),
        ({"parameters": {HARDWARE: "  ", CAPABILITY: ""}, "command_line": "quiet"}, None, "asked: "),
        ({}, None, "asked: "),
    ],
)
def test_the_first_place_with_an_answer_counts(tmp_path, facts, chip, where):
    found = detect_chip(device(tmp_path, **facts), environment={})
    assert found.chip == chip
    assert where in found.where


@pytest.mark.parametrize("said", ["true", "garbage chip!!", "麒麟X90", "Get parameter fail", "x" * 5000])
def test_what_names_no_chip_is_shown_and_the_next_place_asked(said):
    probes = [Probe("p", lambda: said), Probe("q", lambda: "KIRIN_X90")]
    assert detect_chip(probes, environment={}) == Detected("KirinX90", "q")
    found = detect_chip(probes[:1], environment={})
    assert (found.chip, found.where) == (None, f"asked: p (said {said[:40]!r})")


def test_a_look_alike_is_another_chip(tmp_path):
    assert detect_chip(device(tmp_path, command_line="KirinX90A"), environment={}).chip != "KirinX90"


def test_the_variable_is_asked_first_and_then_nobody():
    def never():
        raise AssertionError("asked")

    found = detect_chip([Probe("never", never)], environment={"CANNLM_CHIP": "kirin x90"})
    assert found == Detected("KirinX90", "CANNLM_CHIP")
    assert str(found) == "the chip is KirinX90 (CANNLM_CHIP)"


def test_a_blank_variable_is_none():
    assert detect_chip([Probe("p", lambda: "Kirin9020")], environment={"CANNLM_CHIP": " "}).chip == "Kirin9020"


def test_nobody_to_ask():
    assert str(detect_chip([], environment={})) == "the chip is not known (asked: nothing)"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for param is a shell script")
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo KirinX90", "KirinX90"),
        ("echo 'Get parameter \"x\" fail! errNum is:106!'", None),
        ("exit 1", None),
        ("echo", None),
    ],
)
def test_param_get(tmp_path, monkeypatch, script, found):
    program = tmp_path / "param"
    program.write_text(f'#!/bin/sh\ntest "$1 $2" = "get {HARDWARE}" || exit 9\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_parameter(HARDWARE) == found


def test_no_param_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_parameter(HARDWARE) is None
