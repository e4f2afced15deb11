"""Whatever happens to a file, its reader answers with a container or a named error, and reads no more than it may."""

import functools
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from graphs import corpus
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import samples_dir

from pytest_cannlm.cli.describing import described
from pytest_cannlm.compat.gate import READ_LIMIT, Target, decide
from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.kirin import relabel_omc
from pytest_cannlm.container.modelattrs import MAX_VALUE, read_attributes
from pytest_cannlm.container.modeldef import Attribute, encode_model_def, replace_attributes
from pytest_cannlm.container.source import BytesSource, FileSource
from pytest_cannlm.container.writer import partitions_of, write_container
from pytest_cannlm.errors import ContainerError
from pytest_cannlm.strategies import ContainerParts, attribute_values, containers, mutations

CODES = {
    "OM_EMPTY", "OM_CUSTOM_DATA_PREFIX", "OM2_ZIP", "OM_BAD_MAGIC", "OM_TRUNCATED_HEADER", "OM_BAD_HEADER",
    "OM_UNSUPPORTED_CONTAINER", "OM_ENCRYPTED", "OM_TRUNCATED", "OM_OVER_4GIB", "OM_LENGTH_MISMATCH",
    "OM_BAD_PARTITION_TABLE", "OM_PARTITION_OVERFLOW", "OM_PARTITION_OUT_OF_RANGE", "OM_PARTITION_OVERLAP",
    "OM_PARTITION_GAP", "OM_NO_MODEL_DEF", "OM_TWO_MODEL_DEFS", "OM_MODEL_DEF_UNREADABLE", "OM_BAD_TLV",
}  # fmt: skip

ATTRIBUTES = st.dictionaries(st.text(max_size=20), attribute_values(), max_size=6)


def write(parts: ContainerParts, folder: str) -> Path:
    path = Path(folder) / "m.om"
    write_container(path, header=parts.header, partitions=parts.partitions)
    return path


def read_everything(path: Path) -> tuple[Container | None, ContainerError | None]:
    """Whatever the reader gives; any exception but its own passes through and fails the test."""
    container = None
    try:
        container = open_container(path)
        container.attributes()
        container.external_weight_size()
        container.input_shapes(("x",))
        container.inout_info()
        container.kirin_platform()
        container.task_sections()
    except ContainerError as error:
        return container, error
    return container, None


def assert_named(error: ContainerError | None, path: Path) -> None:
    assert error is None or error.code in CODES
    assert error is None or str(path) in str(error)


@given(parts=containers())
@settings(deadline=None)
def test_written_containers_read_back_and_are_rebuilt(parts: ContainerParts) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(parts, folder)
        container = open_container(path)
        assert [p.type for model in container.models for p in model] == [p.type for p in parts.partitions]
        assert [container.read(p) for model in container.models for p in model] == [p.data for p in parts.partitions]
        assert container.header.layout == parts.header.layout
        assert container.header.name == parts.header.name
        copy = path.with_name("copy.om")
        write_container(copy, header=container.header, partitions=partitions_of(container))
        assert copy.read_bytes() == path.read_bytes()
        assert describe(path)["error"] is None


