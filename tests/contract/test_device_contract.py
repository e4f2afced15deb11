"""What every kind of device must do, whatever drives it. A new kind joins by adding itself to ``KINDS``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from packages import write_manifest, write_package
from scripted_device import is_running, say, scripted_device, wait_until

from pytest_cannlm.agent.protocol import TimingRequest, TokenEvent
from pytest_cannlm.compat.gate import Target
from pytest_cannlm.devices import AgentClient, Device
from pytest_cannlm.errors import DeviceError, EngineCrash, EngineError, EngineHang, GateRefusal


@dataclass(frozen=True)
class Kind:
    """One kind of device under the contract, and prompts with which its engine misbehaves."""

    open: Callable[[], AbstractContextManager[Device]]
    crash: str
    hang: str
    fail: str


KINDS = {"sim": Kind(open=scripted_device, crash="crash", hang="hang", fail="code:1")}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def device(kind: Kind) -> Iterator[Device]:
    with kind.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a package, 模型 'quoted' & odd")


@pytest.fixture
def agent(device: Device, package: Path) -> AgentClient:
    """The device's agent with a package loaded."""
    agent = device.agent()
    status = agent.status()
    if status.worker is None or status.package is None:
        agent.load(package)
    agent.reset()
    return agent


def test_info_is_complete(device: Device) -> None:
    info = device.info
    assert info.kind
    assert info.name
    assert info.chip == "KirinX90"
    assert info.simulated == (info.kind == "sim")


def test_agent_is_started_once(device: Device) -> None:
    assert device.agent() is device.agent()


def test_load_reports_what_was_loaded_and_that_no_gate_was_asked(device: Device, package: Path) -> None:
    report = device.agent().load(package)
    assert report.load_ms > 0
    assert report.chip == device.info.chip
    assert report.details["gate"] == "off"
    assert device.agent().status().package == str(package)


def test_tokens_stream_as_they_come_and_add_up_to_the_generation(agent: AgentClient) -> None:
    events: list[TokenEvent] = []
    generation = agent.generate(say("one two three", tokens=5), events.append)
    assert [event.index for event in events] == [0, 1, 2, 3, 4]
    assert tuple(event.token for event in events) == generation.tokens
    assert tuple(event.time_ms for event in events) == generation.times.tokens
    assert list(generation.times.tokens) == sorted(generation.times.tokens)
    assert generation.times.end >= generation.times.tokens[-1]
    assert generation.kind in ("measured", "modelled")
    assert generation.served_by


def test_first_token_arrives_before_the_last_is_computed(agent: AgentClient) -> None:
    seen: list[str | None] = []
    agent.generate(say("slow:0.05", tokens=4), lambda event: seen.append(agent.status().busy))
    assert seen[0] == "generate"


def test_many_tokens_arrive_complete(agent: AgentClient) -> None:
    events: list[TokenEvent] = []
    generation = agent.generate(say("many", tokens=3000), events.append)
    assert len(events) == len(generation.tokens) == 3000


def test_logits_are_rows_of_the_vocabulary_for_the_asked_positions(agent: AgentClient) -> None:
    logits = agent.logits([5, 6, 7, 8], first=1)
    assert logits.dtype == np.float32
    assert logits.shape[0] == 3
    assert logits[:, 0].tolist() == [6.0, 7.0, 8.0]


def test_capabilities_name_what_is_missing_and_what_it_would_need(agent: AgentClient) -> None:
    capabilities = agent.capabilities()
    assert "logits" in capabilities.names
    assert capabilities.notes["lora"]


def test_tokenize_and_modelled_times(agent: AgentClient) -> None:
    assert agent.tokenize("ab cde") == [2, 3]
    times = agent.sample_times(TimingRequest(prompt_tokens=4, new_tokens=2, repeats=3, seed=7))
    assert len(times) == 3
    assert len(times[0].tokens) == 2


def test_memory_says_what_is_not_observable(agent: AgentClient) -> None:
    memory = agent.memory()
    assert memory.load is not None
    assert memory.kv_per_token is None


def test_reset_forgets_earlier_prompts_but_not_the_model(agent: AgentClient) -> None:
    agent.generate(say("first"))
    assert agent.generate(say("second")).cached_prefix_tokens == 1
    agent.reset()
    assert agent.generate(say("third")).cached_prefix_tokens == 0


def test_unload_releases_and_a_new_load_gets_a_fresh_process(agent: AgentClient, package: Path) -> None:
    first = agent.status().worker
    assert agent.unload().current == 0
    assert agent.status().package is None
    with pytest.raises(EngineError, match="none is loaded") as failure:
        agent.generate(say("hello"))
    assert failure.value.code == "NOT_LOADED"
    agent.load(package)
    assert agent.status().worker != first
    assert agent.generate(say("hello")).text == "hello"


def test_failure_that_the_engine_reports_leaves_it_usable(agent: AgentClient, kind: Kind) -> None:
    worker = agent.status().worker
    with pytest.raises(EngineError) as failure:
        agent.generate(say(kind.fail))
    assert not isinstance(failure.value, EngineCrash)
    assert agent.generate(say("still here")).text == "still here"
    assert agent.status().worker == worker


