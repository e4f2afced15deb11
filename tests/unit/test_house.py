"""The house rules: which room may import which, a docstring in every module, and no module that is too long."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_cannlm

PACKAGE = Path(pytest_cannlm.__file__).parent

ROOMS = (
    ("errors",),
    ("progress", "settings", "sizes"),
    ("locking",),
    ("models",),
    ("container",),
    ("compat",),
    ("toolkits",),
    ("explain",),
    ("agent",),
    ("lint",),
    ("affinity",),
    ("build",),
    ("devices",),
    ("simulator",),
    ("measure",),
    ("parity",),
    ("report",),
    ("arguments", "markers"),
    ("cloud",),
    ("harness",),
    ("fixtures", "hookspecs", "plugin"),
    ("testing",),
    ("cli",),
)
"""From left to right; modules of one tuple make one room. A room may import rooms on its left, never on its right."""

APART = {"__init__", "__version__", "fallback", "strategies"}
"""The package itself, and what users import on their own: nothing of the product stands on it."""

PLACE = {name: place for place, room in enumerate(ROOMS) for name in room}
LONGEST = 400


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Rooms that a module imports, for type checkers only too, each with its line. Relative imports name no room."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "pytest_cannlm" and len(parts) > 1:
                yield parts[1], node.lineno


def wrong_imports(room: str, tree: ast.AST) -> list[str]:
    """What ``room`` imports from its right."""
    return [
        f"line {line}: {room} imports {other}"
        for other, line in imported(tree)
        if other not in APART and PLACE[other] > PLACE[room]
    ]


def test_every_room_has_its_place():
    found = {room_of(path) for path in modules()}
    assert found - APART - set(PLACE) == set(), "list the new room in ROOMS, where it belongs"
    assert set(PLACE) - found == set(), "ROOMS names what is not there any more"


def test_rooms_import_from_their_left_only():
    wrong = [
        f"{path.relative_to(PACKAGE)}: {problem}"
        for path in modules()
        if room_of(path) not in APART
        for problem in wrong_imports(room_of(path), ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "from pytest_cannlm.report.record import RunRecord",
        "from pytest_cannlm import report",
        "import pytest_cannlm.report.record",
        "if TYPE_CHECKING:\n    from pytest_cannlm.cli import main",
        "def later():\n    from pytest_cannlm.plugin import npu",
    ],
)
def test_an_import_from_the_right_is_noticed(source):
    assert len(wrong_imports("parity", ast.parse(source))) == 1


def test_an_import_from_the_left_is_fine():
    assert wrong_imports("parity", ast.parse("from pytest_cannlm import __version__, errors, measure")) == []


def test_every_module_says_what_it_is_for():
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    silent = [path for path, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))]
    assert silent == []


def test_no_module_is_too_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}
