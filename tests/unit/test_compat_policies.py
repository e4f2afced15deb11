"""Which version and which chip may be loaded where: the tables, by policy and by what kind of target asks."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gating import assert_refused, outcome, write_ascend, write_real
from packages import write_manifest, write_package

from pytest_cannlm.compat.gate import Decision, Target, decide
from pytest_cannlm.container.layout import SIMULATED_MARK, HeaderFields
from pytest_cannlm.errors import GateRefusal

CHIP = "Ascend310B4"
FROM = "the library on the device"
SERVER = Target(chip=CHIP, cann="8.0", chips=(CHIP,), version_from=FROM)
OK, BAD, UNKNOWN, OFF = "ok", "mismatch", "unknown", "off"


@dataclass(frozen=True)
class Row:
    """A model built with one version, a device with another, and what each policy makes of it."""

    built: str | None
    device: str | None
    exact: str
    window: str
    dynamic: bool = False


TABLE = [
    Row("8.0", "8.0", OK, OK),
    Row("7.0", "8.0", BAD, OK),
    Row("8.2", "8.0", BAD, BAD),
    Row("6.0", "8.0", BAD, BAD, dynamic=True),
    Row(None, "8.0", UNKNOWN, UNKNOWN),
    Row("unknown", "8.0", UNKNOWN, UNKNOWN),
    Row("0.0.0", "8.0", UNKNOWN, UNKNOWN),
    Row("8.0", None, UNKNOWN, UNKNOWN),
]


def judge(folder: Path, row: Row, target: Target) -> Decision:
    attrs = {"soc_version": CHIP} if row.built is None else {"soc_version": CHIP, "atc_version": row.built}
    mark = SIMULATED_MARK if target.simulated else b""
    path = write_ascend(folder / "m.om", dynamic=row.dynamic, mark=mark, **attrs)
    return decide(path, replace(target, cann=row.device))


@pytest.mark.parametrize("policy", ["exact", "window", "off"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.built}-{row.device}")
@pytest.mark.parametrize(
    ("target", "on_unknown"),
    [
        (replace(SERVER, simulated=True), "refuse"),
        (replace(SERVER, simulated=True, on_unknown="load"), "refuse"),
        (SERVER, "unknown"),
        (replace(SERVER, on_unknown="load"), "load"),
    ],
    ids=["simulated", "simulated-load", "device", "device-load"],
)
def test_built_with_one_version_run_by_another(
    tmp_path: Path, row: Row, policy: str, target: Target, on_unknown: str
) -> None:
    decision = judge(tmp_path, row, replace(target, policy=policy))
    expected = OFF if policy == "off" else getattr(row, policy)
    assert outcome(decision, "cann") == expected
    assert decision.answer == {OK: "load", OFF: "load", BAD: "refuse", UNKNOWN: on_unknown}[expected]
    code = {BAD: "CANN_VERSION_MISMATCH", UNKNOWN: "CANN_VERSION_UNKNOWN"}.get(expected)
    assert decision.code == code
    line = decision.explain()
    assert line.startswith(f"{decision.answer}: ")
    assert len(line.splitlines()) == 1
    for text in (
        f"found {row.built or 'no build version'} (",
        "atc_version of m.om" if row.built else "neither the attributes of m.om nor a manifest",
        f"expected {row.device or 'no device version'} ({FROM})",
        f"rule: policy {policy}: ",
        "remedy: " if code else "rule: ",
    ):
        assert text in line
    if decision.answer == "load":
        decision.raise_if_refused()
    else:
        with pytest.raises(GateRefusal, match=code):
            decision.raise_if_refused()


def test_dynamic_shapes_of_an_old_version_are_named_as_the_reason(tmp_path: Path) -> None:
    decision = judge(tmp_path, Row("6.0", "8.0", BAD, BAD, dynamic=True), replace(SERVER, policy="window"))
    assert_refused(decision, "CANN_VERSION_MISMATCH", "dynamic shapes of before CANN 6.0.1")


@pytest.mark.parametrize(("built", "answer"), [("8.0", "load"), ("8.2", "refuse")])
def test_the_toolkit_of_this_machine_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str, answer: str
) -> None:
    home = tmp_path / "ascend-toolkit" / "latest"
    (home / "opp").mkdir(parents=True)
    for place in (home, home / "opp"):
        (place / "version.info").write_text("Version=8.2.0.2.220\n", encoding="utf-8")
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(home / "opp"))
    decision = judge(tmp_path, Row(built, "8.0", OK, OK), SERVER)
    assert decision.answer == answer
    assert f"expected 8.0 ({FROM})" in decision.explain()


@pytest.mark.parametrize(("policy", "answer"), [("exact", "refuse"), ("window", "load")])
def test_a_manifest_with_the_version_of_this_machine_is_told(tmp_path: Path, policy: str, answer: str) -> None:
    path = write_ascend(tmp_path / "m.om", soc_version=CHIP, atc_version="8.0")
    manifest = write_manifest(tmp_path / "manifest.json", build={"cann": "8.2", "chip": CHIP}, simulated=False)
    decision = decide(path, replace(SERVER, policy=policy), manifest=manifest)
    assert (decision.answer, outcome(decision, "cann")) == (answer, OK)
    assert "CANN 8.2" in " ".join(decision.reasons())


@pytest.mark.parametrize("kind", ["simulated", "real"])
@pytest.mark.parametrize(("chip", "answer"), [("KirinX90", "load"), ("Kirin9020", "refuse"), ("Kirin", "refuse")])
def test_a_sibling_and_a_family_are_other_chips(tmp_path: Path, kind: str, chip: str, answer: str) -> None:
    target = Target(chip="KirinX90", cann="6.1.1.0", simulated=kind == "simulated")
    if target.simulated:
        package = write_package(tmp_path / "p", chip=chip)
    else:
        package = write_real(tmp_path / "tiny.omc", atc_version="6.1.1.0", soc_version=chip)
    decision = decide(package, target)
    assert decision.answer == answer
    if answer == "refuse":
        assert_refused(decision, "CHIP_MISMATCH", f"{chip} (soc_version of tiny.omc", "KirinX90 (the ")


@pytest.mark.parametrize(("modeltype", "why"), [(3, "a portable model"), (0, "of kind IR_GRAPH_MODEL")])
def test_unknown_is_for_the_device_to_judge(tmp_path: Path, modeltype: int, why: str) -> None:
    header = HeaderFields(layout="K", modeltype=modeltype)
    path = write_real(tmp_path / "m.om", header=header, atc_version="6.1.1.0", soc_version="KirinX90")
    target = Target(chip="KirinX90", cann="6.1.1.0")
    decision = decide(path, target)
    assert (decision.answer, decision.code) == ("unknown", "CHIP_UNKNOWN")
    for text in (why, "the device", "alone can tell", "remedy: Let the device judge the file"):
        assert text in decision.explain()
    loaded = decide(path, replace(target, on_unknown="load"))
    assert (loaded.answer, loaded.code) == ("load", "CHIP_UNKNOWN")
    assert why in loaded.explain()


def test_loading_at_ones_own_risk_names_both_numbers(tmp_path: Path) -> None:
    path = write_real(tmp_path / "m.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    target = Target(chip="KirinX90", cann=None, device_version="108.631.120.010", on_unknown="load")
    decision = decide(path, target)
    assert (decision.answer, decision.code) == ("load", "CANN_VERSION_UNKNOWN")
    for text in ("found 6.1.1.0 (", "expected 108.631.120.010 (", "loaded unchecked"):
        assert text in decision.explain()
