"""The table itself: complete, one sentence each, nothing that a line could make slow."""

import re

import pytest

from pytest_cannlm.explain import explain_text
from pytest_cannlm.explain.causes import Causes, causes

FAMILIES = {
    "OH_NN": [*range(15)],
    "LLM engine": [*range(14), 19],
    "aclError": [
        *range(100000, 100007), *range(100011, 100019), 200000, 200001, 200003, 200006, 300000,
        *range(500000, 500006),
    ],
    "GE": [
        145000, 145001, 145002, 145003, 145006, 145007, 145009, 145020, 145021, 145022, 245000, 345104,
        *range(545000, 545006), 545601,
    ],
}  # fmt: skip
"""Codes that the published tables of each family hold."""


@pytest.fixture(scope="module")
def table() -> Causes:
    return causes()


@pytest.mark.parametrize("family", FAMILIES)
def test_published_codes_are_in_the_table(table: Causes, family: str) -> None:
    codes = [known.code for known in table.codes if known.family == family]
    assert codes == [str(code) for code in FAMILIES[family]]


def test_nothing_is_said_twice(table: Causes) -> None:
    codes = [(known.family, known.code) for known in table.codes]
    patterns = [known.pattern for known in table.texts]
    assert len(set(codes)) == len(codes)
    assert len(set(patterns)) == len(patterns)


def test_every_entry_belongs_to_a_family_and_every_family_has_entries(table: Causes) -> None:
    assert {known.family for known in (*table.codes, *table.texts)} == set(table.families)
    assert all(family.title and family.source for family in table.families.values())


def test_cause_and_next_step_are_one_sentence_each(table: Causes) -> None:
    for known in (*table.codes, *table.texts):
        for sentence in (known.cause, known.next):
            assert re.fullmatch(r"[A-Z].*[^.]", sentence), sentence
            assert ". " not in sentence
            assert "\n" not in sentence


def test_every_repetition_has_a_bound(table: Causes) -> None:
    expressions = [regex for regex, _ in table.expressions]
    expressions += [item for known in (*table.codes, *table.texts) for item in known.items]
    for expression in expressions:
        bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", expression.pattern)
        assert not re.search(r"[*+]|\{\d*,\}", bare), expression.pattern


def test_every_literal_text_is_found_as_what_it_is(table: Causes) -> None:
    for known in table.literals:
        found = explain_text([f"E/TAG  file.cpp({known.pattern})"])
        expected = [] if known.harmless else [None] if known.noise else [known.cause]
        assert [each.cause for each in found] == expected, known.pattern


def test_only_what_says_nothing_of_trouble_can_be_harmless(table: Causes) -> None:
    assert all(known.noise and not known.summary for known in table.texts if known.harmless)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("partition type NPU:0, CPU:1", "Part of the graph runs on the CPU"),
        (
            "simulated engine: num_hidden_layers of executor.json do not fit: 3 layers, expected 2 layers",
            "The executor.json does not describe the model beside it",
        ),
        ("partition type NPU:12, CPU:3", "Part of the graph runs on the CPU"),
        ("HcsCompiledModelPreLoadProcess: false", "The compiled model does not fit the device"),
        ("partition type NPU:1, CPU:0", None),
        ("quant done !!!", None),
        ("weight quant done!!!", None),
        ("E/TE te_fusion load failed", None),
        ("E/RL cannot load librl_search.so: error", None),
        ("[ERROR] load /x/librl_search.so failed", None),
        ("E/RL librl_search.so: cannot open shared object file", None),
        ("ModuleNotFoundError: No module named 'te_fusion'", None),
        ("isKvCacheMerge && GetKvCacheLenNum(i) > 1: !configOptionList_[i].isKvCacheMerge", "The executor.json names"),
        ("LoadPrivateWeight(419): weightFileSize - constSize >= variableSize false", "A weight file is shorter"),
        ("LoadPrivateWeight(419): done", None),
        ("Unknown operation command...", "The command is unknown"),
        ("[Empty]", "There is nothing to list"),
        ("[Empty]\thdc", "There is nothing to list"),
        ("the list is [Empty] now", None),
    ],
)
def test_texts_with_gaps_are_found(line: str, cause: str | None) -> None:
    found = explain_text([line])
    assert len(found) == (cause is not None)
    assert cause is None or found[0].cause.startswith(cause)
