"""refuses_load: right place, right reason, right time, nothing left behind; each of these can fail."""

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_npu import MIB, FakeClient

from pytest_cannlm.agent.protocol import Memory
from pytest_cannlm.build import relabel
from pytest_cannlm.compat.damage import DAMAGES
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.devices import DeviceInfo, parse_device
from pytest_cannlm.errors import DeviceError, EngineCrash, EngineError, EngineHang, GateRefusal
from pytest_cannlm.harness import refusal, scratch
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.run import Run
from pytest_cannlm.markers import Layer, RefusesLoad
from pytest_cannlm.models import hashing

WRONG = {"cann": "6.0.1.0", "chip": "Kirin9020", "damage": "truncate"}


class Client(FakeClient):
    """A fake whose gate sees the manifest too, which remembers every load, and which can be slow."""

    def __init__(self, *, slow_s: float = 0.0, **knobs) -> None:
        super().__init__(**knobs)
        self.slow_s = slow_s
        self.loaded: list[tuple[Path, Target | None, float]] = []

    def load(self, package, *, manifest=None, target=None, timeout_s=600.0):
        self.loaded.append((package, target, timeout_s))
        if is_copy(package):
            time.sleep(self.slow_s)
            if target is not None:
                decide(package, target, manifest=manifest).raise_if_refused()
        return super().load(package, manifest=manifest, target=None, timeout_s=timeout_s)


class GatelessClient(Client):
    """A fake whose gate lets everything through."""

    def load(self, package, *, manifest=None, target=None, timeout_s=600.0):
        self.loaded.append((package, target, timeout_s))
        return FakeClient.load(self, package, timeout_s=timeout_s)


def is_copy(package) -> bool:
    return scratch.PREFIX in str(package)


def refusing(error):
    """What an engine does that raises ``error`` for the copy."""

    def load(package):
        if is_copy(package):
            raise error

    return load


@pytest.fixture
def judged(verdict_of):
    """``judged(client, at=..., cann=...)``: outcome and reason."""

    def judge(client, **marker):
        verdict = verdict_of(client, **marker)
        return verdict.outcome, verdict.reason

    return judge


@pytest.fixture
def verdict_of(tiny_packages, tmp_path):
    """``verdict_of(client, at=..., cann=...)``."""

    def judge(client, **marker):
        package = tiny_packages()
        client.load(package.package)
        run = Run(
            case=Case(device=parse_device("sim"), model="m"),
            device=DeviceInfo("sim", "sim", "KirinX90", "6.1.1.0", None, None, True, {}),
            package=package,
            client=client,
            capabilities=client.capabilities(),
            target=Target("KirinX90", "6.1.1.0", simulated=True),
            started=client.status(),
        )
        parsed = RefusesLoad.parse([Layer((), marker, "function")])
        (verdict,) = refusal.judge(run, parsed, relabel=relabel, scratch=tmp_path / "scratch").verdicts
        assert verdict.name == f"refuses_load at {parsed.at}"
        return verdict

    return judge


@pytest.mark.parametrize("wrong", WRONG)
def test_at_the_gate_a_refusal_passes_and_a_load_fails(judged, wrong):
    client = Client()
    outcome, reason = judged(client, **{wrong: WRONG[wrong]})
    assert outcome == "pass", reason
    assert reason.startswith("refused by the gate: [")
    assert reason.endswith("; the good package loads afterwards")
    assert client._loads == 2, "the good package, before and after"
    assert judged(GatelessClient(), **{wrong: WRONG[wrong]}) == (
        "fail",
        "the gate let the copy through, and the engine loaded it; the good package loads afterwards",
    )


@pytest.mark.parametrize("wrong", WRONG)
def test_at_the_engine_a_clean_error_passes_and_a_load_fails(judged, wrong):
    client = Client(engine_load=refusing(EngineError("not this one", code="145000")))
    outcome, reason = judged(client, at="engine", **{wrong: WRONG[wrong]})
    assert (outcome, reason) == (
        "pass",
        "refused by the engine: [145000] not this one; the good package loads afterwards",
    )
    (offered,) = [target for package, target, _ in client.loaded if is_copy(package)]
    assert offered is None, "the gate is off"
    outcome, reason = judged(Client(), at="engine", **{wrong: WRONG[wrong]})
    assert (outcome, reason.split(";")[0]) == ("fail", "the engine loaded the copy")


@pytest.mark.parametrize("at", ["gate", "engine"])
def test_memory_that_cannot_be_seen_is_said_to_be_so(judged, at):
    client = Client(
        footprint=Memory("measured", None, None, None, None, None),
        engine_load=refusing(EngineError("not this one", code="145000")),
    )
    outcome, reason = judged(client, at=at, cann="6.0.1.0")
    assert outcome == "pass"
    assert reason.endswith("; the good package loads afterwards; whether memory grew is not observable")


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_refused_at_the_gate_with_its_code(judged, damage):
    outcome, reason = judged(Client(), damage=damage)
    assert outcome == "pass", reason
    assert f"[{DAMAGES[damage].code}]" in reason


