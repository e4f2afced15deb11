"""Devices, packages and engines are opened, built and loaded once, and a broken one is not tried again."""

import errno
import json
from pathlib import Path

import pytest
from fake_npu import FakeClient, FakeDevice, FakeReference

from pytest_cannlm.build import PackageFolder
from pytest_cannlm.devices import parse_device
from pytest_cannlm.errors import BuildError, DeviceError, EnvironmentFailure, UsageError
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.rooms import Rooms
from pytest_cannlm.harness.run import NotRunError
from pytest_cannlm.harness.session import Harness, short_name
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.settings import Settings


class World:
    """Rooms that count what they are asked for."""

    def __init__(self, tmp_path: Path, **facts) -> None:
        self.calls: list[str] = []
        self.client = FakeClient(gate=lambda *_: None)
        self.facts, self.tmp_path = facts, tmp_path
        self.devices: list[FakeDevice] = []
        self.build_error: Exception | None = None
        rooms = Rooms(self.open, self.find, self.build, self.relabel, self.reference)
        self.harness = Harness(Settings(cache=tmp_path / "cache"), rooms=rooms, progress=SilentProgress())

    def open(self, spec):
        self.calls.append(f"open {spec.text}")
        if spec.kind == "hdc":
            raise DeviceError("not there")
        self.devices.append(FakeDevice(spec, self.client, **self.facts))
        return self.devices[-1]

    def find(self, model, cache, progress):
        self.calls.append(f"find {model}")
        return Path(model)

    def build(self, recipe, cache, progress):
        self.calls.append(f"build {recipe.model} {recipe.scheme} {recipe.converter} {recipe.chip} {recipe.cann}")
        if self.build_error:
            raise self.build_error
        folder = self.tmp_path / f"{recipe.scheme}-{recipe.context}" / "package"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "executor.json").write_text(json.dumps({"llm_config": {"kv_cache_max_len": recipe.context}}))
        return PackageFolder(folder, None, {})

    def relabel(self, *_, **__):
        raise AssertionError

    def reference(self, package, checkpoint, cache, progress):
        self.calls.append(f"reference {checkpoint}")
        return FakeReference()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def case(text="sim", model="m", **changes):
    return Case(device=parse_device(text), model=model, **changes)


def test_everything_is_made_once(world):
    for _ in range(3):
        run = world.harness.begin(case())
        world.harness.reference(run, "float")
        world.harness.end()
    assert world.calls == ["open sim", "find m", "build m w4a16 simulated KirinX90 6.1.1.0", "reference m"]
    assert world.client.log == ["load", "reset", "reset"]


def test_two_packages_take_turns_on_one_engine(world):
    for scheme in ("w4a16", "fp16", "fp16", "w4a16"):
        world.harness.begin(case(scheme=scheme))
    assert world.client.log == ["load", "load", "reset", "load"]
    assert world.calls.count("build m fp16 simulated KirinX90 6.1.1.0") == 1


def test_the_device_decides_chip_and_cann_of_the_build(tmp_path):
    world = World(tmp_path, cann="6.0.1.0")
    world.harness.begin(case())
    assert world.calls[-1] == "build m w4a16 simulated KirinX90 6.0.1.0"


def test_a_real_device_takes_a_real_converter(tmp_path):
    world = World(tmp_path, simulated=False)
    world.client.kind = "measured"
    assert world.harness.begin(case()).kind == "measured"
    assert world.calls[-1] == "build m w4a16 omg KirinX90 6.1.1.0"


def test_the_marker_s_converter_wins(world):
    world.harness.begin(case(converter="atc"))
    assert world.calls[-1] == "build m w4a16 atc KirinX90 6.1.1.0"


def test_a_device_that_does_not_tell_its_cann_gets_no_package(tmp_path):
    world = World(tmp_path, cann=None)
    with pytest.raises(DeviceError, match="does not tell its CANN version"):
        world.harness.begin(case())


def test_another_chip_is_told_before_anything_is_built(tmp_path):
    world = World(tmp_path, chip="Kirin9020")
    with pytest.raises(NotRunError, match="is a Kirin9020, and the test runs on KirinX90 only"):
        world.harness.begin(case())
    assert world.calls == ["open sim"]
    assert world.harness.begin(case(chips=("KirinX90", "kirin 9020")))


def test_a_missing_capability_names_what_would_be_needed(world):
    with pytest.raises(NotRunError, match=r"requires lora \(an interface that is not public\)"):
        world.harness.begin(case(requires=("logits", "lora")))