def test_crash_is_a_result_and_the_next_load_works(agent: AgentClient, kind: Kind, package: Path) -> None:
    crashes = agent.status().crashes
    with pytest.raises(EngineCrash, match="during generate") as failure:
        agent.generate(say(kind.crash))
    crash = failure.value
    assert crash.found == "SIGSEGV"
    assert "about to crash in generate" in crash.log
    assert not any("perfgenius" in line for line in crash.log)
    assert {"engine", "chip", "CANN", "Python"} <= crash.versions.keys()
    status = agent.status()
    assert (status.worker, status.package, status.crashes) == (None, None, crashes + 1)
    with pytest.raises(EngineError, match="SIGSEGV"):
        agent.generate(say("anybody there?"))
    agent.load(package)
    assert agent.generate(say("yes")).text == "yes"


def test_hang_ends_within_its_time_limit(agent: AgentClient, kind: Kind, package: Path) -> None:
    worker = agent.status().worker
    assert worker is not None
    with pytest.raises(EngineHang, match=r"did not finish within 0\.3 s") as failure:
        agent.generate(say(kind.hang, timeout_s=0.3))
    assert any("in obey" in line for line in failure.value.log), "the log shows where it hung"
    assert wait_until(lambda: not is_running(worker))
    agent.load(package)
    assert agent.generate(say("awake")).text == "awake"


def test_refusal_of_the_gate_starts_no_engine(kind: Kind, package: Path) -> None:
    with kind.open() as device:
        agent = device.agent()
        with pytest.raises(GateRefusal) as failure:
            agent.load(package, target=Target(chip=device.info.chip, cann="6.1.1.0", simulated=True))
        assert failure.value.code == "PACKAGE_INCOMPLETE"
        assert failure.value.decision.answer == "refuse"
        assert failure.value.decision.explain()
        status = agent.status()
        assert (status.worker, status.loads) == (None, 0)


def test_the_gate_lets_a_fitting_package_in_and_the_report_says_why(device: Device, tmp_path: Path) -> None:
    fitting = write_package(tmp_path / "package")
    manifest = write_manifest(tmp_path / "manifest.json")
    target = Target(
        chip="KirinX90",
        cann="6.1.1.0",
        simulated=True,
        version_pairs=(("6.1.1.0", "108.631.120.010"),),
        same_architecture=(("Ascend910B2", "Ascend910B3"),),
    )
    gate = device.agent().load(fitting, manifest=manifest, target=target).details["gate"]
    assert gate["answer"] == "load"
    assert {check["outcome"] for check in gate["checks"]} <= {"ok", "off"}


def test_a_package_of_another_cann_is_refused_with_both_versions(agent: AgentClient, tmp_path: Path) -> None:
    before = agent.status()
    other = write_package(tmp_path / "package", build_version="6.0.1.0")
    with pytest.raises(GateRefusal) as failure:
        agent.load(other, target=Target(chip="KirinX90", cann="6.1.1.0", simulated=True))
    assert failure.value.code == "CANN_VERSION_MISMATCH"
    assert "6.0.1.0" in failure.value.decision.explain()
    assert "6.1.1.0" in failure.value.decision.explain()
    assert agent.status() == before


def test_refusal_leaves_a_loaded_engine_alone(agent: AgentClient, tmp_path: Path) -> None:
    before = agent.status()
    with pytest.raises(GateRefusal):
        agent.load(tmp_path, target=Target(chip="KirinX90", cann="6.1.1.0", simulated=True))
    assert agent.status() == before
    assert agent.generate(say("untouched")).text == "untouched"


def test_calls_of_two_threads_take_turns(agent: AgentClient) -> None:
    texts: list[str] = []

    def generate(name: str) -> None:
        texts.append(agent.generate(say(name, tokens=20)).text)

    threads = [threading.Thread(target=generate, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == ["left", "right"]


def test_exception_of_the_listener_stops_the_engine(agent: AgentClient) -> None:
    def refuse(event: TokenEvent) -> None:
        raise RuntimeError("seen enough")

    worker = agent.status().worker
    with pytest.raises(RuntimeError, match="seen enough"):
        agent.generate(say("slow:0.02", tokens=100_000), refuse)
    assert wait_until(lambda: agent.status().busy is None)
    assert agent.generate(say("next")).text == "next"
    assert agent.status().worker == worker


def test_close_ends_every_process_and_may_be_repeated(kind: Kind, package: Path) -> None:
    with kind.open() as device:
        agent = device.agent()
        agent.load(package)
        status = agent.status()
        device.close()
        device.close()
        assert status.worker is not None
        assert not is_running(status.supervisor)
        assert not is_running(status.worker)
        with pytest.raises(DeviceError, match="closed"):
            device.agent()


def test_close_during_a_generation_ends_every_process(kind: Kind, package: Path) -> None:
    with kind.open() as device:
        agent = device.agent()
        agent.load(package)
        status = agent.status()
        failures: list[BaseException] = []

        def generate() -> None:
            try:
                agent.generate(say(kind.hang))
            except (DeviceError, EngineCrash) as failure:
                failures.append(failure)

        thread = threading.Thread(target=generate)
        thread.start()
        assert wait_until(lambda: agent.status().busy == "generate")
        device.close()
        thread.join(5)
        assert len(failures) == 1
        assert status.worker is not None
        assert wait_until(lambda: not is_running(status.worker or 0))