@given(parts=containers(), damage=st.lists(mutations(), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_damaged_files_give_a_container_or_a_named_error(
    parts: ContainerParts, damage: list[Callable[[bytes], bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(parts, folder)
        data = path.read_bytes()
        for mutate in damage:
            data = mutate(data)
        path.write_bytes(data)
        container, error = read_everything(path)
        assert_named(error, path)
        assert container is not None or error is not None
        if container is not None:
            assert all(256 <= p.start <= p.end <= len(data) for model in container.models for p in model)
        assert json.loads(json.dumps(describe(path)))["bytes"] == len(data)


@functools.cache
def sound_files() -> dict[str, bytes]:
    """One file of every kind, and the real ones where they are at hand."""
    with tempfile.TemporaryDirectory() as folder:
        files = corpus(Path(folder))
    samples = samples_dir()
    if samples is not None:
        files |= {path.name: path.read_bytes() for path in sorted((samples / "om").glob("*.om*"))}
    return files


@contextmanager
def reads_watched() -> Iterator[list[tuple[int, int]]]:
    """Offset and size of every read of the files that are opened inside."""
    seen: list[tuple[int, int]] = []
    read = FileSource._read

    def watched(source: FileSource, offset: int, count: int) -> bytes:
        seen.append((offset, count))
        return read(source, offset, count)

    with mock.patch.object(FileSource, "_read", watched):
        yield seen


@st.composite
def table_damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Functions that overwrite a number among header, tables and first fields, often with another one of the file."""
    position = draw(st.integers(0, 150))
    other = draw(st.one_of(st.none(), st.integers(0, 150)))
    number = draw(st.sampled_from((0, 1, 2, 8, 100, 0xFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)))

    def mutate(data: bytes) -> bytes:
        at = position * 4
        if at + 4 > len(data):
            return data
        from_file = other is not None and other * 4 + 4 <= len(data)
        raw = data[other * 4 : other * 4 + 4] if other is not None and from_file else struct.pack("<I", number)
        return data[:at] + raw + data[at + 4 :]

    return mutate


@pytest.mark.parametrize("name", sorted(sound_files()))
def test_sound_file_is_described_and_read_at_most_once(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(sound_files()[name])
    with reads_watched() as reads:
        facts = describe(path)
    assert facts["error"] == ("OM_CUSTOM_DATA_PREFIX" if name == "custom data" else None)
    assert sum(count for _, count in reads) <= path.stat().st_size


@pytest.mark.parametrize("name", sorted(set(sound_files()) - {"custom data"}))
def test_sound_file_is_rebuilt_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.om"
    path.write_bytes(sound_files()[name])
    container = open_container(path)
    copy = tmp_path / "copy.om"
    write_container(copy, header=container.header, partitions=partitions_of(container))
    assert copy.read_bytes() == path.read_bytes()


@given(
    name=st.sampled_from(sorted(sound_files())),
    damage=st.lists(st.one_of(mutations(), table_damage()), min_size=1, max_size=4),
)
@settings(max_examples=600, deadline=None)
def test_damaged_file_of_any_kind_is_described_or_named(name: str, damage: list[Callable[[bytes], bytes]]) -> None:
    data = sound_files()[name]
    for mutate in damage:
        data = mutate(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.om"
        path.write_bytes(data)
        with reads_watched() as reads:
            facts = json.loads(json.dumps(describe(path)))
        assert facts["error"] is None or facts["error"] in CODES
        assert facts["bytes"] == len(data)
        assert all(offset + count <= len(data) for offset, count in reads)
        assert described(facts)
        assert_named(read_everything(path)[1], path)


@given(data=st.binary(max_size=600), prefix=st.sampled_from([b"", b"IMOD", b"IMOD\0\1\0\0\0\0\0\x10", b"CUST"]))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_a_container_or_a_named_error(data: bytes, prefix: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.om"
        path.write_bytes(prefix + data)
        assert_named(read_everything(path)[1], path)


@given(parts=containers(layouts=("K",)), damage=mutations(), policy=st.sampled_from(["exact", "window", "off"]))
@settings(deadline=None)
def test_gate_always_answers_on_one_line_and_reads_little(
    parts: ContainerParts, damage: Callable[[bytes], bytes], policy: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(parts, folder)
        path.write_bytes(damage(path.read_bytes()))
        decision = decide(path, Target(chip="KirinX90", cann="6.1.1.0", policy=policy))
        assert decision.answer in ("load", "refuse", "unknown")
        assert decision.bytes_read <= READ_LIMIT
        assert len(decision.explain().splitlines()) == 1
        assert (policy == "off") == ("policy off" in decision.explain())


@given(attrs=ATTRIBUTES)
def test_attributes_read_back(attrs: dict[str, Attribute]) -> None:
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=0)
    read = read_attributes(BytesSource(model), 0, len(model), names=None, max_value=MAX_VALUE)
    assert read == attrs
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in attrs.items()}


@given(attrs=ATTRIBUTES, changes=ATTRIBUTES)
def test_replaced_attributes_are_the_only_change(attrs: dict[str, Attribute], changes: dict[str, Attribute]) -> None:
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs=attrs, weight_size=5)
    changed = replace_attributes(model, changes)
    read = read_attributes(BytesSource(changed), 0, len(changed), names=None, max_value=MAX_VALUE)
    assert read == {**attrs, **changes}
    assert replace_attributes(changed, changes) == changed


@given(parts=containers(), version=st.sampled_from(["6.0.1.0", "8.0.0"]), chip=st.sampled_from(["Kirin9030", "Kirin"]))
@settings(max_examples=50, deadline=None)
def test_any_sound_container_can_be_relabelled(parts: ContainerParts, version: str, chip: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(parts, folder)
        before = open_container(path)
        relabel_omc(path, path.with_name("other.om"), build_version=version, chip=chip)
        after = open_container(path.with_name("other.om"))
        assert after.attributes() == {**before.attributes(), "atc_version": version, "soc_version": chip}
        assert [p.type for model in after.models for p in model] == [p.type for p in parts.partitions]
        for one, other in zip(before.partitions, after.partitions, strict=True):
            if one.name == "WEIGHTS_DATA":
                assert before.read(one) == after.read(other)
