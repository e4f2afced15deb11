"""Each error of the reader has a file that causes it; the file is made by the writer and then damaged in one place."""

import builtins
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HEADER_BYTES, HeaderFields
from pytest_cannlm.container.modeldef import encode_model_def
from pytest_cannlm.container.taskinfo import encode_task_info
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.errors import ContainerError

MODEL = encode_model_def(name="m", inputs=[], outputs=[], attrs={"atc_version": "6.1.1.0"}, weight_size=0)
WEIGHTS = bytes(range(64))
TASK = encode_task_info(10, ids=[3])

KIRIN = HeaderFields(layout="K", modeltype=4, name=b"m")
ASCEND = HeaderFields(layout="A2", table_bits=64, name=b"m", platform_version=b"1.11.z.0")

Damage = Callable[[bytearray], object]


def write(
    path: Path, header: HeaderFields = KIRIN, partitions: list[Partition] | None = None, damage: Damage | None = None
) -> Path:
    parts = partitions or [Partition(0, MODEL), Partition(1, WEIGHTS), Partition(2, TASK)]
    write_container(path, header=header, partitions=parts)
    if damage:
        data = bytearray(path.read_bytes())
        damage(data)
        path.write_bytes(data)
    return path


def put(offset: int, form: str, *values: int) -> Damage:
    return lambda data: struct.pack_into(form, data, offset, *values)


def entry32(index: int, form: str, *values: int) -> Damage:
    return put(HEADER_BYTES + 4 + 12 * index, form, *values)


def entry64(index: int, form: str, *values: int) -> Damage:
    return put(HEADER_BYTES + 8 + 24 * index, form, *values)


def rejected(path: Path) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        open_container(path)
    error = caught.value
    assert error.file == str(path)
    assert error.code == "OM_IO" or None not in (error.found, error.expected, error.remedy)
    return error


def test_missing_file(tmp_path: Path) -> None:
    error = rejected(tmp_path / "none.om")
    assert error.code == "OM_IO"
    assert "No such file" in error.message


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd.om"
    if kind == "folder":
        path.mkdir()
    elif hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        pytest.skip("this system has no named pipes")
    assert rejected(path).code == "OM_IO"


@pytest.mark.parametrize("target", ["link.om", "gone.om", "pipe"])
def test_link_to_no_file_is_named(tmp_path: Path, target: str) -> None:
    if target == "pipe":
        if not hasattr(os, "mkfifo"):
            pytest.skip("this system has no named pipes")
        os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "link.om"
    try:
        link.symlink_to(tmp_path / target)
    except OSError:
        pytest.skip("this system makes no links")
    assert rejected(link).code == "OM_IO"


def test_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.om")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    error = rejected(path)
    assert (error.code, error.message) == ("OM_IO", "cannot read the file: Permission denied")


def test_name_with_a_nul_byte() -> None:
    with pytest.raises(ContainerError, match="not a path") as caught:
        open_container("bad\0name.om")
    assert caught.value.code == "OM_IO"


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.touch()
    assert rejected(path).code == "OM_EMPTY"


def test_custom_data_prefix_says_where_the_header_starts(tmp_path: Path) -> None:
    model = write(tmp_path / "m.om").read_bytes()
    prefix = b"CUST" + struct.pack("<i", 5) + struct.pack("<i", 2) + b"ab" + struct.pack("<i", 3) + b"xyz"
    path = tmp_path / "cust.om"
    path.write_bytes(prefix + model)
    error = rejected(path)
    assert error.code == "OM_CUSTOM_DATA_PREFIX"
    assert f"at byte {len(prefix)}" in error.message


