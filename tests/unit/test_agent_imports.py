"""The agent's files travel to a device: standard library only, valid for Python 3.10, nothing else of ours."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_cannlm

ROOT = Path(pytest_cannlm.__file__).parents[1]
LIST_MODULES = """
import json, sys
before = set(sys.modules)
import pytest_cannlm.agent.__main__, pytest_cannlm.agent.worker
from pytest_cannlm.compat.gate import decide
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """Modules that supervisor and worker import, in a Python that has no installed packages at all."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", LIST_MODULES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return list(json.loads(done.stdout))


def test_only_the_standard_library_is_imported(loaded: list[str]) -> None:
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"pytest_cannlm"}
    assert not foreign


def test_of_ours_only_what_travels_is_imported(loaded: list[str]) -> None:
    rooms = {name.split(".")[1] for name in loaded if name.startswith("pytest_cannlm.")}
    assert rooms <= {"agent", "compat", "container", "errors", "explain"}


def test_what_explains_errors_travels_with_its_table() -> None:
    code = "from pytest_cannlm.explain import explain_code; print(explain_code(145000).name)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "ACL_ERROR_GE_PARAM_INVALID"


def test_everything_that_travels_is_valid_for_python_3_10(loaded: list[str]) -> None:
    for name in loaded:
        if name.startswith("pytest_cannlm"):
            path = ROOT.joinpath(*name.split("."))
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            ast.parse(source.read_text(encoding="utf-8"), str(source), feature_version=(3, 10))


def test_devices_are_imported_without_their_libraries() -> None:
    code = "import sys, pytest_cannlm.devices; print({'httpx', 'numpy', 'psutil', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_the_simulator_is_not_imported_before_it_is_asked_for(loaded: list[str]) -> None:
    assert not [name for name in loaded if "simulator" in name]


def test_the_agent_starts_on_python_3_10() -> None:
    try:
        subprocess.run(["python3.10", "-c", "pass"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no working python3.10 on the path")
    done = subprocess.run(
        [
            "python3.10",
            "-S",
            "-m",
            "pytest_cannlm.agent",
            "--chip",
            "KirinX90",
            "--cann",
            "6.1.1.0",
            "--engine",
            "none",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout).keys() == {"port", "token", "pid"}
