"""The documentation: what it shows is what is there."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

from pytest_cannlm import fixtures
from pytest_cannlm.cli.app import app
from pytest_cannlm.markers import MARKERS
from pytest_cannlm.settings import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
TUTORIAL = DOCS / "tutorial"
SUITE = TUTORIAL / "suite" / "test_smollm2.py"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OM_CODE = re.compile(r'"(OM2?_[A-Z0-9_]+)"')
CLOUD_CODE = re.compile(r'"(CLOUD_[A-Z_]+)"')
GATE_CODE = re.compile(r'"((?:CANN|CHIP|PACKAGE|WEIGHT_SIZE|SIMULATED|REAL_PACKAGE)_[A-Z_]+)"')


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(text_of(page)) if found == language]


def python_blocks() -> list[object]:
    return [
        pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, code in enumerate(blocks(page, "python"))
    ]


def anchors(page: Path) -> set[str]:
    """Anchors that a page's headings get: lower case, spaces as dashes, everything else dropped."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return load(REFERENCE / "generate.py")


def test_generated_parts_are_current(generator):
    assert [str(page) for page in generator.outdated()] == [], "run python docs/reference/generate.py"


def test_every_generated_part_is_used_and_known(generator):
    used = {name for page in PAGES for _, name, _ in generator.PART.findall(text_of(page))}
    assert used == set(generator.BLOCKS)


def test_tutorial_shows_the_suite_that_the_demo_runs():
    assert blocks(TUTORIAL / "first-budget.md", "python")[0] == text_of(SUITE)


def test_every_recorded_part_has_been_recorded():
    recorder = text_of(TUTORIAL / "record.py")
    parts = re.findall(r"<!-- recorded: ([\w-]+) -->(.*?)<!-- end -->", "".join(map(text_of, PAGES)), re.DOTALL)
    assert parts
    for name, content in parts:
        assert "```console" in content, f"{name}: run python docs/tutorial/record.py"
        assert f'"{name}"' in recorder


def test_edits_of_the_tutorial_fit_the_suite():
    recorder, suite = text_of(TUTORIAL / "record.py"), text_of(SUITE)
    for old in ("decode_ms=7.5", 'cann="6.0.1.0"'):
        assert old in recorder
        assert old in suite


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for link in LINK.findall(text_of(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_of_one_machine_is_shown(page):
    assert not re.search(r"/tmp/|/work/|/root/|/home/", text_of(page))


@pytest.mark.parametrize("code", python_blocks())
def test_examples_compile_and_their_markers_are_right(code, pytester):
    compile(code, "example", "exec")
    if "def test_" in code:
        pytester.makepyfile(test_example=code)
        assert pytester.runpytest("--collect-only", "-q").ret == pytest.ExitCode.OK


def test_markers_options_and_commands_are_in_the_reference():
    markers, options = text_of(REFERENCE / "markers.md"), text_of(REFERENCE / "options.md")
    commands = text_of(REFERENCE / "command-line.md")
    for cls in MARKERS.values():
        assert f"\n## {cls.name}\n" in markers
        for argument in cls.arguments():
            assert f"`{argument}`" in markers
    for option in OPTIONS:
        for spelling in (option.flag, option.env, option.ini, option.key):
            assert f"`{spelling}`" in options
    for name in typer.main.get_command(app).commands:
        assert f"\n## cannlm {name}" in commands
        assert f"`cannlm {name}" in text_of(ROOT / "README.md")


def test_fixtures_are_in_the_reference():
    page = text_of(REFERENCE / "fixtures.md")
    for name in ("npu", "npu_device", "npu_package", "onnx_reference", "cloud_llm"):
        assert hasattr(fixtures, name)
        assert name in page


@pytest.mark.parametrize(("code", "room"), [(OM_CODE, "container"), (GATE_CODE, "compat"), (CLOUD_CODE, "cloud")])
def test_codes_are_in_the_reference(code, room):
    page = text_of(REFERENCE / "errors.md")
    sources = "".join(map(text_of, (ROOT / "pytest_cannlm" / room).rglob("*.py")))
    model_types = {"OM_STANDARD_MODEL", "OM_TINY_MODEL"}  # names of kinds of models, not of errors
    missing = {found for found in code.findall(sources) if f"`{found}`" not in page} - model_types
    assert missing == set()


def test_every_page_can_be_found():
    linked = {
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(text_of(page))
    }
    assert [page for page in PAGES if page.resolve() not in linked and page.name != "README.md"] == []
