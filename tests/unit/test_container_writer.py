"""The writer: what it writes reads back, it refuses what no reader could take, and it leaves no half file behind."""

import struct
from pathlib import Path

import pytest

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HEADER_BYTES, HeaderFields, name_field
from pytest_cannlm.container.modeldef import TensorIO, encode_model_def, replace_attributes
from pytest_cannlm.container.source import FileSource
from pytest_cannlm.container.wire import WireError
from pytest_cannlm.container.writer import FileSlice, Partition, partitions_of, write_container
from pytest_cannlm.errors import ContainerError

MODEL = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=0)


def test_kirin_header_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.omc"
    size = write_container(
        path, header=HeaderFields(layout="K", modeltype=4, name=b"name"), partitions=[Partition(0, MODEL)]
    )
    raw = path.read_bytes()
    assert raw[:12] == b"IMOD" + struct.pack("<II", 256, 0x10000000)
    assert struct.unpack_from("<I", raw, 76) == (size - 256,)
    assert raw[82] == 4
    assert raw[84:116] == b"name" + bytes(28)
    assert struct.unpack_from("<I", raw, 152) == (2,)
    assert raw[256:272] == struct.pack("<IIII", 1, 0, 0, len(MODEL))
    assert raw[272:] == MODEL


@pytest.mark.parametrize(("bits", "length", "model_length"), [(32, 1, 0), (64, 0, 1)])
def test_ascend_says_its_size_where_its_table_width_is_told(
    tmp_path: Path, bits: int, length: int, model_length: int
) -> None:
    path = tmp_path / "m.om"
    header = HeaderFields(layout="A2", table_bits=64 if bits == 64 else 32, platform_version=b"1.11.z.0")
    payload = write_container(path, header=header, partitions=[Partition(0, MODEL)]) - HEADER_BYTES
    read = open_container(path).header
    assert (read.length, read.model_length) == (payload * length, payload * model_length)
    assert read.table_bits == bits


def test_empty_and_repeated_partitions_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "m.omc"
    parts = [Partition(0, MODEL), Partition(1, b""), Partition(2, b"ab"), Partition(1, b"xyz"), Partition(77, b"?")]
    write_container(path, header=HeaderFields(layout="K"), partitions=parts)
    container = open_container(path)
    assert [(p.type, container.read(p)) for p in container.partitions] == [(p.type, p.data) for p in parts]
    assert container.notes == (
        "model 0 partition 4 has unknown type 77",
        "model 0 partition 1 (WEIGHTS_DATA) is empty",
    )


