"""However a file is made, reading it takes bounded memory and bounded work."""

import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from graphs import attributes, desc, graph, op, write

from pytest_cannlm.container import ops, wire
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inoutinfo import MAX_SIZE
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HEADER_BYTES, HeaderFields
from pytest_cannlm.container.schema import decode_op
from pytest_cannlm.container.writer import Partition

MOST_BYTES = 50_000_000
MILLION = 1_000_000

WORST: dict[str, Callable[[], list[Partition | bytes]]] = {
    "empty ops": lambda: [graph(b"\x32\x00" * (MILLION // 5))],
    "empty attributes": lambda: [graph() + b"\x5a\x00" * (MILLION // 5)],
    "dimensions": lambda: [graph(op("Data", "x", desc(33, 1, *[1] * 200_000)))],
    "packed dimensions": lambda: [
        graph(op("Data", "x", wire.bytes_field(33, wire.bytes_field(3, wire.packed_field(1, [300] * MILLION)))))
    ],
    "many inputs": lambda: [
        graph(op("Data", "x" * 1000, desc(33, 1, *[1 << 40] * 64), desc(34, 1, *[1 << 41] * 64)) * 2048)
    ],
    "many outputs": lambda: [graph(op("NetOutput", "x", desc(33, 1, 1 << 40) * 4096, desc(34, 1, 1 << 40) * 4096))],
    "long lists of numbers": lambda: [
        graph() + attributes({f"a{number}": [300] * 30_000 for number in range(40)})
    ],
    "many attributes": lambda: [graph() + attributes({f"{'a' * 900}{number}": "x" * 900 for number in range(5000)})],
    "many types": lambda: [graph(*(op(f"{'t' * 1000}{number}") for number in range(20_000)))],
    "name tables": lambda: [
        graph() + attributes({"om_compress_version": 1, "attr_name_enum": [""] * 100_000 + ["ab"] * 80_000})
    ],
    "many tensors in the list": lambda: [Partition(8, tensors(MAX_SIZE)), graph()],
    "several models": lambda: [
        Partition(0, graph() + attributes({f"{'k' * 900}{i}": "x" * 190 for i in range(500)}), model)
        for model in range(32)
    ],
}  # fmt: skip


def tensors(size: int) -> bytes:
    """A MODEL_INOUT_INFO of as many nameless tensors as fit."""
    count = (size - 12) // 32
    return struct.pack("<iII", 0, 4 + 32 * count, count) + bytes(32 * count)


def header_for(parts: list[Partition | bytes]) -> HeaderFields:
    models = 1 + max(part.model for part in parts if isinstance(part, Partition)) if len(parts) > 2 else 1
    return HeaderFields(layout="A2", table_bits=64, platform_version=b"1.11.z.0", model_num=models)


@pytest.mark.parametrize("name", WORST)
def test_worst_cases_take_bounded_memory(name: str, tmp_path: Path) -> None:
    parts = WORST[name]()
    path = write(tmp_path / "m.om", parts, header_for(parts))
    del parts
    tracemalloc.start()
    try:
        facts = describe(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert facts["error"] in (None, "OM_MODEL_DEF_UNREADABLE")
    assert peak < MOST_BYTES


@pytest.mark.parametrize("part", [b"\x5a\x00", b"\x5a\x02\x0a\x00", b"\x3a\x00", b"\x3a\x02\x32\x00"])
def test_work_is_bounded_however_many_fields_there_are(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.om", [graph() + part * 10_000])
    monkeypatch.setattr(wire, "MAX_FIELDS", 500)
    passed = 0
    read = wire.Walk._varint

    def counted(walk: wire.Walk, position: int, end: int) -> tuple[int, int]:
        nonlocal passed
        passed += 1
        return read(walk, position, end)

    monkeypatch.setattr(wire.Walk, "_varint", counted)
    facts = describe(path)
    assert facts["error"] == "OM_MODEL_DEF_UNREADABLE"
    assert "more than 500 fields" in facts["message"]
    assert passed <= 3 * 2 * 501  # attributes by name, all attributes, graph; tag and length of each field


def test_what_protobuf_is_given_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def watched(data: bytes) -> object:
        given.append(len(data))
        return decode_op(data)

    monkeypatch.setattr(ops, "decode_op", watched)
    huge = op("Data", "x", *[wire.bytes_field(5, b"y" * 10_000)] * 100, wire.bytes_field(99, bytes(MILLION)))
    facts = describe(write(tmp_path / "m.om", [graph(huge, op("Data", "z"))]))
    assert facts["error"] is None
    assert [item["name"] for item in facts["inputs"]] == ["x", "z"]
    assert max(given) <= ops.MAX_OP
    assert len(given) == 2


PROGRAM = """
import re, sys
from pathlib import Path
from pytest_cannlm.container.schema import decode_op
def kib(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
field = bytes.fromhex(sys.argv[1])
data = field * (int(sys.argv[2]) // len(field))
before = kib("VmRSS")
op = decode_op(data)
print(kib("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read as Linux tells it")
@pytest.mark.parametrize("field", ["5200", "8a0200", "52021200", "520412020a00", "8a02021a00", "2a00", "c80100"])
def test_protobuf_takes_bounded_memory_for_the_most_that_it_is_given(field: str) -> None:
    command = [sys.executable, "-I", "-c", PROGRAM, field, str(ops.MAX_OP)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert 0 < int(done.stdout) * 1024 < MOST_BYTES


def test_file_beyond_4_gib_is_described_from_a_few_kilobytes(tmp_path: Path) -> None:
    size = (1 << 32) + 4096
    path = write(tmp_path / "m.om", [graph(op("Data", "x", desc(33, 1, 1))), Partition(1, b"1234")])
    model = open_container(path).partitions[0].size
    with path.open("r+b") as file:  # make the weights larger than 4 GiB without writing them
        file.truncate(HEADER_BYTES + 8 + 48 + model + size)
        file.seek(184)
        file.write(struct.pack("<Q", 8 + 48 + model + size))
        file.seek(HEADER_BYTES + 8 + 24)
        file.write(struct.pack("<I4xQQ", 1, model, size))
    container = open_container(path)
    assert container.partitions[1].size == size
    assert container.attributes() == {}
    assert container.bytes_read < 4096
    facts = describe(path)
    assert (facts["error"], facts["bytes"], facts["inputs"][0]["name"]) == (None, path.stat().st_size, "x")
