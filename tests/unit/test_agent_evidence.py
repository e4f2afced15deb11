"""What a crash is told with beside its log: which package it was, and whether it fits the device."""

from pathlib import Path

import pytest
from packages import write_package

from pytest_cannlm.agent.evidence import Offer, add_evidence
from pytest_cannlm.errors import EngineCrash


def crash_with(package: Path, *, vouched: bool = False, cause: str | None = None) -> EngineCrash:
    crash = EngineCrash("the engine crashed", found="SIGSEGV", cause=cause, versions={"CANN": "6.1.1.0"})
    add_evidence(crash, Offer(str(package), manifest=None, vouched=vouched), chip="KirinX90", cann="6.1.1.0")
    return crash


def test_another_version_is_the_likely_cause_where_no_gate_had_compared(tmp_path: Path) -> None:
    crash = crash_with(write_package(tmp_path / "p", build_version="6.0.1.0"), cause="What the log says")
    assert crash.cause == "The package was built with CANN 6.0.1.0, and the device has 6.1.1.0"
    assert "cannlm build MODEL --cann 6.1.1.0" in str(crash.remedy)
    assert crash.versions == {"CANN": "6.1.1.0", "CANN of the package": "6.0.1.0"}


def test_another_chip_is_told_before_another_version(tmp_path: Path) -> None:
    crash = crash_with(write_package(tmp_path / "p", chip="Kirin9020", build_version="6.0.1.0"))
    assert crash.cause == "The package was compiled for Kirin9020, and the device has KirinX90"


def test_what_a_gate_vouched_for_is_not_the_cause(tmp_path: Path) -> None:
    crash = crash_with(write_package(tmp_path / "p", build_version="6.0.1.0"), vouched=True, cause="What the log says")
    assert crash.cause == "What the log says"
    assert crash.versions["CANN of the package"] == "6.0.1.0"


def test_a_package_that_fits_is_not_the_cause(tmp_path: Path) -> None:
    crash = crash_with(write_package(tmp_path / "p"))
    assert (crash.cause, crash.remedy) == (None, None)


@pytest.mark.parametrize("there", [True, False])
def test_a_package_that_says_nothing_adds_nothing(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "p"
    if there:
        folder.mkdir()
    crash = crash_with(folder)
    assert (crash.cause, crash.versions) == (None, {"CANN": "6.1.1.0"})
