"""A pytester whose inner runs use the fake device, one package cache for all, and none of the developer's settings."""

import importlib
import os
from pathlib import Path

import psutil
import pytest
from tiny import tiny_llama

from pytest_cannlm.settings import OPTIONS

# pytester forgets what an inner run imported. What is imported here stays, so that no module exists twice.
for _name in (
    "plugin.collection",
    "plugin.running",
    "plugin.recording",
    "plugin.rooms",
    "plugin.live",
    "harness.judging",
    "report.terminal",
    "report.junit",
):
    importlib.import_module(f"pytest_cannlm.{_name}")

TESTS = Path(__file__).resolve().parent.parent

FAKE = """
from fake_npu import FakeClient, FakeDevice, FakeReference
from pytest_cannlm.errors import *

CLIENT = FakeClient({client})

def pytest_cannlm_open_device(config, spec):
    return FakeDevice(spec, CLIENT, {device})

def pytest_cannlm_reference(config, package, checkpoint):
    return FakeReference({reference})
"""


@pytest.fixture
def npu_tests(pytester, monkeypatch, tmp_path_factory):
    """Write tests with ``npu_tests(source, client=..., device=..., reference=...)``; ``NPU`` names the tiny model."""
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    cache = tmp_path_factory.getbasetemp() / "npu-cache"
    monkeypatch.setenv("CANNLM_CACHE", str(cache))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio -p no:cacheprovider -p no:platformdirs")

    def write(source: str, *, client: str = "", device: str = "", reference: str = "", conftest: str = "") -> None:
        pytester.makeconftest(FAKE.format(client=client, device=device, reference=reference) + conftest)
        header = f"import pytest\nMODEL = {str(tiny_llama())!r}\nNPU = dict(model=MODEL, context=256)\n"
        pytester.makepyfile(test_it=header + source)

    return write


@pytest.fixture
def simulated(npu_tests, pytester):
    """Write and run tests on the real simulated device; nothing of it may be left running."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    def run(source, *arguments):
        npu_tests(source)
        pytester.makeconftest("")
        result = pytester.runpytest("--npu-report=report.json", *arguments)
        left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before and p.is_running()]
        assert left == [], "every process that was started has ended"
        return result

    return run
