"""Versions: number spaces, order, pairs, and the three policies."""

import json
from pathlib import Path

import pytest

from pytest_cannlm.compat import versions
from pytest_cannlm.compat.versions import Pair, Policy, compare, parse, translate


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("6.1.1.0", "build"),
        ("9.0.0", "public"),
        ("8.0.RC2.alpha001", "public"),
        ("8.0", "public"),
        ("8.0.T63", "public"),
        ("8.5.0.rc001", "public"),
        ("7.6.0.1.220", "ascend-internal"),
        ("7.6.T13.0.B094", "ascend-internal"),
        ("8.2.0.0.201.", "ascend-internal"),
        ("108.631.120.010", "hiai"),
        ("hiaiversion 100.320.011.019", "hiai"),
        ("0.0.0", "unset"),
        ("0.0.0.0", "unset"),
        ("", "unknown"),
        ("24", "api-level"),
        ("API level 24", "api-level"),
        ("6.1.0.135", "harmonyos"),
        ("5.0.0.60", "harmonyos"),
        ("OpenHarmony-6.1.1.120", "harmonyos"),
        ("5.0.0.102(SP6C00E102R4P7)", "harmonyos"),
        ("V100R001C23SPC002B210", "ascend-release"),
        ("V100R001C15", "ascend-release"),
        ("V100R001C23SPC002B210x", "unknown"),
        ("6.1.1.x", "unknown"),
        ("٦.1.1.0", "unknown"),
        ("9" * 5000 + ".1", "unknown"),
    ],
)
def test_number_space(text: str, space: str) -> None:
    assert parse(text).space == space
    assert parse(text).known is (space not in ("unset", "unknown", "api-level", "harmonyos"))
    assert (parse(text).complaint is None) is parse(text).known


@pytest.mark.parametrize(
    "ascending",
    [
        ["5.1.1.1", "6.0.1.0", "6.1.1.0", "6.10.0.0"],
        ["7.6.T11.0.B080", "7.6.T13.0.B094", "7.6.0.1.220", "7.7.T20.0.B210", "8.2.0.2.220"],
        ["7.0.0", "8.0.T63", "8.0.RC1", "8.0.RC2.alpha001", "8.0.RC2", "8.0.0.alpha003", "8.0.0", "8.0.1", "8.1.RC1"],
        ["V100R001C15", "V100R001C23", "V100R001C23SPC002B208", "V100R001C23SPC002B210", "V100R002C01"],
        ["100.320.011.019", "108.600.010.010", "108.631.120.010"],
    ],
)
def test_order_within_a_space(ascending: list[str]) -> None:
    assert [version.raw for version in sorted(map(parse, reversed(ascending)))] == ascending


def test_equality_is_of_numbers_not_of_text() -> None:
    assert parse("8.0") == parse("8.0.0")
    assert parse("hiaiversion 108.631.120.010") == parse("108.631.120.010")
    assert parse("8.0.0") != parse("8.0.0.1.2")
    assert hash(parse("8.0")) == hash(parse("8.0.0"))
    assert parse("8.0") != "8.0"


def test_a_dot_at_the_end_is_not_shown() -> None:
    assert [str(parse(text)) for text in ("8.5.0.0.201.", "8.5.0.", "V100R001C15.", "?.")] == [
        *("8.5.0.0.201", "8.5.0", "V100R001C15", "?."),
    ]


def test_what_is_no_version_equals_only_the_same_text_and_has_no_order() -> None:
    assert parse("?") == parse("?")
    assert parse("?") != parse("??")
    assert parse("24") != parse("25")
    for text in ("?", "24", "6.1.0.135", "0.0.0"):
        with pytest.raises(TypeError):
            _ = parse(text) <= parse(text + "0")


@pytest.mark.parametrize(
    ("text", "what"), [("24", "an API level"), ("6.1.0.135", "HarmonyOS system software"), ("0.0.0.0", "is unset")]
)
def test_what_is_no_cann_version_is_called_what_it_looks_like(text: str, what: str) -> None:
    for build, device in ((text, "6.1.1.0"), ("6.1.1.0", text)):
        comparison = compare(parse(build), parse(device))
        assert comparison.outcome == "unknown"
        assert what in comparison.rule


