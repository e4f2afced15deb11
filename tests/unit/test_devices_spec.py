import pytest

from pytest_cannlm.devices import open_device, parse_device, pool_devices, worker_number
from pytest_cannlm.devices.simulated import SimulatedDevice
from pytest_cannlm.errors import DeviceError, UsageError


def test_sim_alone_leaves_everything_to_the_defaults() -> None:
    spec = parse_device("sim")
    assert (spec.kind, spec.key, spec.options, spec.text) == ("sim", None, {}, "sim")
    info = SimulatedDevice(spec).info
    assert (info.chip, info.cann, info.ram_bytes) == ("KirinX90", "6.1.1.0", 32 * 2**30)
    assert info.simulated
    assert info.device_version is None


def test_every_option_of_the_simulated_device() -> None:
    spec = parse_device("sim:kirinx90?cann=6.0.1.0&ram=2GiB&mode=fast&seed=3&threads=2&on_mismatch=hang")
    assert spec.key == "KirinX90"
    assert spec.options == {
        "cann": "6.0.1.0",
        "ram": 2 * 2**30,
        "mode": "fast",
        "seed": 3,
        "threads": 2,
        "on_mismatch": "hang",
    }
    info = SimulatedDevice(spec).info
    assert (info.name, info.cann, info.ram_bytes) == (spec.text, "6.0.1.0", 2 * 2**30)


def test_options_without_a_chip() -> None:
    assert parse_device("sim?ram=1.5GB").options == {"ram": 1_500_000_000}


@pytest.mark.parametrize("spelling", ["kirinx90", "KirinX90", "KIRINX90", "kirin x90"])
def test_one_chip_has_many_spellings(spelling: str) -> None:
    assert parse_device(f"sim:{spelling}").key == "KirinX90"


def test_another_known_chip_can_be_simulated() -> None:
    assert SimulatedDevice(parse_device("sim:kirin9020")).info.chip == "Kirin9020"


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("hdc", "hdc", None),
        ("hdc:192.168.1.7:5555", "hdc", "192.168.1.7:5555"),
        ("adb:R5CT", "adb", "R5CT"),
        ("local", "local", None),
    ],
)
def test_real_devices_are_parsed(text: str, kind: str, key: str | None) -> None:
    spec = parse_device(text)
    assert (spec.kind, spec.key) == (kind, key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simm", "did you mean 'sim'"),
        ("SIM", "did you mean 'sim'"),
        ("", "unknown device kind ''"),
        ("usb:1", "sim:kirinx90?cann=6.0.1.0"),
        ("sim:kirinx9", "did you mean 'kirinx90'"),
        ("sim:kirinx90a", "unknown chip"),
        ("sim:snapdragon", "kirinx90, kirin9030"),
        ("sim?can=6.1.1.0", "did you mean 'cann'"),
        ("sim?speed=9", "cann, ram, mode, seed, threads, on_mismatch"),
        ("sim?on_mismatch=crsh", "did you mean 'crash'"),
        ("sim?mode=fsat", "did you mean 'fast'"),
        ("sim?mode=", "faithful, fast"),
        ("sim?ram=2", "a size with its unit"),
        ("sim?ram=0GiB", "a size with its unit"),
        ("sim?ram=-1GiB", "a size with its unit"),
        ("sim?cann=latest", "a CANN version such as 6.1.1.0"),
        ("sim?cann=108.631.120.010", "a CANN version such as 6.1.1.0"),
        ("sim?seed=-1", "at least 0"),
        ("sim?seed=x", "at least 0"),
        ("sim?threads=0", "at least 1"),
        ("sim?seed=1&seed=2", "twice"),
        ("sim?seed", "at least 0"),
        ("sim:", "ends where something should follow"),
        ("sim?", "ends where something should follow"),
        ("hdc?x=1", "no option"),
        ("local:key", "only one local device"),
    ],
)
def test_wrong_specifications_say_what_is_possible(text: str, said: str) -> None:
    with pytest.raises(UsageError) as failure:
        parse_device(text)
    assert said in str(failure.value)
    assert f"--npu={text}" in str(failure.value)


@pytest.mark.parametrize("text", ["hdc", "hdc:KEY", "adb", "adb:SERIAL", "local"])
def test_a_real_device_is_refused_plainly_and_never_replaced(text: str) -> None:
    with pytest.raises(DeviceError, match="cannot drive the device") as failure:
        open_device(parse_device(text))
    assert "--npu=sim" in str(failure.value)
    assert text in str(failure.value)


def test_opening_the_simulated_device_starts_nothing() -> None:
    device = open_device(parse_device("sim"))
    assert device.info.kind == "sim"
    device.close()


def test_devices_of_one_kind_are_a_pool_and_kinds_are_parameters() -> None:
    pools = pool_devices(map(parse_device, ["hdc:A", "sim", "hdc:B", "hdc:C"]))
    assert [(pool.kind, len(pool.specs)) for pool in pools] == [("hdc", 3), ("sim", 1)]
    assert [pools[0].pick(worker).key for worker in range(4)] == ["A", "B", "C", "A"]
    assert pools[1].pick(5).kind == "sim"


def test_equal_simulated_devices_are_two_but_a_real_one_is_one() -> None:
    assert len(pool_devices([parse_device("sim"), parse_device("sim")])[0].specs) == 2
    with pytest.raises(UsageError, match="named twice"):
        pool_devices([parse_device("hdc:A"), parse_device("hdc:A")])


@pytest.mark.parametrize(("worker_id", "number"), [(None, 0), ("master", 0), ("gw0", 0), ("gw3", 3), ("gw12", 12)])
def test_worker_numbers(worker_id: str | None, number: int) -> None:
    assert worker_number(worker_id) == number
