"""Nothing outlives its parent: harness, supervisor and worker, each ended in every way that it can be ended."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_device import ENGINE, TESTS, is_running, wait_until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends processes by signal")

HARNESS = f"""
import sys
from pathlib import Path
from pytest_cannlm.agent.protocol import GenerateRequest
from pytest_cannlm.devices import SimulatedDevice, parse_device

device = SimulatedDevice(parse_device("sim"), engine="{ENGINE}")
agent = device.agent()
agent.load(Path("."))
status = agent.status()
print(status.supervisor, status.worker, flush=True)
"""
GENERATE = "agent.generate(GenerateRequest(text={prompt!r}, max_new_tokens=100000))\n"


class Harness:
    """A process that stands for pytest: opens a device, loads, then runs ``body``."""

    def __init__(self, body: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HARNESS + textwrap.dedent(body)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.supervisor, self.worker = map(int, self.output.readline().split())

    def nothing_is_left(self) -> bool:
        return wait_until(lambda: not is_running(self.supervisor) and not is_running(self.worker))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()


@pytest.fixture
def harnesses(tmp_path: Path) -> Iterator[list[Harness]]:
    started: list[Harness] = []
    yield started
    for harness in started:
        harness.close()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("sys.stdin = None; import time; time.sleep(60)", id="idle"),
        pytest.param(GENERATE.format(prompt="slow:0.01"), id="streaming"),
        pytest.param(GENERATE.format(prompt="hang"), id="engine hangs"),
    ],
)
def test_killed_harness_leaves_no_process(body: str, harnesses: list[Harness], tmp_path: Path) -> None:
    harness = Harness(body, tmp_path)
    harnesses.append(harness)
    assert is_running(harness.supervisor)
    assert is_running(harness.worker)
    harness.process.kill()
    harness.process.wait()
    assert harness.nothing_is_left()


def test_parent_that_is_gone_is_noticed_while_another_holds_the_pipe(harnesses: list[Harness], tmp_path: Path) -> None:
    body = """
        import os, time
        child = os.fork()
        if child == 0:
            time.sleep(30)  # holds a copy of the agent's lifeline
            os._exit(0)
        print(child, flush=True)
        time.sleep(60)
    """
    harness = Harness(body, tmp_path)
    harnesses.append(harness)
    child = int(harness.output.readline())
    try:
        harness.process.kill()
        harness.process.wait()
        assert is_running(child)
        assert harness.nothing_is_left()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(("prompt", "by"), [("slow:0.01", "SIGKILL"), ("hang", "SIGKILL"), ("hang", "SIGTERM")])
def test_ended_supervisor_takes_the_worker_with_it(
    prompt: str, by: str, harnesses: list[Harness], tmp_path: Path
) -> None:
    harness = Harness(GENERATE.format(prompt=prompt), tmp_path)
    harnesses.append(harness)
    os.kill(harness.supervisor, signal.Signals[by])
    assert wait_until(lambda: not is_running(harness.worker))


def test_ctrl_c_reaches_the_harness_alone_which_then_closes_the_device(
    harnesses: list[Harness], tmp_path: Path
) -> None:
    body = """
        import threading
        def announce(event):
            if event.index == 3:
                print("generating", flush=True)
        try:
            agent.generate(GenerateRequest(text="slow:0.01", max_new_tokens=100000), announce)
        except KeyboardInterrupt:
            print("interrupted", agent.status().worker is not None, agent.memory().load, flush=True)
            device.close()
            print("closed", flush=True)
    """
    harness = Harness(body, tmp_path)
    harnesses.append(harness)
    assert harness.output.readline() == "generating\n"
    os.killpg(harness.process.pid, signal.SIGINT)  # as a terminal does
    assert harness.output.readline() == "interrupted True 2\n"
    assert harness.output.readline() == "closed\n"
    assert harness.process.wait(10) == 0
    assert harness.nothing_is_left()


def test_harness_that_forgets_to_close_leaves_no_process(harnesses: list[Harness], tmp_path: Path) -> None:
    harness = Harness("", tmp_path)
    harnesses.append(harness)
    assert harness.process.wait(10) == 0
    assert harness.nothing_is_left()