def test_a_device_that_says_that_it_has_no_npu_is_not_compared() -> None:
    extra = [("6.1.1.0", "108.031.120.010")]
    comparison = compare(parse("6.1.1.0"), parse("108.031.120.010"), extra=extra)
    assert comparison.outcome == "unknown"
    assert "no NPU" in comparison.rule


@pytest.mark.parametrize(("one", "other"), [("6.1.1.0", "7.6.0.1.220"), ("6.1.1.0", "108.631.120.010"), ("?", "?")])
def test_comparing_across_spaces_is_a_type_error(one: str, other: str) -> None:
    with pytest.raises(TypeError, match="count different things"):
        _ = parse(one) < parse(other)


def test_pairs_join_spaces_both_ways_and_users_can_add_some() -> None:
    assert translate(parse("7.6.0.1.220"), "public") == parse("8.0.0")
    assert translate(parse("8.0.0"), "ascend-internal") == parse("7.6.0.1.220")
    assert translate(parse("8.0.0"), "public") == parse("8.0.0")
    device = parse("108.631.120.010")
    assert translate(device, "build") is None
    assert translate(device, "build", [("6.1.1.0", "108.631.120.010")]) == parse("6.1.1.0")


def test_pairs_are_followed_over_several_spaces() -> None:
    extra = [Pair("108.631.120.010", "8.0.0", "one"), Pair("V100R001C20SPC001B251", "108.631.120.010", "two")]
    assert translate(parse("V100R001C20SPC001B251"), "ascend-internal", extra) == parse("7.6.0.1.220")
    assert translate(parse("V100R001C20SPC001B252"), "ascend-internal", extra) is None


def test_the_rule_names_the_pairs_that_it_rests_on_and_their_sources() -> None:
    extra = [
        Pair("6.1.1.0", "108.631.120.010", "bench.toml: read on the bench"),
        Pair("8.0.0", "100.320.011.019", "no"),
    ]
    for build, outcome in (("6.1.1.0", OK), ("6.0.1.0", BAD)):
        comparison = compare(parse(build), parse("108.631.120.010"), extra=extra)
        assert comparison.outcome == outcome
        assert comparison.rule.endswith("6.1.1.0 = 108.631.120.010 by bench.toml: read on the bench")
    assert "version.cfg of an installation" in compare(parse("7.6.0.1.220"), parse("8.0.0")).rule
    assert " by " not in compare(parse("6.1.1.0"), parse("6.1.1.0")).rule.partition("same version")[2]


OK, BAD, UNKNOWN = "ok", "mismatch", "unknown"


@pytest.mark.parametrize(
    ("build", "device", "exact", "window"),
    [
        ("8.0", "8.0", OK, OK),
        ("7.0", "8.0", BAD, OK),
        ("7.0", "8.1.RC1", BAD, BAD),
        ("6.0", "8.0", BAD, BAD),
        ("8.2", "8.0", BAD, BAD),
        ("what?", "8.0", UNKNOWN, UNKNOWN),
        ("8.0", "what?", UNKNOWN, UNKNOWN),
        ("0.0.0", "8.0", UNKNOWN, UNKNOWN),
        ("8.0", "0.0.0", UNKNOWN, UNKNOWN),
        ("6.1.1.0", "6.1.1.0", OK, OK),
        ("6.0.1.0", "6.1.1.0", BAD, OK),
        ("6.1.1.0", "6.0.1.0", BAD, BAD),
        ("6.1.1.0", "108.631.120.010", UNKNOWN, UNKNOWN),
        ("6.1.1.0", "8.0.0", UNKNOWN, UNKNOWN),
        ("7.6.0.1.220", "8.0.0", OK, OK),
        ("7.3.0.1.231", "8.0.0", BAD, OK),
        ("7.3.0.1.231", "7.6.0.1.220", BAD, OK),
        ("9.9.0.1.220", "7.6.0.1.220", BAD, BAD),
        ("7.3.0.1.231", "7.6.0.9.999", BAD, UNKNOWN),
        ("7.3.0.9.999", "8.0.0", UNKNOWN, UNKNOWN),
        ("8.3.RC1", "12.0.0", BAD, UNKNOWN),
        ("7.0.0", "12.0.0", BAD, BAD),
        ("6.0.1", "8.0.RC1", BAD, UNKNOWN),
    ],
)
def test_policies(build: str, device: str, exact: str, window: str) -> None:
    for policy, outcome in (("exact", exact), ("window", window), ("off", "off")):
        comparison = compare(parse(build), parse(device), policy=_policy(policy))
        assert (policy, comparison.outcome) == (policy, outcome)
        assert comparison.rule.startswith(f"policy {policy}")