@pytest.mark.parametrize("rest", [b"", b"\xff" * 40, b"\0\0\0\0\xff\xff\xff\x7f" * 4])
def test_custom_data_prefix_without_a_header_behind_it(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "cust.om"
    path.write_bytes(b"CUST" + rest)
    error = rejected(path)
    assert error.code == "OM_CUSTOM_DATA_PREFIX"
    assert "no IMOD header" in error.message


def test_zip_package(tmp_path: Path) -> None:
    path = tmp_path / "m.om2"
    path.write_bytes(b"PK\x03\x04" + bytes(300))
    assert rejected(path).code == "OM2_ZIP"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 987654321\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (b"\n <html>", "HTML page"),
        (b"\x1f\x8b\x08\x00" + bytes(300), "gzip"),
        (b"\x7fELF" + bytes(300), "ELF"),
        (b"GGUF" + bytes(300), "GGUF"),
        (b"\x18\0\0\0MSL2" + bytes(300), "MindSpore"),
        (b"\x0a\x05model" + bytes(300), "protobuf"),
        (b"DOMI" + bytes(300), "unknown"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(content)
    error = rejected(path)
    assert error.code == "OM_BAD_MAGIC"
    assert what in error.message
    assert content[:4].hex() in str(error.found)


@pytest.mark.parametrize("have", [1, 4, 100, 255])
def test_file_that_ends_in_its_header(tmp_path: Path, have: int) -> None:
    path = write(tmp_path / "m.om")
    path.write_bytes(path.read_bytes()[:have])
    error = rejected(path)
    assert error.code == "OM_TRUNCATED_HEADER"
    assert f"{have} bytes" in str(error)
    assert "256" in str(error)


@pytest.mark.parametrize(
    ("header", "damage", "code", "shown"),
    [
        (KIRIN, put(4, "<I", 128), "OM_BAD_HEADER", "128"),
        (KIRIN, put(8, "<I", 0x30000000), "OM_UNSUPPORTED_CONTAINER", "0x30000000"),
        (KIRIN, put(80, "B", 1), "OM_ENCRYPTED", "is_encrypt"),
        (KIRIN, lambda data: data.__delitem__(slice(-20, None)), "OM_TRUNCATED", "TASK_INFO is cut"),
        (KIRIN, put(76, "<I", 0xFFFFFFFF), "OM_TRUNCATED", "4294967295"),
        (KIRIN, lambda data: data.extend(bytes(9)), "OM_LENGTH_MISMATCH", "9 trailing bytes"),
        (KIRIN, put(76, "<I", 50), "OM_LENGTH_MISMATCH", "length field is wrong"),
        (KIRIN, put(HEADER_BYTES, "<I", 0), "OM_BAD_PARTITION_TABLE", "0 partitions"),
        (KIRIN, put(HEADER_BYTES, "<I", 36), "OM_BAD_PARTITION_TABLE", "1..35"),
        (KIRIN, put(HEADER_BYTES, "<I", 35), "OM_BAD_PARTITION_TABLE", "a table of 424 bytes"),
        (ASCEND, put(HEADER_BYTES, "<I", 65), "OM_BAD_PARTITION_TABLE", "1..64"),
        (ASCEND, entry64(1, "<I4xQQ", 1, 0x200, (1 << 64) - 256), "OM_PARTITION_OVERFLOW", "size 18446744073709551360"),
        (ASCEND, entry64(1, "<I4xQQ", 1, 1 << 40, 4), "OM_PARTITION_OUT_OF_RANGE", "WEIGHTS_DATA"),
        (KIRIN, entry32(1, "<III", 1, 0x7FFFFFF0, 4), "OM_PARTITION_OUT_OF_RANGE", "offset 2147483632, size 4"),
        (KIRIN, entry32(1, "<III", 1, 10, 4), "OM_PARTITION_OVERLAP", "[0, 1] (MODEL_DEF, WEIGHTS_DATA) share 4 bytes"),
        (KIRIN, entry32(1, "<III", 1, len(MODEL), 60), "OM_PARTITION_GAP", "4 bytes before partition TASK_INFO"),
        (KIRIN, entry32(2, "<III", 2, len(MODEL) + 64, 60), "OM_PARTITION_GAP", "belong to no partition"),
        (KIRIN, entry32(0, "<I", 99), "OM_NO_MODEL_DEF", "[99, 1, 2]"),
    ],
)  # fmt: skip
def test_one_damage_gives_one_name(tmp_path: Path, header: HeaderFields, damage: Damage, code: str, shown: str) -> None:
    error = rejected(write(tmp_path / "m.om", header, damage=damage))
    assert error.code == code
    assert shown in str(error)


@pytest.mark.parametrize(("first", "second"), [("6.1.1.0", "6.0.1.0"), ("6.0.1.0", "6.1.1.0"), ("6.1.1.0", "6.1.1.0")])
def test_two_models_where_the_header_declares_one(tmp_path: Path, first: str, second: str) -> None:
    models = [
        encode_model_def(name="m", inputs=[], outputs=[], attrs={"atc_version": version}, weight_size=0)
        for version in (first, second)
    ]
    parts = [*(Partition(0, model) for model in models), Partition(2, TASK)]
    error = rejected(write(tmp_path / "m.omc", KIRIN, parts))
    assert error.code == "OM_TWO_MODEL_DEFS"
    assert "[0, 1]" in str(error)
    several = HeaderFields(layout="K", modeltype=9, multi_shape_gears=2)
    assert len(open_container(write(tmp_path / "m.omc", several, parts)).partitions) == 3
    beside_an_empty_one = [Partition(0, b""), Partition(0, models[0]), Partition(2, TASK)]
    assert open_container(write(tmp_path / "m.omc", KIRIN, beside_an_empty_one)).attributes() == {"atc_version": first}


def test_the_first_broken_rule_gives_the_name(tmp_path: Path) -> None:
    def everything(data: bytearray) -> None:
        put(HEADER_BYTES, "<I", 0)(data)
        put(76, "<I", 0xFFFFFFF0)(data)
        put(80, "B", 1)(data)

    assert rejected(write(tmp_path / "m.om", damage=everything)).code == "OM_ENCRYPTED"


@pytest.mark.parametrize("wrapped", [True, False])
def test_kirin_file_beyond_4_gib_is_a_limit_not_a_corruption(tmp_path: Path, wrapped: bool) -> None:
    path = write(tmp_path / "m.omc")
    size = (1 << 32) + 300_000_000
    with path.open("r+b") as file:
        if wrapped:
            file.seek(76)
            file.write(struct.pack("<I", (size - HEADER_BYTES) & 0xFFFFFFFF))
        file.truncate(size)
    error = rejected(path)
    assert error.code == "OM_OVER_4GIB"
    assert "Kirin's limit of 4 GiB" in error.message
    assert "external weights" in str(error)


def test_two_models_whose_groups_end_early(tmp_path: Path) -> None:
    header = HeaderFields(layout="A2", table_bits=64, model_num=2)
    parts = [Partition(0, MODEL, 0), Partition(1, WEIGHTS, 0), Partition(0, MODEL, 1), Partition(1, WEIGHTS, 1)]
    path = write(tmp_path / "m.om", header, parts)
    assert [len(model) for model in open_container(path).models] == [2, 2]
    second = HEADER_BYTES + 8 + 48 + len(MODEL) + 64
    error = rejected(write(path, header, parts, damage=put(second + 8 + 24, "<I4xQQ", 1, len(MODEL), 60)))
    assert error.code == "OM_PARTITION_GAP"
    assert "4 bytes at the end" in error.message


def test_absurd_number_of_models_is_bounded(tmp_path: Path) -> None:
    error = rejected(write(tmp_path / "m.om", ASCEND, damage=put(156, "<I", 0xFFFFFFFF)))
    assert error.code == "OM_BAD_PARTITION_TABLE"
    assert error.field == "model_num"


def test_number_of_partitions_of_a_file_is_bounded(tmp_path: Path) -> None:
    header = HeaderFields(layout="A2", table_bits=64, model_num=300)
    rows = [Partition(kind, MODEL if kind == 0 else b"", model) for model in range(300) for kind in (0, *[1] * 60)]
    error = rejected(write(tmp_path / "m.om", header, rows))
    assert error.code == "OM_BAD_PARTITION_TABLE"
    assert "at most 16384 in a file" in str(error)


@pytest.mark.parametrize(
    "model_def",
    [
        b"\xff" * 50,
        b"\x0b\x0c",  # a group, which proto3 does not have
        b"\x3a\xff\xff\xff\xff\x07",  # a graph longer than the file
        b"\x00\x01",  # field number 0
        b"\x0a\x01m",  # no graph
        b"\x08\x01" * 70_000,  # more fields than any model
        b"\x08" + b"\xff" * 9 + b"\x7f",  # a number beyond 64 bits
        b"\x3a\x00\x5a\x06\x0a\x01a\x12\x7f\x00",  # a map entry whose value runs out of it
    ],
)
def test_unreadable_model_def(tmp_path: Path, model_def: bytes) -> None:
    container = open_container(write(tmp_path / "m.om", partitions=[Partition(0, model_def)]))
    with pytest.raises(ContainerError) as caught:
        container.attributes()
    assert caught.value.code == "OM_MODEL_DEF_UNREADABLE"
    assert f"{len(model_def)} bytes" in str(caught.value)


@pytest.mark.parametrize(
    "task",
    [
        TASK + b"\x01",  # stray bytes behind the block
        TASK[:8] + struct.pack("<I", 16) + TASK[12:],  # block shorter than its head
        TASK[:8] + struct.pack("<I", 1 << 30) + TASK[12:],  # block longer than the partition
        TASK[:36] + struct.pack("<I", 7) + TASK[40:],  # record shorter than its head
        TASK[:36] + struct.pack("<I", 1 << 31) + TASK[40:],  # record past the block
        TASK[:-20] + bytes(4) + TASK[-16:],  # COMPATIBLE_V2 with another magic
        TASK[:-8] + struct.pack("<I", 0x40000000) + TASK[-4:],  # too many ids
    ],
)
def test_broken_task_info_leaves_other_facts(tmp_path: Path, task: bytes) -> None:
    parts = [Partition(0, MODEL), Partition(2, task)]
    container = open_container(write(tmp_path / "m.omc", partitions=parts))
    with pytest.raises(ContainerError) as caught:
        container.kirin_platform()
    assert caught.value.code == "OM_BAD_TLV"
    assert container.attributes() == {"atc_version": "6.1.1.0"}
    described = describe(tmp_path / "m.omc")
    assert (described["error"], described["atc_version"], described["inputs"]) == ("OM_BAD_TLV", "6.1.1.0", [])
    assert described["found"].endswith(f"bytes at offset {container.partitions[1].start}")
    assert "records" in described["expected"]


def test_read_limit_holds_over_all_reads(tmp_path: Path) -> None:
    attrs = {f"a{i}": "x" * 900 for i in range(200)}
    big = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=0)
    container = open_container(write(tmp_path / "m.om", partitions=[Partition(0, big)]), read_limit=4096)
    with pytest.raises(ContainerError) as caught:
        container.attributes()
    assert caught.value.code == "OM_READ_LIMIT"
    assert container.bytes_read <= 4096
