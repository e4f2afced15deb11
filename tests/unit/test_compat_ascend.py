"""Ascend models: chips of one architecture, what their loader compares besides, and what a file says twice."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gating import assert_refused, outcome, write_ascend, write_real
from samples import samples_dir

from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.container.layout import LITE, PRE_MODEL_DESC, HeaderFields
from pytest_cannlm.container.writer import Partition, write_container

CHIP = "Ascend310B4"
ATTRS = {"soc_version": CHIP, "atc_version": "7.6.0.1.220", "opp_version": "7.6.0.1.220"}
SERVER = Target(chip=CHIP, cann="8.0.0", chips=(CHIP,))

# Chips


@pytest.mark.parametrize(
    ("soc", "groups", "result"),
    [
        (CHIP, (), "ok"),
        ("Ascend310B1", (), "mismatch"),
        ("Ascend310B1", (("Ascend310B1", CHIP),), "ok"),
        ("ascend310b1", (("Ascend910B2", "Ascend910B3"), ("ASCEND310B1", "ascend 310b4")), "ok"),
        ("Ascend310B1", (("Ascend310B1", "Ascend310B2"),), "mismatch"),
        ("Ascend310B1", (("Ascend310B1", "Ascend310B2"), (CHIP, "Ascend310B2")), "mismatch"),
        ("", (("Ascend310B1", CHIP),), "unknown"),
        (" ", (), "unknown"),
    ],
)
def test_chips_that_the_user_knows_to_be_equal(
    tmp_path: Path, soc: str, groups: tuple[tuple[str, ...], ...], result: str
) -> None:
    path = write_ascend(tmp_path / "m.om", **{**ATTRS, "soc_version": soc})
    decision = decide(path, replace(SERVER, same_architecture=groups))
    assert outcome(decision, "chip") == result
    chip = next(check for check in decision.checks if check.name == "chip")
    unnamed = "does not say for which chip"
    assert (unnamed if result == "unknown" else "or for one that the user knows to be its equal") in chip.rule
    assert bool(chip.remedy) == (result != "ok")


def test_a_compiled_kirin_model_has_no_equal_chips(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version="KirinX90A")
    target = Target(chip="KirinX90", cann="6.1.1.0", same_architecture=(("KirinX90", "KirinX90A"),))
    assert_refused(decide(path, target), "CHIP_MISMATCH", "KirinX90A")


def test_model_whose_dialect_is_a_guess(tmp_path: Path) -> None:
    header = HeaderFields(layout="K", modeltype=4, platform_version=b"7.0.z")
    path = write_real(tmp_path / "m.om", header=header, atc_version="6.1.1.0", soc_version="KirinX90")
    for target in (Target(chip="KirinX90", cann="6.1.1.0"), SERVER):
        decision = decide(path, target)
        assert outcome(decision, "chip") == "unknown"
        assert "the platform version '7.0.z' fits neither Kirin nor Ascend" in " ".join(decision.reasons())


def test_kind_of_container_without_attributes_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "m.exeom"
    header = HeaderFields(layout="A2", table_bits=64, modeltype=LITE, platform_version=b"1.11.z.0")
    write_container(path, header=header, partitions=[Partition(PRE_MODEL_DESC, bytes(8))])
    decision = decide(path, SERVER)
    assert (decision.answer, decision.code, outcome(decision, "cann")) == ("unknown", "CHIP_UNKNOWN", "unknown")


def test_weak_platform_code_is_told_as_such(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0")
    chip = next(check for check in decide(path, Target(chip="KirinX90", cann="6.1.1.0")).checks if check.name == "chip")
    assert chip.outcome == "ok"
    assert "code 10, which converters also write for chips that they do not know" in chip.found_in


# The operator package


@pytest.mark.parametrize(
    ("built", "installed", "result"),
    [
        ("7.6.0.1.220", "7.6.0.1.220", "ok"),
        ("7.6.0.1.220", "7.6.0.1.220.", "ok"),
        ("7.6.0.1.220", "7.6.0.1.221", "mismatch"),
        ("7.6.0.1.220", "8.0.0", "mismatch"),
        ("7.6.0.1.220", None, "unknown"),
        ("", "7.6.0.1.220", "unknown"),
    ],
)
def test_operator_package_of_a_dynamic_model(tmp_path: Path, built: str, installed: str | None, result: str) -> None:
    path = write_ascend(tmp_path / "m.om", dynamic=True, **{**ATTRS, "opp_version": built})
    target = replace(SERVER, opp_version=installed)
    decision = decide(path, target)
    assert outcome(decision, "operator package") == result
    if result == "mismatch":
        assert_refused(decision, "OPP_VERSION_MISMATCH", built, str(installed), "m.om", "version.info", "as texts")
    elif result == "unknown":
        assert (decision.answer, decision.code) == ("unknown", "OPP_VERSION_UNKNOWN")
        reason = "which one is installed is not known" if built else "would compare an empty text and refuse"
        assert reason in decision.explain()
    off = decide(path, replace(target, policy="off"))
    assert (off.answer, outcome(off, "operator package")) == ("load", "off")
    assert "operator package off: " in " ".join(off.reasons())


def test_static_models_and_kirin_models_are_not_asked_for_one(tmp_path: Path) -> None:
    static = decide(write_ascend(tmp_path / "m.om", **ATTRS), replace(SERVER, opp_version="1.2.3"))
    kirin = decide(
        write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version="KirinX90"),
        Target(chip="KirinX90", cann="6.1.1.0", opp_version="1.2.3"),
    )
    for decision in (static, kirin):
        assert decision.answer == "load"
        assert not {"operator package", "host"} & {check.name for check in decision.checks}


# The host


@pytest.mark.parametrize(
    ("built", "have", "result"),
    [
        (("linux", "aarch64"), ("linux", "aarch64"), "ok"),
        (("linux", "x86_64"), ("linux", "aarch64"), "mismatch"),
        (("euler", "aarch64"), ("linux", "aarch64"), "mismatch"),
        (("linux", "aarch64"), (None, None), "unknown"),
        (("linux", "aarch64"), ("linux", None), "unknown"),
        (("linux", ""), ("linux", "aarch64"), "unknown"),
    ],
)
@pytest.mark.parametrize("policy", ["exact", "off"])
def test_host_of_a_model_that_carries_libraries(
    tmp_path: Path, built: tuple[str, str], have: tuple[str | None, str | None], result: str, policy: str
) -> None:
    attrs = {**ATTRS, "host_env_os": built[0], "host_env_cpu": built[1]}
    path = write_ascend(tmp_path / "m.om", dynamic=True, need_check=1, **attrs)
    target = replace(SERVER, host_os=have[0], host_cpu=have[1], policy=policy)
    decision = decide(path, target)
    assert outcome(decision, "host") == result
    assert "operator package" not in {check.name for check in decision.checks}
    if result == "mismatch":
        assert_refused(decision, "HOST_MISMATCH", "/".join(built), "linux/aarch64", "host_env_cpu of m.om")
    elif result == "unknown":
        assert decision.code == "HOST_UNKNOWN"
    if not all(built):
        assert "would compare an empty text and refuse" in decision.explain()


# What a file says twice


def atc(release: str, soc: str) -> str:
    return f"/usr/local/Ascend/ascend-toolkit/{release}/aarch64-linux/bin/atc.bin --model=x.onnx --soc_version={soc}"


@pytest.mark.parametrize(
    ("attrs", "found", "counts"),
    [
        ({"opp_version": "7.6.0.1.221"}, "CANN 7.6.0.1.221 (opp_version of m.om)", "CANN 7.6.0.1.220"),
        ({"atc_cmdline": atc("8.0.RC3", CHIP)}, "CANN 8.0.RC3 (atc_cmdline of m.om)", "CANN 7.6.0.1.220"),
        ({"atc_cmdline": atc("8.0.0", "Ascend910B")}, "chip Ascend910B (atc_cmdline of m.om)", f"chip {CHIP}"),
        ({"atc_cmdline": 'atc --soc_version "Ascend910B"'}, "chip Ascend910B (atc_cmdline of m.om)", f"chip {CHIP}"),
    ],
)
def test_contradictions_are_told_and_decide_nothing(
    tmp_path: Path, attrs: dict[str, str], found: str, counts: str
) -> None:
    decision = decide(write_ascend(tmp_path / "m.om", **{**ATTRS, **attrs}), SERVER)
    assert (decision.answer, decision.code, outcome(decision, "origin")) == ("load", None, "off")
    (reason,) = decision.reasons()
    for text in ("ORIGIN_CONTRADICTS", f"found {found}", f"expected {counts} (", "of m.om"):
        assert text in reason


@pytest.mark.parametrize(
    "command",
    [
        "",
        atc("8.0.0", CHIP),
        atc("8.0.0", "ascend310b4"),
        atc("latest", CHIP),
        atc("5.1.RC2", CHIP).replace("ascend-toolkit", "elsewhere"),
        "x" * 5000,
    ],
)
def test_what_agrees_or_says_nothing_is_no_contradiction(tmp_path: Path, command: str) -> None:
    decision = decide(write_ascend(tmp_path / "m.om", **ATTRS, atc_cmdline=command), SERVER)
    assert (decision.answer, decision.reasons()) == ("load", [])


# Real files


SAMPLES = samples_dir()


@pytest.mark.skipif(SAMPLES is None, reason="no sample files here")
@pytest.mark.parametrize(
    ("name", "change", "cann", "answer", "code"),
    [
        ("synth/synth_ascend_v2.om", (b"", b""), "8.0.0", "load", None),
        ("synth/synth_ascend_v2.om", (b"", b""), "7.6.0.1.220", "load", None),
        (
            "synth/synth_ascend_v2.om",
            (b"7.6.0.1.220", b"9.9.0.1.220"),
            "7.6.0.1.220",
            "refuse",
            "CANN_VERSION_MISMATCH",
        ),
        ("synth/synth_ascend_v2.om", (b"7.6.0.1.220", b"9.9.0.1.220"), "8.0.0", "unknown", "CANN_VERSION_UNKNOWN"),
        ("synth/synth_ascend_v2.om", (b"Ascend310B4", b"Ascend910B4"), "8.0.0", "refuse", "CHIP_MISMATCH"),
        ("ascend310_hilens_landmark68.om", (b"", b""), "8.0.0", "unknown", "CHIP_UNKNOWN"),
        ("kirin_cannkit_SobelCustom.om", (b"", b""), "8.0.0", "refuse", "CHIP_MISMATCH"),
    ],
)
def test_sample_files(
    tmp_path: Path, name: str, change: tuple[bytes, bytes], cann: str, answer: str, code: str | None
) -> None:
    assert SAMPLES is not None
    path = tmp_path / "m.om"
    shutil.copyfile(SAMPLES / "om" / name, path)
    if change[0]:
        path.write_bytes(path.read_bytes().replace(*change))
    decision = decide(path, replace(SERVER, cann=cann, policy="window" if answer == "refuse" else "exact"))
    assert (decision.answer, decision.code) == (answer, code), decision.explain()