@pytest.mark.parametrize(
    ("build", "device", "outcome"),
    [("6.0", "8.0", BAD), ("5.0.4", "6.0.1", BAD), ("5.0.4", "6.0.0", UNKNOWN), ("7.0", "8.0", OK)],
)
def test_dynamic_shapes_of_before_the_floor(build: str, device: str, outcome: str) -> None:
    assert compare(parse(build), parse(device), policy="window", dynamic=True).outcome == outcome


def test_extra_pair_decides_exactly() -> None:
    extra = [("6.1.1.0", "108.631.120.010")]
    device = parse("108.631.120.010")
    assert compare(parse("6.1.1.0"), device, extra=extra).outcome == OK
    assert compare(parse("6.0.1.0"), device, extra=extra).outcome == BAD
    assert compare(parse("6.0.1.0"), device, extra=extra, policy="window").outcome == OK
    assert compare(parse("6.0.1.0"), parse("108.631.120.011"), extra=extra).outcome == UNKNOWN


@pytest.mark.parametrize(
    ("one", "other", "outcome"),
    [
        ("8.1.RC1", "7.7.0.1.238", OK),
        ("8.1.RC1", "7.7.T20.0.B210", OK),
        ("8.0.0", "7.6.0.2.220", UNKNOWN),
        ("8.3.RC1", "8.3.0.1.201", UNKNOWN),
        ("8.0.0", "7.3.0.1.231", BAD),
        ("7.7.T20.0.B210", "7.7.0.1.238", BAD),
    ],
)
def test_a_release_may_have_builds_that_the_list_lacks(one: str, other: str, outcome: str) -> None:
    assert compare(parse(one), parse(other)).outcome == outcome
    assert compare(parse(other), parse(one)).outcome == outcome


def test_a_toolkit_may_have_devices_that_the_list_lacks() -> None:
    extra = [("6.1.1.0", "108.631.120.010")]
    assert compare(parse("6.1.1.0"), parse("108.631.120.011"), extra=extra).outcome == UNKNOWN


def test_of_two_toolkits_for_one_device_both_fit() -> None:
    extra = [("6.1.1.0", "108.631.120.010"), ("6.0.1.0", "108.631.120.010")]
    device = parse("108.631.120.010")
    for policy in ("exact", "window"):
        fits = [compare(parse(build), device, policy=_policy(policy), extra=extra) for build in ("6.0.1.0", "6.1.1.0")]
        assert [fit.outcome for fit in fits] == [OK, OK]
    assert compare(parse("5.1.1.1"), device, extra=extra).outcome == BAD


def test_two_builds_of_one_release_are_two_versions() -> None:
    extra = [("V100R001C20SPC001B251", "7.6.0.2.220"), ("7.6.0.2.220", "8.0.0")]
    found = compare(parse("V100R001C20SPC001B251"), parse("7.6.0.1.220"), extra=extra)
    assert (found.outcome, len(found.rule.split("; "))) == (BAD, 2)


def test_every_line_of_the_data_has_a_source() -> None:
    data = json.loads(Path(versions.__file__).with_name("versions.json").read_text(encoding="utf-8"))
    for entry in (*data["pairs"], *data["releases"], data["window"], data["dynamic_floor"]):
        assert len(entry["source"]) >= len("reported")
    for entry in data["pairs"]:
        internal, public = map(parse, entry["versions"])
        assert (internal.space, public.space) == ("ascend-internal", "public")
    for entry in data["releases"]:
        listed = [parse(text) for text in entry["versions"]]
        assert listed == sorted(listed)
        assert {version.space for version in listed} == {entry["space"]}


def _policy(name: str) -> Policy:
    assert name in ("exact", "window", "off")
    return name  # type: ignore[return-value]
