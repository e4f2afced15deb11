"""Simulated devices whose engine is the scripted double; helpers for tests that look at processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pytest_cannlm.agent.protocol import GenerateRequest
from pytest_cannlm.devices import SimulatedDevice, parse_device

ENGINE = "engine_double:ScriptedEngine"
TESTS = Path(__file__).resolve().parent


@contextmanager
def scripted_device(text: str = "sim", *, engine: str = ENGINE) -> Iterator[SimulatedDevice]:
    """A device with the scripted engine; its processes are gone when the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        device = SimulatedDevice(parse_device(text), engine=engine)
        try:
            yield device
        finally:
            device.close()


def say(text: str, *, tokens: int = 3, timeout_s: float = 20.0) -> GenerateRequest:
    """A generation whose prompt is ``text``."""
    return GenerateRequest(text=text, max_new_tokens=tokens, timeout_s=timeout_s)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie that nobody has waited for yet."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float = 5.0) -> bool:
    """Whether ``condition`` becomes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
