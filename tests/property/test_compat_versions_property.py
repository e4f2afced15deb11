"""Versions of any text and any number: one space each, a total order within it, never one across."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cannlm.compat.versions import Pair, Version, compare, parse, translate


def numbers(most: int, least: int = 0) -> st.SearchStrategy[str]:
    return st.integers(least, most).map(str)


def dotted(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(".".join)


three_digits = st.integers(0, 999).map("{:03}".format)
pre_release = st.tuples(st.sampled_from(["RC", "alpha", "beta"]), numbers(999, 1)).map("".join)

SPACES = {
    "build": dotted(numbers(99, 1), numbers(999), numbers(999), numbers(9)),
    "ascend-internal": dotted(
        numbers(99, 1),
        numbers(99),
        st.tuples(st.sampled_from(["", "T"]), numbers(99)).map("".join),
        numbers(99),
        st.tuples(st.sampled_from(["", "B"]), numbers(999)).map("".join),
    ),
    "public": st.one_of(
        dotted(numbers(99, 1), numbers(99)),
        dotted(numbers(99, 1), numbers(99), numbers(99)),
        dotted(numbers(99, 1), numbers(99), pre_release),
        dotted(numbers(99, 1), numbers(99), numbers(99), pre_release),
    ),
    "hiai": dotted(st.integers(1, 999).map("{:03}".format), three_digits, three_digits, three_digits),
    "ascend-release": st.tuples(*[st.integers(0, 999)] * 5).map(lambda part: "V{}R{}C{}SPC{}B{}".format(*part)),
}
pairs_of_spaces = st.sampled_from([(one, other) for one in SPACES for other in SPACES if one != other])


def of(space: str) -> st.SearchStrategy[Version]:
    return SPACES[space].map(parse)


@given(st.data(), st.sampled_from(sorted(SPACES)))
def test_a_version_is_read_into_its_space_and_comes_back(data: st.DataObject, space: str) -> None:
    text = data.draw(SPACES[space])
    version = parse(text)
    assert (version.space, version.known, str(version)) == (space, True, text)
    for spelling in (str(version), f" {text}.\n", text.upper(), text.lower()):
        again = parse(spelling)
        assert again == version
        assert hash(again) == hash(version)


@given(st.data(), st.sampled_from(sorted(SPACES)))
def test_the_order_within_a_space_is_total(data: st.DataObject, space: str) -> None:
    a, b, c = (data.draw(of(space)) for _ in range(3))
    assert [a < b, a == b, b < a].count(True) == 1
    assert (a <= b) == (a < b or a == b) == (b >= a)
    assert not (a < b and b < c) or a < c
    assert sorted([a, b, c]) == sorted([c, b, a])
    assert (hash(a) == hash(b)) or a != b


@given(st.data(), pairs_of_spaces)
def test_versions_of_two_spaces_are_never_compared_without_a_pair(data: st.DataObject, spaces: tuple[str, str]) -> None:
    one, other = (data.draw(of(space)) for space in spaces)
    assert one != other
    for question in (Version.__lt__, Version.__le__, Version.__gt__, Version.__ge__):
        with pytest.raises(TypeError):
            question(one, other)
    if translate(one, other.space) is None and translate(other, one.space) is None:
        assert compare(one, other).outcome == "unknown"


@given(st.data(), pairs_of_spaces)
def test_a_pair_joins_exactly_its_two_versions(data: st.DataObject, spaces: tuple[str, str]) -> None:
    one, other = (data.draw(of(space)) for space in spaces)
    pair = Pair(one.raw, other.raw, "drawn")
    assert translate(one, other.space, [pair]) == other
    assert translate(other, one.space, [pair]) == one
    without_npu = other.space == "hiai" and other.parts[1][1] < 100
    assert compare(one, other, extra=[pair]).outcome == ("unknown" if without_npu else "ok")


few = ["6.0.1.0", "6.1.1.0", "8.0.0", "8.1.RC1", "8.2.RC2", "7.6.0.1.220", "7.6.0.2.220", "7.7.0.1.238"]
few += ["7.7.T20.0.B210", "108.631.120.010", "108.631.120.011", "V100R001C20SPC001B251", "V100R001C23SPC002B210"]
some = st.sampled_from(few)


@given(some, some, st.lists(st.tuples(some, some), max_size=6))
def test_whether_two_versions_are_the_same_does_not_depend_on_who_asks(
    one: str, other: str, pairs: list[tuple[str, str]]
) -> None:
    there, back = (compare(parse(a), parse(b), extra=pairs).outcome for a, b in ((one, other), (other, one)))
    assert there == back
    if parse(one).space != parse(other).space and {(one, other), (other, one)} & set(pairs):
        assert there == "ok"
    if parse(one).space == parse(other).space:
        assert there == ("ok" if one == other else "mismatch")


@given(some, some, st.lists(st.tuples(some, some), max_size=4))
def test_a_window_takes_what_is_the_same(one: str, other: str, pairs: list[tuple[str, str]]) -> None:
    if compare(parse(one), parse(other), extra=pairs).outcome == "ok":
        assert compare(parse(one), parse(other), extra=pairs, policy="window").outcome == "ok"


@given(st.one_of(st.text(max_size=80), st.text("0123456789.VRCTBSP() ", max_size=80)))
def test_any_text_is_a_version_or_says_why_not(text: str) -> None:
    version = parse(text)
    assert version == parse(text)
    assert (version.complaint is None) is version.known
    if not version.known:
        assert compare(version, version).outcome == "unknown"
        assert compare(parse("6.1.1.0"), version).outcome == "unknown"
