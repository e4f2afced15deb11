"""The gate answers whatever a package has become, reads little, writes nothing; and names of chips keep their rules."""

import dataclasses
import hashlib
import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from packages import executor, write_manifest, write_package

from pytest_cannlm.compat import chips
from pytest_cannlm.compat.gate import READ_LIMIT, Decision, Target, decide
from pytest_cannlm.container.writer import write_container
from pytest_cannlm.strategies import ContainerParts, containers, mutations

SIM = Target(chip="KirinX90", cann="6.1.1.0", simulated=True)
DEVICE = Target(chip="KirinX90", cann=None, device_version="108.631.120.010", on_unknown="load")
SERVER = Target(chip="Ascend310B4", cann="8.0.0", chips=("Ascend310B4",), opp_version="7.6.0.1.220", host_os="linux")
ANY = Target(chip="KirinX90", cann="6.1.1.0", simulated=None, policy="window")

NAMES = ("executor.json", "context.json", "tokenizer.json", "tiny.omc", "SubGraph_0.weight", "manifest.json")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["..", "/", "../manifest.json", "/etc/passwd", "a/../..", "./", "tiny.omc/", "C:\\x", "\0", "\ud800"]
    ),
)
MANY = 50 * 1000 * 1000


def damaged_executor() -> st.SearchStrategy[dict[str, Any]]:
    """``executor.json`` with members replaced by anything, paths among them."""
    keys = [(section, key) for section, members in executor().items() if isinstance(members, dict) for key in members]

    def build(changes: list[tuple[tuple[str, str], Any]]) -> dict[str, Any]:
        data = executor()
        for (section, key), value in changes:
            data[section][key] = value
        return data

    return st.lists(st.tuples(st.sampled_from(keys), JSON | PATHS), max_size=3).map(build)


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_sound(decision: Decision) -> None:
    assert isinstance(decision, Decision)
    assert decision.answer in ("load", "refuse", "unknown")
    assert 0 <= decision.bytes_read <= READ_LIMIT
    assert (decision.code is None) == all(check.outcome in ("ok", "off") for check in decision.checks)
    for line in (decision.explain(), *decision.reasons()):
        assert line.isprintable()
    line = decision.explain()
    assert all(text in line for text in (decision.answer, "found ", "expected ", "rule: "))


@given(
    data=damaged_executor(),
    damage=st.dictionaries(st.sampled_from(NAMES), mutations(), max_size=3),
    gone=st.sets(st.sampled_from(NAMES), max_size=1),
    target=st.sampled_from([SIM, DEVICE, ANY]),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_package_has_become_the_gate_answers(
    data: dict[str, Any], damage: dict[str, Callable[[bytes], bytes]], gone: set[str], target: Target
) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        package, manifest = write_package(root / "package"), write_manifest(root / "manifest.json")
        (package / "executor.json").write_text(json.dumps(data), encoding="utf-8")
        for name in {*damage, *gone}:
            path = manifest if name == "manifest.json" else package / name
            path.write_bytes(damage[name](path.read_bytes()) if name in damage else path.read_bytes())
            if name in gone:
                path.unlink()
        before = snapshot(root)
        tracemalloc.start()
        decision = decide(package, target, manifest=manifest)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert_sound(decision)
        assert peak < MANY
        assert snapshot(root) == before


@given(
    parts=containers(),
    damage=st.lists(mutations(), max_size=2),
    need_check=st.integers(0, 2),
    policy=st.sampled_from(["exact", "window", "off"]),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_model_has_become_the_gate_answers(
    parts: ContainerParts, damage: list[Callable[[bytes], bytes]], need_check: int, policy: str
) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "m.om"
        header = dataclasses.replace(parts.header, need_check_os_cpu_info=need_check)
        write_container(path, header=header, partitions=parts.partitions)
        data = path.read_bytes()
        for mutate in damage:
            data = mutate(data)
        path.write_bytes(data)
        for target in (SIM, DEVICE, ANY, SERVER):
            assert_sound(decide(path, dataclasses.replace(target, policy=policy)))
        assert path.read_bytes() == data


@given(data=st.binary(max_size=2000), name=st.sampled_from(["executor.json", "manifest.json"]))
@settings(deadline=None)
def test_any_bytes_in_place_of_a_text_are_answered(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        package, manifest = write_package(root / "package"), write_manifest(root / "manifest.json")
        (manifest if name == "manifest.json" else package / name).write_bytes(data)
        assert_sound(decide(package, SIM, manifest=manifest))


# Names of chips

CHIP_NAMES = st.sampled_from(
    ["KirinX90", "Kirin9020", "Kirin9030", "KirinX90Plus", "Kirin", "Ascend310B4", "Ascend910_93"]
)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """A chip's name and another spelling of it: other case, blanks and underscores anywhere, a runtime's prefix."""
    name = draw(CHIP_NAMES)
    between = st.text(" _-\t", max_size=2)
    text = "".join(draw(between) + (each.swapcase() if draw(st.booleans()) else each) for each in name)
    prefix, suffix = draw(
        st.sampled_from([("", ""), ("NPU_ohos.boot.hardware.", "_v2_0"), ("ohos.boot.hardware.", "")])
    )
    return name, f"{prefix}{text}{suffix}{draw(st.sampled_from(['', ' ', chr(10)]))}"


@given(text=st.text(max_size=200) | spellings().map(lambda pair: pair[1]) | st.from_regex(r"(NPU_|ohos\.|_v1| )+"))
def test_normalizing_twice_changes_nothing(text: str) -> None:
    once = chips.normalize(text)
    assert chips.normalize(once) == once
    assert chips.same_chip(text, once)


@given(pair=spellings())
def test_case_blanks_and_underscores_do_not_matter(pair: tuple[str, str]) -> None:
    name, text = pair
    assert chips.same_chip(name, text)
    if name.startswith("Kirin"):
        assert chips.normalize(text) == name


@given(
    at=st.integers(0, 8),
    odd=st.characters(exclude_characters=" \t\r\n\v\f_-"),
    replace=st.booleans(),
)
def test_any_other_letter_makes_another_chip(at: int, odd: str, replace: bool) -> None:
    name = "KirinX90"
    text = name[:at] + odd + name[at + replace :]
    assert chips.same_chip(text, name) == (text.isascii() and text.lower() == name.lower())
