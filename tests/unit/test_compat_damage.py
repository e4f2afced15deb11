"""The kinds of damage: what users read of them is what is there."""

from pathlib import Path

import pytest

from pytest_cannlm.arguments import REFUSALS
from pytest_cannlm.compat.damage import DAMAGES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "rehearse-failures.md"


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_in_the_how_to_with_its_code_and_who_notices_it(name):
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    *_, code, notices, _ = [cell.strip() for cell in row.split("|")]
    assert code == f"`{DAMAGES[name].code}`"
    assert notices.startswith("yes") == DAMAGES[name].engine_notices


def test_every_code_is_one_that_a_marker_can_ask_for():
    assert {damage.code for damage in DAMAGES.values()} <= set(REFUSALS)
