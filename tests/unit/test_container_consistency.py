"""What a model says of itself and contradicts is noted."""

from pathlib import Path

import pytest
from graphs import attributes, graph, op, write

from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import Attribute
from pytest_cannlm.container.writer import Partition

COMPILED = HeaderFields(layout="K", modeltype=4)


def notes(path: Path, attrs: dict[str, Attribute]) -> list[str]:
    facts = describe(write(path / "m.om", [graph() + attributes(attrs), Partition(1, b"1234"), Partition(2, b"`\x01")]))
    assert facts["error"] is None
    return list(facts["notes"])


@pytest.mark.parametrize(
    ("attrs", "note"),
    [
        ({"om_info_list": [4, 0, 0, 3]}, "om_info_list says 3 bytes of TASK_INFO, the partition table 2"),
        ({"om_info_list": [4, 9, 0, 2, 0]}, "om_info_list says 9 bytes of TBE_KERNELS, the partition table 0"),
    ],
)
def test_contradiction_is_noted(tmp_path: Path, attrs: dict[str, Attribute], note: str) -> None:
    (found,) = notes(tmp_path, attrs)
    assert note in found


@pytest.mark.parametrize(
    "attrs",
    [
        {"om_info_list": [4, 0, 0, 2]},
        {"om_info_list": "text"},
    ],
)
def test_agreement_is_not_noted(tmp_path: Path, attrs: dict[str, Attribute]) -> None:
    assert notes(tmp_path, attrs) == []


def compiled(task_size: int | None, weight_size: int, *, task_offset: int = 0) -> bytes:
    attrs: dict[str | bytes, Attribute] = {"graphop_weight_size": weight_size, "graphop_task_offset": task_offset}
    if task_size is not None:
        attrs["graphop_task_size"] = task_size
    return op("GraphOp", "SubGraph_0", attrs=attrs)


@pytest.mark.parametrize(
    ("ops", "weights", "expected"),
    [
        ([compiled(2, 4)], b"1234", []),
        ([compiled(None, 4)], b"1234", []),
        ([compiled(2, 9)], b"", []),  # outside the file
        ([compiled(1, 4)], b"1234", ["SubGraph_0 takes 1 task bytes, the partition has 2"]),
        ([compiled(2, 5)], b"1234", ["SubGraph_0 takes weight bytes 0 to 5, the partition has 4"]),
        ([compiled(1, 4), compiled(1, 4, task_offset=1)], b"1234", []),
        (
            [compiled(9, 4), compiled(8, 4), compiled(7, 4)],
            b"1234",
            ["SubGraph_0 takes task bytes 0 to 9, the partition has 2, and 2 more"],
        ),
        (
            [compiled(1, 4), compiled(1, 4, task_offset=-1)],
            b"1234",
            ["SubGraph_0 takes task bytes -1 to 0, the partition has 2"],
        ),
    ],
)
def test_slices_of_a_compiled_model(tmp_path: Path, ops: list[bytes], weights: bytes, expected: list[str]) -> None:
    parts = [graph(*ops), Partition(1, weights), Partition(2, b"`\x01")]
    facts = describe(write(tmp_path / "m.omc", parts, COMPILED))
    assert [note for note in facts["notes"] if "empty" not in note] == expected


def test_slices_are_not_judged_where_there_is_a_partition_per_shape(tmp_path: Path) -> None:
    parts = [graph(compiled(9, 9)), *(Partition(kind, b"1") for kind in (1, 1, 2, 2))]
    facts = describe(write(tmp_path / "m.omc", parts, COMPILED))
    assert facts["notes"] == []
    assert facts["graph_ops"][0]["weight_bytes"] == 9


def test_notes_of_several_models_say_which(tmp_path: Path) -> None:
    odd = attributes({"om_info_list": [9]})
    parts = [Partition(0, graph()), Partition(0, graph() + odd, 1)]
    facts = describe(write(tmp_path / "m.om", parts, HeaderFields(layout="A2", table_bits=64, model_num=2)))
    assert facts["notes"][0].startswith("model 1: om_info_list")


def test_long_attributes_are_shortened_and_too_many_are_counted(tmp_path: Path) -> None:
    attrs: dict[str, Attribute] = {f"n{number:03}": number for number in range(510)}
    attrs |= {"a_text": "x" * 1000, "a_list": list(range(100)), "a_blob": bytes(100), "a_names": ["y" * 100]}
    facts = describe(write(tmp_path / "m.om", [graph() + attributes(attrs)]))
    shown = facts["attributes"]
    assert shown["a_text"] == "x" * 200 + "… (1000 characters)"
    assert shown["a_list"] == [*range(8), "… (100 items)"]
    assert shown["a_blob"] == "00" * 24 + "… (100 bytes)"
    assert shown["a_names"] == ["y" * 64 + "… (100 characters)"]
    assert len(shown) == 500
    assert facts["notes"] == ["attributes that are not shown: 14"]