def test_a_device_that_does_not_open_is_tried_once(world):
    with pytest.raises(DeviceError, match="not there"):
        world.harness.begin(case("hdc:A"))
    with pytest.raises(NotRunError, match="the device hdc:A failed in an earlier test: not there"):
        world.harness.begin(case("hdc:A"))
    assert world.calls == ["open hdc:A"]
    assert world.harness.begin(case()), "another device is not touched by that"


def test_a_device_that_breaks_is_not_tried_again(world):
    world.client.fails = {"load": DeviceError("unplugged")}
    with pytest.raises(DeviceError):
        world.harness.begin(case())
    world.client.fails = {}
    with pytest.raises(NotRunError, match="unplugged"):
        world.harness.begin(case())


@pytest.mark.parametrize(("simulated", "kind"), [(False, "modelled"), (True, "measured")])
def test_a_device_whose_engine_is_of_another_kind_is_refused(tmp_path, simulated, kind):
    world = World(tmp_path, simulated=simulated)
    world.client.kind = kind
    with pytest.raises(DeviceError, match=f"figures of its engine are {kind}") as error:
        world.harness.begin(case())
    assert error.value.code == "ENGINE_KIND_DIFFERS"
    with pytest.raises(NotRunError, match="failed in an earlier test"):
        world.harness.begin(case())


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/cache/x"), "Free space there"),
        (OSError(errno.EROFS, "Read-only file system", "/cache/x"), "can be written"),
        (OSError(errno.EIO, "Input/output error", "/cache/x"), "Check disk"),
    ],
)
def test_a_disk_that_refuses_is_an_error_of_the_environment_and_met_once(world, error, remedy):
    world.build_error = error
    with pytest.raises(EnvironmentFailure, match=remedy) as failure:
        world.harness.begin(case())
    assert failure.value.file == "/cache/x"
    with pytest.raises(NotRunError, match="failed in an earlier test"):
        world.harness.begin(case())
    assert sum(call.startswith("build") for call in world.calls) == 1


def test_a_build_that_fails_is_tried_once(world):
    world.build_error = BuildError("tensor clamped")
    with pytest.raises(BuildError):
        world.harness.begin(case())
    with pytest.raises(NotRunError, match=r"the package of m \(w4a16\) failed in an earlier test: tensor clamped"):
        world.harness.begin(case())
    assert sum(call.startswith("build") for call in world.calls) == 1


def test_references_are_kept_apart(world):
    run = world.harness.begin(case())
    for against in ("float", "quantized", "other.gguf", "float"):
        world.harness.reference(run, against)
    assert [call for call in world.calls if call.startswith("reference")] == [
        "reference m",
        "reference None",
        "reference other.gguf",
    ]


def test_close_closes_every_device_even_after_trouble(world):
    world.harness.begin(case())
    world.harness.begin(case("sim:kirinx90?seed=1"))

    def broken() -> None:
        raise DeviceError("gone already")

    world.devices[0].close = broken
    world.harness.close()
    assert world.devices[1].closed == 1
    with pytest.raises(UsageError, match="no test with an npu marker is running"):
        world.harness.npu.chat("Hi")


def test_the_npu_says_what_stands_behind_it(world):
    assert repr(world.harness.npu) == "<NPU, no test running>"
    world.harness.begin(case())
    assert repr(world.harness.npu) == "<NPU sim with m (w4a16)>"
    assert world.harness.npu.device.chip == "KirinX90"
    assert world.harness.npu.capabilities.names == ("logits", "tokenize", "modelled_timing")


@pytest.mark.parametrize(
    ("model", "short"),
    [("smollm2-135m", "smollm2-135m"), ("a/Qwen2.5-1.5B", "Qwen2.5-1.5B"), ("a/model.Q4_1.gguf", "model.Q4_1")],
)
def test_names_for_files_and_reports(model, short):
    assert short_name(model) == short


def test_the_gate_gets_the_user_s_version_pairs(world, tmp_path):
    pairs = tmp_path / "pairs.json"
    pairs.write_text('{"pairs": [{"versions": ["6.1.1.0", "108.631.120.010"], "source": "the bench"}]}')
    device = world.harness.device(parse_device("sim")).info
    assert world.harness.target(case(), device).version_pairs == ()
    world.harness.settings = Settings(version_pairs=pairs)
    (pair,) = world.harness.target(case(), device).version_pairs
    assert pair == ("6.1.1.0", "108.631.120.010", "pairs.json: the bench")
