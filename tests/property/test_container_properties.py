"""Whatever happens to a file, its reader answers with a container or a named error, and reads no more than it may."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cannlm.compat.gate import READ_LIMIT, Target, decide
from pytest_cannlm.container.core import Container, open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.kirin import relabel_omc
from pytest_cannlm.container.modelattrs import MAX_VALUE, read_attributes
from pytest_cannlm.container.modeldef import Attribute, encode_model_def, replace_attributes
from pytest_cannlm.container.source import BytesSource
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
        container.inputs_outputs()
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
