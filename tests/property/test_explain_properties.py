"""Whatever a log holds: it is explained or shown, in bounded space, and its first error stays first."""

import io

from hypothesis import given
from hypothesis import strategies as st

from pytest_cannlm.explain import explain_code, explain_text, lines_of
from pytest_cannlm.explain.causes import causes

known = st.sampled_from([text.pattern for text in causes().literals] + [code.code for code in causes().codes])
pieces = st.one_of(st.text(max_size=30), known, st.sampled_from(["[ERROR] ", "E/TAG ", "ret = 145000", "Op [a]", "  "]))
logs = st.lists(st.lists(pieces, max_size=4).map("".join), max_size=40)


@given(logs)
def test_any_log_is_told_in_order_with_one_first(log: list[str]) -> None:
    found = explain_text(log)
    assert [each.first for each in found] == [place == 0 for place in range(len(found))]
    for each in found:
        assert len(each.sentence().splitlines()) == 1
        assert 1 <= each.times <= len(log)
        assert each.known == (each.next is not None)
        assert len(each.lines) <= 20


@given(logs)
def test_lines_that_follow_never_change_what_was_first(log: list[str]) -> None:
    first = "[ERROR] the very first"
    found = explain_text([first, *log])
    assert found[0].lines[0] == first


@given(st.binary(max_size=3000))
def test_any_bytes_are_lines(data: bytes) -> None:
    explain_text(lines_of(io.BytesIO(data)))


@given(st.one_of(st.integers(), st.text(max_size=20)))
def test_any_code_is_shown_and_nothing_is_made_up(code: int | str) -> None:
    found = explain_code(code)
    assert str(code).strip().casefold() in ((found.code or "").casefold(), (found.name or "").casefold())
    assert found.known or (found.name, found.next) == (None, None)
