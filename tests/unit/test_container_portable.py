"""What travels to the device stays valid for its Python 3.10 and needs nothing but the standard library."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_cannlm

PACKAGE = Path(pytest_cannlm.__file__).parent
TRAVELLERS = sorted(
    [*PACKAGE.glob("container/*.py"), *PACKAGE.glob("compat/*.py"), PACKAGE / "errors.py", PACKAGE / "__init__.py"]
)
TOO_NEW = {"tomllib", "ExceptionGroup", "BaseExceptionGroup", "StrEnum", "Self", "assert_never", "batched"}


@pytest.mark.parametrize("path", TRAVELLERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_valid_for_python_3_10(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"tomllib"}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in tree.body:  # what a function imports when it is called is needed on the host only
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    assert not names & TOO_NEW
    assert not [node for node in ast.walk(tree) if type(node).__name__ in ("TryStar", "TypeAlias")]


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("pytest_cannlm.container.core", ("container",)),
        ("pytest_cannlm.compat.gate", ("container", "compat")),
        ("pytest_cannlm.container.kirin", ("container",)),
    ],
)
def test_imports_only_the_standard_library_and_its_own_rooms(module: str, allowed: tuple[str, ...]) -> None:
    program = (
        f"import sys; before = set(sys.modules); import {module}; loaded = sorted(set(sys.modules) - before);"
        " import json; print(json.dumps(loaded))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    ours = {name for name in loaded if name.partition(".")[0] == "pytest_cannlm"}
    foreign = {name.partition(".")[0] for name in set(loaded) - ours} - sys.stdlib_module_names
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert foreign == set()
    assert rooms <= {"errors", *allowed}
    assert module in ours
