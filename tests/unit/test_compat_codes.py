"""The codes of the gate: those in its source, in the reference, and that a test can ask for are the same."""

import re
from pathlib import Path

import pytest_cannlm
from pytest_cannlm.arguments import REFUSALS

PACKAGE = Path(pytest_cannlm.__file__).parent
PAGE = PACKAGE.parent / "docs" / "reference" / "errors.md"
CODE = re.compile(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"')
ROW = re.compile(r"^\| (`[A-Z0-9_`, ]+`) \|", re.MULTILINE)
OF_THE_CONTAINER = re.compile(r"^OM2?_")
NO_CODES = {"READ_LIMIT", "TASK_INFO"}
"""Texts of that form which are names."""
ONLY_TOLD = {"ORIGIN_CONTRADICTS"}
"""Codes that stand in a report and are never the reason of a refusal."""


def codes_in_source() -> set[str]:
    sources = (path.read_text(encoding="utf-8") for path in (PACKAGE / "compat").glob("*.py"))
    found = {code for source in sources for code in CODE.findall(source)}
    return {code for code in found if not OF_THE_CONTAINER.match(code)} - NO_CODES


def codes_in_table(heading: str) -> set[str]:
    part = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return {code for row in ROW.findall(part) for code in re.findall(r"`(\w+)`", row)}


def test_every_code_of_the_gate_is_in_the_reference_and_no_other() -> None:
    assert codes_in_table("Codes of the gate") == codes_in_source()


def test_every_code_of_the_gate_and_the_container_can_be_asked_for() -> None:
    refusing = codes_in_source() - ONLY_TOLD
    assert refusing | codes_in_table("Codes of the container") <= set(REFUSALS)
    assert not ONLY_TOLD & set(REFUSALS)
