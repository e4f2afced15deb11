"""One spelling per chip, and look-alikes kept apart."""

import json
from pathlib import Path

import pytest
from gating import assert_refused
from packages import write_package

from pytest_cannlm.compat import chips
from pytest_cannlm.compat.gate import Target, decide
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


LOOK_ALIKES = {
    "zero for O": "KirinX9O",
    "sibling": "KirinX90A",
    "sibling with blanks": "Kirin X90 Plus",
    "Cyrillic Ka": "\u041airinX90",
    "Cyrillic i": "K\u0456rinX90",
    "Cyrillic Ha": "Kirin\u042590",
    "Kelvin sign": "\u212airinX90",
    "fullwidth": "\uff2b\uff49\uff52\uff49\uff4e\uff38\uff19\uff10",
    "fullwidth digits": "KirinX\uff19\uff10",
    "zero-width space": "Kirin\u200bX90",
    "zero-width joiner": "KirinX90\u200d",
    "byte order mark": "\ufeffKirinX90",
    "no-break space": "Kirin\u00a0X90",
    "soft hyphen": "Kirin\u00adX90",
    "combining dot": "KirinX90\u0307",
    "bell": "Kirin\aX90",
    "NUL": "KirinX90\0",
}


@pytest.mark.parametrize("name", LOOK_ALIKES.values(), ids=LOOK_ALIKES.keys())
def test_names_that_only_look_alike_are_other_chips_and_can_be_told_apart(tmp_path: Path, name: str) -> None:
    assert not chips.same_chip(name, "KirinX90")
    assert chips.shown(name) != "KirinX90"
    assert chips.shown(name).isascii()
    on_device = decide(tmp_path / "any", Target(chip=name, cann="6.1.1.0"))
    assert_refused(on_device, "CHIP_NOT_ALLOWED")
    package = write_package(tmp_path / "p", chip=name)
    in_file = decide(package, Target(chip="KirinX90", cann="6.1.1.0", simulated=True))
    assert_refused(in_file, "CHIP_MISMATCH", "soc_version of tiny.omc")
    for decision in (on_device, in_file):
        assert decision.explain().isprintable()
        assert "found KirinX90 (" not in decision.explain()


def test_a_text_that_is_no_name_takes_no_time() -> None:
    for text in ("NPU_" + "ohos.boot.hardware." * 5000, "ohos.boot.hardware.x" + "_v1" * 5000, "\n" * 99_999 + "x"):
        assert chips.normalize(chips.normalize(text)) == chips.normalize(text)
        assert not chips.same_chip(text, "KirinX90")


@pytest.mark.parametrize(("code", "name"), [(10, "KirinX90"), (16, "Kirin9030"), (14, None), (7, None), (99, None)])
def test_platform_codes(code: int, name: str | None) -> None:
    assert chips.chip_of_platform(code) == name


def test_every_entry_of_the_data_has_a_source() -> None:
    entries = json.loads(Path(chips.__file__).with_name("chips.json").read_text(encoding="utf-8"))["chips"]
    assert all(len(entry["source"]) > 10 for entry in entries)
    assert set(PLATFORM_CODES) <= set(chips.known_chips())
    aliases = [alias for entry in entries for alias in entry["aliases"]]
    assert len(aliases) == len(set(aliases))
