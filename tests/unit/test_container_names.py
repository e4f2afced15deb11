"""Attribute names that are stored as indexes into tables."""

from pathlib import Path
from typing import Any

import pytest
from graphs import attributes, desc, graph, op, write

from pytest_cannlm.container.attrnames import NameTableError, NameTables, encode_key, tables_of
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import Attribute
from pytest_cannlm.container.writer import Partition

NAMES = ["dummy"] * 200
NAMES[3], NAMES[130], NAMES[5] = "index", "location", "_mbatch_origin_input_dims"
TABLES: dict[str, Attribute] = {
    "om_compress_version": 1,
    "attr_name_enum": NAMES,
    "attrs_use_string_value": [number == 130 for number in range(200)],
    "attr_value_enum": ["weight/a", "weight/b"],
}


@pytest.mark.parametrize(
    ("index", "key"), [(0, "0001"), (8, "0009"), (126, "007f"), (127, "000102"), (16129, "00010102")]
)
def test_keys_are_base_127_with_the_least_digit_first(index: int, key: str) -> None:
    assert encode_key(index).hex() == key
    tables = NameTables(tuple(map(str, range(20_000))))
    assert tables.name(bytes.fromhex(key)) == str(index)


@pytest.mark.parametrize("key", ["00", "0000", "0080", "000101010101", "0003"])
def test_keys_that_are_no_index_or_lie_outside_the_table(key: str) -> None:
    with pytest.raises(NameTableError):
        NameTables(("a", "b")).name(bytes.fromhex(key))


def test_values_that_are_indexes() -> None:
    tables = NameTables(("a", "b"), (True, False), ("x", "y"))
    assert tables.value(b"\0\1", 1) == "y"
    assert tables.value(b"\0\1", [1, 0]) == ["y", "x"]
    assert tables.value(b"\0\2", 1) == 1
    assert tables.value(b"a", 1) == 1
    assert tables.value(b"\0\1", "text") == "text"
    with pytest.raises(NameTableError, match="index 2 is outside attr_value_enum with its 2 entries"):
        tables.value(b"\0\1", 2)


def test_tables_are_there_only_if_the_model_says_so() -> None:
    assert tables_of({"attr_name_enum": ["a"]}) is None
    assert tables_of({"om_compress_version": 1}) is None
    assert tables_of({"om_compress_version": 1, "attr_name_enum": "a"}) == NameTables()


def model(*ops: bytes, tables: dict[str, Attribute] = TABLES) -> bytes:
    return graph(*ops) + attributes(tables)


FIRST = op("Data", "first", desc(33, 1, 1), attrs={encode_key(3): 0})
SECOND = op("Data", "second", desc(33, 1, 1), attrs={b"index": 1, encode_key(5): [4, 2]})


def names_of(facts: dict[str, Any]) -> list[str]:
    assert facts["error"] is None
    return [item["name"] for item in facts["inputs"]]


def test_inputs_are_ordered_by_a_compressed_index(tmp_path: Path) -> None:
    facts = describe(write(tmp_path / "m.om", [model(SECOND, FIRST)]))
    assert names_of(facts) == ["first", "second"]
    assert facts["inputs"][1]["shape"] == (4, 2)
    assert facts["notes"] == []


def test_compressed_text_is_looked_up(tmp_path: Path) -> None:
    weights = op("FileConstant", "w", attrs={encode_key(130): 1})
    facts = describe(write(tmp_path / "m.om", [model(weights)]))
    assert facts["external_weights"] == [{"file": "weight/b", "bytes": None}]


def test_index_outside_the_tables_costs_that_attribute_only(tmp_path: Path) -> None:
    lost = op("Data", "lost", desc(33, 1, 7), attrs={encode_key(999): 0, encode_key(130): 77})
    facts = describe(write(tmp_path / "m.om", [model(SECOND, lost)]))
    assert names_of(facts) == ["second", "lost"]
    assert facts["notes"] == [
        "attributes of ops that cannot be resolved: 2, the first: "
        "index 999 is outside attr_name_enum with its 200 entries (op 'lost')"
    ]


def test_without_tables_every_compressed_name_is_unresolved(tmp_path: Path) -> None:
    facts = describe(write(tmp_path / "m.om", [model(SECOND, FIRST, tables={})]))
    assert "cannot be resolved: 2" in facts["notes"][0]


def test_each_model_has_its_tables_and_else_those_of_the_first(tmp_path: Path) -> None:
    own = {**TABLES, "attr_name_enum": ["index"]}
    renamed = op("Data", "own", desc(33, 1, 1), attrs={encode_key(0): 9})
    models = [model(FIRST), model(SECOND, FIRST, tables={}), model(renamed, tables=own)]
    path = write(
        tmp_path / "m.om",
        [Partition(0, data, number) for number, data in enumerate(models)],
        HeaderFields(layout="A2", table_bits=64, model_num=3),
    )
    facts = describe(path)
    assert facts["notes"] == []
    assert [[item["name"] for item in one["inputs"]] for one in facts["models"]] == [
        ["first"],
        ["first", "second"],
        ["own"],
    ]
    assert facts["models"][2]["inputs"][0]["index"] == 9
