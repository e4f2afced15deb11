"""One spelling per chip, and look-alikes kept apart."""

import json
from pathlib import Path

import pytest

from pytest_cannlm.compat import chips
from pytest_cannlm.container.taskinfo import PLATFORM_CODES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("KirinX90", "KirinX90"),
        ("kirinx90", "KirinX90"),
        ("KIRINX90", "KirinX90"),
        ("Kirin X90", "KirinX90"),
        (" kirin-x90 ", "KirinX90"),
        ("kirin_x90", "KirinX90"),
        ("NPU_ohos.boot.hardware.KirinX90_v2_0", "KirinX90"),
        ("NPU_ohos.boot.hardware.kirin9020_v2_0", "Kirin9020"),
        ("kirin9030", "Kirin9030"),
        ("kirinx90a", "KirinX90A"),
        ("NPU_ohos.boot.hardware.KirinXE90_v2_0", "KirinXE90"),
        ("kirin x90 plus", "KirinX90Plus"),
        ("Kirin", "Kirin"),
        ("Ascend310B4", "Ascend310B4"),
        ("HIAI_F", "HIAI_F"),
        ("", ""),
    ],
)
def test_normalized_name(text: str, name: str) -> None:
    assert chips.normalize(text) == name
    assert chips.normalize(name) == name


@pytest.mark.parametrize(
    "other", ["KirinX90A", "KirinXE90", "KirinX90Plus", "Kirin", "Kirin9020", "X90", "KirinX9", "KirinX900", ""]
)
def test_look_alikes_stay_different(other: str) -> None:
    assert not chips.same_chip("KirinX90", other)


def test_case_does_not_matter() -> None:
    assert chips.same_chip("kirinx90", "KirinX90")
    assert chips.same_chip("ascend310b4", "Ascend310B4")
    assert not chips.same_chip("Ascend910B", "Ascend910B2")


@pytest.mark.parametrize(("code", "name"), [(10, "KirinX90"), (16, "Kirin9030"), (14, None), (7, None), (99, None)])
def test_platform_codes(code: int, name: str | None) -> None:
    assert chips.chip_of_platform(code) == name


def test_every_entry_of_the_data_has_a_source() -> None:
    entries = json.loads(Path(chips.__file__).with_name("chips.json").read_text(encoding="utf-8"))["chips"]
    assert all(len(entry["source"]) > 10 for entry in entries)
    assert set(PLATFORM_CODES) <= set(chips.known_chips())
    aliases = [alias for entry in entries for alias in entry["aliases"]]
    assert len(aliases) == len(set(aliases))