@pytest.mark.parametrize(
    ("wrong", "at", "place"),
    [
        ({"cann": "6.0.1.0"}, "gate", "the CANN versions"),
        ({"chip": "Kirin9020"}, "gate", "the chips"),
        ({"damage": "truncate"}, "gate", "the code that the gate gives"),
        ({"damage": "truncate"}, "engine", "what the engine checks"),
    ],
)
def test_where_to_look_fits_what_is_wrong(verdict_of, wrong, at, place):
    assert verdict_of(GatelessClient(), at=at, **wrong).look_at.startswith(place)


@pytest.mark.parametrize("at", ["gate", "engine"])
def test_a_crash_is_told_with_signal_log_versions_and_cause(judged, at):
    crash = EngineCrash(
        "the engine crashed during load",
        found="SIGSEGV",
        cause="The graph was built for another version",
        remedy="Build it again",
        log=("CheckCompatibility failed", "Fatal Python error: Segmentation fault", '  File "worker.py"'),
        versions={"chip": "KirinX90", "CANN": "6.1.1.0"},
    )
    outcome, reason = judged(GatelessClient(engine_load=refusing(crash)), at=at, cann="6.0.1.0")
    assert outcome == "fail"
    for text in ("crashed with SIGSEGV", "| CheckCompatibility failed", "running: chip KirinX90, CANN 6.1.1.0"):
        assert text in reason
    assert "likely cause: The graph was built for another version. Build it again" in reason
    assert "worker.py" not in reason


def test_a_hang_is_told_with_its_time_limit(judged):
    hang = EngineHang("the engine hung during load", found="no answer", log=("Recompile failed!",))
    outcome, reason = judged(Client(engine_load=refusing(hang)), at="engine", cann="6.0.1.0", within_s=7)
    assert outcome == "fail"
    assert "it hung: no answer within 7 s" in reason
    assert "| Recompile failed!" in reason


@pytest.mark.parametrize(("at", "limit_s"), [("gate", refusal.GATE_S), ("engine", 600.0)])
def test_the_time_limit_reaches_the_engine(judged, at, limit_s):
    for given, expected in ((None, limit_s), (3, 3.0)):
        client = Client(engine_load=refusing(EngineError("no", code="1")))
        judged(client, at=at, cann="6.0.1.0", within_s=given)
        (used,) = [timeout_s for package, _, timeout_s in client.loaded if is_copy(package)]
        assert used == expected


@pytest.mark.parametrize("at", ["gate", "engine"])
def test_a_refusal_that_comes_too_late_fails_with_the_figure(judged, at):
    slow = {"slow_s": 0.06, "engine_load": refusing(EngineError("no", code="1"))}
    outcome, reason = judged(Client(**slow), at=at, cann="6.0.1.0", within_s=0.05)
    assert outcome == "fail"
    assert "but that took 0.0" in reason
    assert "the limit is 0.05 s" in reason
    assert judged(Client(**slow), at=at, cann="6.0.1.0", within_s=30)[0] == "pass"


def test_a_refusal_for_another_reason_fails_with_both(judged):
    outcome, reason = judged(Client(), cann="6.0.1.0", error="CHIP_MISMATCH")
    assert outcome == "fail"
    assert "another reason than CHIP_MISMATCH: [CANN_VERSION_MISMATCH] the gate refused" in reason
    assert "found too" not in reason


def test_codes_of_an_engine_are_compared(judged):
    def client():
        return Client(engine_load=refusing(EngineError("no", code="145000")))

    assert judged(client(), at="engine", cann="6.0.1.0", error="145000")[0] == "pass"
    outcome, reason = judged(client(), at="engine", cann="6.0.1.0", error="100012")
    assert outcome == "fail"
    assert "another reason than 100012: [145000] no" in reason


@pytest.mark.parametrize("code", ["OUT_OF_MEMORY", "ENGINE_EXCEPTION"])
def test_an_engine_without_memory_or_with_a_fault_refused_nothing(judged, code):
    outcome, reason = judged(Client(engine_load=refusing(EngineError("no", code=code))), at="engine", cann="6.0.1.0")
    assert outcome == "fail"
    assert f"another reason than what is wrong with the copy: [{code}]" in reason


def test_a_failure_that_the_marker_asks_for_counts(judged):
    client = Client(engine_load=refusing(EngineError("no", code="OUT_OF_MEMORY")))
    assert judged(client, at="engine", cann="6.0.1.0", error="OUT_OF_MEMORY")[0] == "pass"


@pytest.mark.parametrize("at", ["gate", "engine"])
def test_a_device_that_is_lost_answers_nothing(judged, at):
    with pytest.raises(DeviceError, match="unplugged"):
        judged(GatelessClient(engine_load=refusing(DeviceError("unplugged"))), at=at, cann="6.0.1.0")


def test_an_engine_that_was_touched_fails_although_the_gate_refused(judged):
    class Touched(Client):
        def load(self, package, **how):
            self.worker += is_copy(package)
            return super().load(package, **how)

    outcome, reason = judged(Touched(), cann="6.0.1.0")
    assert outcome == "fail"
    assert "but the engine was touched" in reason


