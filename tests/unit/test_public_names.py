"""What users import from ``pytest_cannlm`` itself, and what the built package contains."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytest_cannlm

ROOT = Path(__file__).resolve().parents[2]


def test_public_names():
    assert pytest_cannlm.__all__ == [
        "BuiltPackage", "CannlmError", "EngineCrash", "EngineError", "GateRefusal", "KVCacheOverflow", "Npu",
        "OnnxReference", "PackageFolder", "Recipe", "Reply", "locate_package",
    ]  # fmt: skip


@pytest.mark.parametrize("name", pytest_cannlm.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name):
    code = f"import pytest_cannlm; print(pytest_cannlm.{name}.__doc__ or '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pytest_cannlm.nonsense  # noqa: B018


def test_wheel_holds_every_module_and_data_file(tmp_path):
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        held = {name for name in wheel.namelist() if name.startswith("pytest_cannlm/")}
    package = ROOT / "pytest_cannlm"
    source = {
        p.relative_to(ROOT).as_posix() for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert held == source
    assert "pytest_cannlm/py.typed" in held
