"""A package that the gate could not judge and the settings let pass: loaded, and told."""

import json
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gating import write_real
from packages import executor, write_json, write_package

from pytest_cannlm.agent.protocol import LoadReport
from pytest_cannlm.build import locate_package
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.harness.session import UncheckedLoadWarning, load

TARGET = Target(chip="KirinX90", cann="6.1.1.0", on_unknown="load")


class Client:
    """Answers to a load as an agent on a real device does."""

    def status(self) -> Any:
        return SimpleNamespace(package=None)

    def load(self, package: Path, *, manifest: Path | None, target: Target) -> LoadReport:
        gate = json.loads(json.dumps(asdict(decide(package, target, manifest=manifest))))
        assert gate["answer"] == "load", gate
        return LoadReport(1.0, "measured", "engine 1", target.chip, "6.1.1.0", {"gate": gate})


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = write_package(tmp_path / "p")
    write_real(folder / "tiny.omc", atc_version="6.1.1.0", soc_version="KirinX90")
    write_json(folder / "executor.json", executor())
    return folder


def test_versions_that_cannot_be_compared_are_both_named(package: Path) -> None:
    target = replace(TARGET, cann=None, device_version="108.631.120.010")
    with pytest.warns(UncheckedLoadWarning, match=r"found 6\.1\.1\.0 .* expected 108\.631\.120\.010 "):
        load(Client(), locate_package(package), target)


def test_a_package_that_fits_is_not_warned_of(package: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(Client(), locate_package(package), TARGET)