def test_contents_come_from_files(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_bytes(bytes(range(100)))
    path = tmp_path / "m.om"
    parts = [Partition(0, MODEL), Partition(1, source), Partition(2, FileSlice(source, 10, 5))]
    write_container(path, header=HeaderFields(layout="K"), partitions=parts)
    container = open_container(path)
    assert container.read(container.partitions[1]) == bytes(range(100))
    assert container.read(container.partitions[2]) == bytes(range(10, 15))


def test_a_container_can_be_rewritten_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    write_container(path, header=HeaderFields(layout="K"), partitions=[Partition(0, MODEL)])
    before = path.read_bytes()
    container = open_container(path)
    write_container(path, header=container.header, partitions=partitions_of(container))
    assert path.read_bytes() == before


def test_more_than_4_gib_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    with weights.open("wb") as file:
        file.truncate(1 << 32)
    path = tmp_path / "m.omc"
    with pytest.raises(ContainerError, match="at most 4 GiB") as caught:
        write_container(path, header=HeaderFields(layout="K"), partitions=[Partition(1, weights)])
    assert caught.value.code == "OM_OVER_4GIB"
    wide = HeaderFields(layout="A2", table_bits=64)
    with pytest.raises(ContainerError, match="partition MODEL_DEF holds at most 4 GiB"):
        write_container(path, header=wide, partitions=[Partition(0, weights)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["weights"]


def test_nothing_is_left_when_a_source_is_shorter_than_it_was_said_to_be(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.write_bytes(b"1234")
    path = tmp_path / "m.om"
    path.write_bytes(b"old")
    with pytest.raises(ContainerError) as caught:
        write_container(path, header=HeaderFields(layout="K"), partitions=[Partition(1, FileSlice(source, 0, 9))])
    assert caught.value.code == "OM_IO"
    assert path.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "m.om"]


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="cannot write") as caught:
        write_container(tmp_path / "no" / "m.om", header=HeaderFields(layout="K"), partitions=[Partition(0, MODEL)])
    assert (caught.value.found, caught.value.remedy) == (f"no folder {tmp_path / 'no'}", "Create the folder")


def test_header_field_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="platform_version takes at most 20"):
        HeaderFields(layout="K", platform_version=b"x" * 21).pack(0)


def test_name_is_cut_between_characters() -> None:
    assert name_field("a" * 40) == b"a" * 31
    assert name_field("é" * 20) == ("é" * 15).encode()


def test_surplus_bytes_of_the_announced_size_are_custom_data(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    write_container(path, header=HeaderFields(layout="K", custom_data_len=5), partitions=[Partition(0, MODEL)])
    path.write_bytes(path.read_bytes() + b"12345")
    assert "5 bytes of custom data at the end of the file" in open_container(path).notes


@pytest.mark.parametrize(
    ("platform", "layout", "guessed"),
    [(b"1.11.z.0", "A1", False), (b"3.51.z.0", "K", False), (b"", "K", False), (b"9.9", "K", True)],
)
def test_layout_of_a_version_1_header_follows_its_platform(
    tmp_path: Path, platform: bytes, layout: str, guessed: bool
) -> None:
    path = tmp_path / "m.om"
    write_container(path, header=HeaderFields(layout="K", platform_version=platform), partitions=[Partition(0, MODEL)])
    container = open_container(path)
    assert container.layout == layout
    assert container.header.layout_guessed is guessed
    assert any("guess" in note for note in container.notes) is guessed


def test_odd_but_sound_headers_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    header = HeaderFields(layout="K", modeltype=13, checksum=b"\1", is_checksum=1, reserved=b"\2")
    write_container(path, header=header, partitions=[Partition(0, MODEL)])
    assert open_container(path).notes == (
        "model type 13 has no name",
        "the checksum field is not zero",
        "is_checksum is 1; it is 0 in every known file and no reader looks at it",
        "reserved header bytes are not zero",
    )
    assert describe(path)["modeltype_name"] is None


@pytest.mark.parametrize("base", ["exeom", "bundle"])
def test_models_that_need_no_model_def(tmp_path: Path, base: str) -> None:
    path = tmp_path / "m.om"
    if base == "exeom":
        header, parts = HeaderFields(layout="A2", table_bits=64, modeltype=4), [Partition(20, b"12345678")]
        write_container(path, header=header, partitions=parts)
    else:  # offsets of a bundle count from the end of the header, its model_length is that of the file
        header, parts = HeaderFields(layout="A2", table_bits=64, modeltype=5), [Partition(24, MODEL)]
        write_container(path, header=header, partitions=parts)
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, 184, len(data))
        struct.pack_into("<Q", data, HEADER_BYTES + 16, 32)
        path.write_bytes(data)
    container = open_container(path)
    assert container.read(container.partitions[0]) == parts[0].data
    with pytest.raises(ContainerError) as caught:
        container.attributes()
    assert caught.value.code == "OM_MODEL_DEF_UNREADABLE"


def test_attributes_seek_past_graph_and_big_values(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    inputs = [TensorIO(f"input{i}", "float16", (1, i)) for i in range(500)]
    model = encode_model_def(
        name="m", inputs=inputs, outputs=[], attrs={"big": "x" * 70_000, "small": "y", "tail": 7}, weight_size=9
    )
    write_container(path, header=HeaderFields(layout="K", modeltype=4), partitions=[Partition(0, model)])
    container = open_container(path)
    assert container.attributes() == {"small": "y", "tail": 7}
    assert container.bytes_read < 6_000 < len(model)
    assert open_container(path).attributes(max_value=80_000)["big"] == "x" * 70_000
    assert open_container(path).external_weight_size() == 9


def test_attribute_of_every_kind_and_the_last_of_equal_keys(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    attrs = {
        "b": True,
        "bytes": b"\xff\0",
        "f": 0.5,
        "i": -(1 << 63),
        "ints": [1, -2, 3],
        "none": [],
        "s": "ü",
        "texts": ["a", ""],
    }
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=0)
    first = encode_model_def(name="", inputs=[], outputs=[], attrs={"i": 5}, weight_size=0)
    write_container(path, header=HeaderFields(layout="K"), partitions=[Partition(0, first + model)])
    assert open_container(path).attributes() == attrs
    assert open_container(path).attributes({"f"}) == {"f": 0.5}


def test_replacing_attributes_keeps_every_other_byte() -> None:
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={"a": "1", "b": [1, 2]}, weight_size=3)
    added = replace_attributes(model, {"c": "x"})
    assert added.startswith(model)
    assert replace_attributes(added, {"c": "y"}) == model + added[len(model) :].replace(b"x", b"y")
    assert len(replace_attributes(model, {"a": "2"})) == len(model)
    with pytest.raises(WireError):
        replace_attributes(b"\xff", {"a": 1})


def test_equal_arguments_give_equal_bytes() -> None:
    def make() -> bytes:
        return encode_model_def(
            name="m",
            inputs=[TensorIO("x", "int8", (1, -1))],
            outputs=[TensorIO("y", "float", (1, 5))],
            attrs={"b": 1, "a": "x"},
            weight_size=1,
        )

    assert make() == make()


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(bytes(100))
    source = FileSource(path)
    path.write_bytes(bytes(10))
    with source, pytest.raises(ContainerError, match="became shorter"):
        source.at(0, 50)
    with pytest.raises(RuntimeError):
        source.at(0, 1)