@pytest.mark.parametrize(
    ("at", "expected"), [("gate", "the engine's footprint grew"), ("engine", "the good package takes")]
)
def test_memory_that_stays_taken_fails(judged, at, expected):
    class Leaking(Client):
        def load(self, package, **how):
            if is_copy(package):
                self.footprint = replace(self.footprint, current=200 * MIB)
            return super().load(package, **how)

    outcome, reason = judged(Leaking(engine_load=refusing(EngineError("no", code="1"))), at=at, cann="6.0.1.0")
    assert outcome == "fail"
    assert expected in reason


def test_memory_that_nobody_can_observe_is_no_failure(judged):
    unseen = Memory("modelled", None, None, None, None, None)
    assert judged(Client(footprint=unseen), cann="6.0.1.0")[0] == "pass"


def test_a_good_package_that_does_not_load_any_more_fails(judged):
    class Spoiled(Client):
        def load(self, package, **how):
            if not is_copy(package) and len(self.loaded) > 1:
                raise EngineError("busy", code="1")
            return super().load(package, **how)

    outcome, reason = judged(Spoiled(), cann="6.0.1.0")
    assert outcome == "fail"
    assert "the good package does not load afterwards: busy" in reason


@pytest.mark.parametrize("wrong", [{"cann": "6.1.1.0"}, {"chip": "KirinX90"}])
def test_what_the_device_has_itself_is_no_mismatch_and_is_told(judged, wrong):
    outcome, reason = judged(Client(), **wrong)
    assert outcome == "fail"
    assert f"{next(iter(wrong.values()))} is the device's own" in reason


def test_no_copy_is_left_behind(judged, tmp_path):
    judged(Client(), cann="6.0.1.0")
    with pytest.raises(KeyboardInterrupt):
        judged(GatelessClient(engine_load=refusing(KeyboardInterrupt())), cann="6.0.1.0")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no process can be asked for there")
def test_what_killed_runs_left_is_removed_at_once(judged, tmp_path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from pytest_cannlm.harness.scratch import place_for_a_copy\n"
        "with place_for_a_copy(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = tmp_path / "scratch"
    subprocess.run([sys.executable, "-c", code, place], check=False)
    assert len(list(place.iterdir())) == 1
    judged(Client(), cann="6.0.1.0")
    assert list(place.iterdir()) == []


def test_what_nobody_can_be_asked_about_is_removed_after_a_day(judged, tmp_path):
    place = tmp_path / "scratch"
    old, new = place / f"{scratch.PREFIX}another-1-old", place / f"{scratch.PREFIX}another-1-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    with scratch.place_for_a_copy(place, place) as mine:
        judged(Client(), cann="6.0.1.0")
        assert set(place.iterdir()) == {new, mine}


def test_hashes_stay_known_although_links_change_the_status(judged, tiny_packages, tmp_path, monkeypatch):
    memo = tmp_path / hashing.MEMO
    files = [path for path in tiny_packages().package.iterdir() if path.is_file()]
    for file in files:
        hashing.file_sha256(file, memo=memo)
    judged(Client(), cann="6.0.1.0")
    monkeypatch.setattr(hashing, "_hash", lambda file: pytest.fail(f"{file} is hashed again"))
    assert all(hashing.file_sha256(file, memo=memo) for file in files)


def test_copies_of_a_package_on_another_file_system_are_made_beside_it(monkeypatch, tmp_path):
    package, cache = tmp_path / "usb" / "package", tmp_path / "cache"
    package.mkdir(parents=True)
    monkeypatch.setattr(scratch, "_file_system", lambda path: "usb" in path.parts)
    with scratch.place_for_a_copy(cache, package) as made:
        assert Path(made).parent == package.parent
    assert list(package.parent.iterdir()) == [package]


def test_a_place_that_cannot_be_written_is_not_insisted_on(monkeypatch, tmp_path):
    package, cache = tmp_path / "p", tmp_path / "cache"
    package.mkdir()
    monkeypatch.setattr(Path, "mkdir", lambda self, **_: _refuse(errno.EROFS))
    with scratch.place_for_a_copy(cache, package) as made:
        assert cache not in Path(made).parents
    monkeypatch.setattr(Path, "mkdir", lambda self, **_: _refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"), scratch.place_for_a_copy(cache, package):
        pass


def _refuse(number):
    raise OSError(number, os.strerror(number))


def test_the_gate_names_everything_that_it_found(judged):
    """The wanted reason was found, but another one decides."""

    class TwoReasons(Client):
        def load(self, package, **how):
            try:
                return super().load(package, **how)
            except GateRefusal as refused:
                decision = decide(package, how["target"])
                raise GateRefusal("smaller file", decision=decision, code="PACKAGE_DAMAGED") from refused

    outcome, reason = judged(TwoReasons(), cann="6.0.1.0")
    assert outcome == "fail"
    assert "CANN_VERSION_UNKNOWN, which was found too: [PACKAGE_DAMAGED] smaller file" in reason
