"""However a file is made, reading it takes bounded memory and bounded work."""

import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from graphs import BUNDLE, FLOW, attributes, desc, flow_list, graph, op, submodel, write

from pytest_cannlm.container import inspect, ops, wire
from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inoutinfo import MAX_SIZE
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.layout import HEADER_BYTES, HeaderFields
from pytest_cannlm.container.modeldef import Attribute
from pytest_cannlm.container.schema import decode_op
from pytest_cannlm.container.source import FileSource
from pytest_cannlm.container.writer import Partition

MOST_BYTES = 50_000_000
MILLION = 1_000_000

# each is larger than what is read of any file, as far as its kind allows
WORST: dict[str, Callable[[], list[Partition | bytes]]] = {
    "empty ops": lambda: [graph(b"\x32\x00" * 50_000)],
    "empty attributes": lambda: [graph() + b"\x5a\x00" * 50_000],
    "numbers": lambda: [graph() + b"\x08\x01" * 50_000],
    "attributes": lambda: [graph() + attributes({f"a{number}": number for number in range(11_000)})],
    "dimensions": lambda: [graph(op("Data", "x", desc(33, 1, *[1] * 50_000)))],
    "packed dimensions": lambda: [
        graph(op("Data", "x", wire.bytes_field(33, wire.bytes_field(3, wire.packed_field(1, [300] * 100_000)))))
    ],
    "many inputs": lambda: [
        graph(op("Data", "x" * 1000, desc(33, 1, *[1 << 40] * 64), desc(34, 1, *[1 << 41] * 64)) * 3000)
    ],
    "many outputs": lambda: [graph(op("NetOutput", "x", desc(33, 1, 1 << 40) * 4096, desc(34, 1, 1 << 40) * 4096))],
    "attributes of ops": lambda: [graph(*(op("Data", "x", b"\x52\x00" * 20_000) for _ in range(4)))],
    "long lists of numbers": lambda: [
        graph() + attributes({f"a{number}": [300] * 10_000 for number in range(10)})
    ],
    "long lists of texts": lambda: [graph() + attributes({f"a{number}": ["xy"] * 10_000 for number in range(5)})],
    "long attributes": lambda: [graph() + attributes({f"{'a' * 900}{number}": "x" * 900 for number in range(3000)})],
    "many types": lambda: [graph(*(op(f"{'t' * 1000}{number}") for number in range(3000)))],
    "name tables": lambda: [
        graph() + attributes({"om_compress_version": 1, "attr_name_enum": [""] * 20_000 + ["ab"] * 30_000})
    ],
    "many tensors in the list": lambda: [Partition(8, tensors(MAX_SIZE)), graph()],
    "far apart": lambda: [graph(*[wire.bytes_field(6, wire.bytes_field(99, bytes(2000))) for _ in range(9000)])],
    "models of attributes": lambda: [
        Partition(0, graph() + attributes({f"{'k' * 900}{i}": "x" * 190 for i in range(500)}), model)
        for model in range(17)
    ],
    "models of numbers": lambda: [Partition(0, graph() + b"\x08\x01" * 10_000, model) for model in range(17)],
    "models of inputs": lambda: [
        Partition(0, graph(op("Data", "x", desc(33, 1, *[1] * 60), desc(34, 1, *[1] * 60)) * 300), model)
        for model in range(17)
    ],
    "empty partitions": lambda: [Partition(0, graph()), *(Partition(7, b"") for _ in range(4095))],
}  # fmt: skip


def tensors(size: int) -> bytes:
    """A MODEL_INOUT_INFO of as many nameless tensors as fit."""
    count = (size - 12) // 32
    return struct.pack("<iII", 0, 4 + 32 * count, count) + bytes(32 * count)


def header_for(parts: list[Partition | bytes]) -> HeaderFields:
    models = 1 + max(part.model for part in parts if isinstance(part, Partition)) if len(parts) > 2 else 1
    kind = 3 if len(parts) > 64 else 0  # only a flow has so many partitions
    return HeaderFields(layout="A2", table_bits=64, modeltype=kind, platform_version=b"1.11.z.0", model_num=models)


@dataclass
class Work:
    """What describing a file takes."""

    read: int = 0
    decoded: int = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    done = Work()
    read, decode = FileSource._read, wire._decode

    def counted_read(source: FileSource, offset: int, count: int) -> bytes:
        data = read(source, offset, count)
        done.read += len(data)
        return data

    def counted_decode(raw: bytes, at: int, offset: int) -> tuple[int, int]:
        done.decoded += 1
        return decode(raw, at, offset)

    monkeypatch.setattr(FileSource, "_read", counted_read)
    monkeypatch.setattr(wire, "_decode", counted_decode)
    return done


@pytest.mark.parametrize("name", WORST)
def test_worst_cases_take_bounded_memory_and_work_and_no_byte_twice(name: str, tmp_path: Path, work: Work) -> None:
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
    assert facts["partitions"]
    assert len(facts["notes"]) < 40
    assert peak < MOST_BYTES
    assert 0 < work.read <= min(path.stat().st_size, inspect.MAX_READ)
    assert 0 < work.decoded <= 2 * inspect.MAX_FIELDS  # tag and length


@pytest.mark.parametrize("part", [b"\x5a\x00", b"\x5a\x02\x0a\x00", b"\x3a\x00", b"\x08\x01"])
def test_work_is_bounded_however_many_fields_there_are(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    path = write(tmp_path / "m.om", [graph() + part * 10_000])
    monkeypatch.setattr(inspect, "MAX_FIELDS", 500)
    facts = describe(path)
    assert (facts["error"], facts["notes"]) == (None, ["not read further: more than 500 fields"])
    assert facts["partitions"][0][1] == "MODEL_DEF"
    assert 500 <= work.decoded <= 2 * 500


def test_all_models_of_a_file_share_what_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Partition(0, graph() + attributes({"soc_version": f"S{model}"}), model) for model in range(8)]
    path = write(tmp_path / "m.om", parts, HeaderFields(layout="A2", table_bits=64, model_num=8))
    assert [model["soc_version"] for model in describe(path)["models"]] == [f"S{model}" for model in range(8)]
    monkeypatch.setattr(inspect, "MAX_FIELDS", 60)
    facts = describe(path)
    assert facts["notes"] == ["not read further: more than 60 fields"]
    assert facts["models"][0]["soc_version"] == "S0"
    assert "soc_version" not in facts["models"][7]


@pytest.mark.parametrize("fields", [*range(40, 120, 8), 1000])
def test_parts_of_a_file_share_what_may_be_read(fields: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = write(tmp_path / "inside.om", [graph(), *(Partition(1, b"") for _ in range(9))]).read_bytes()
    names = [f"part{number}" for number in range(9)]
    flow = [Partition(0, graph()), flow_list(*names), *(submodel(name, inside) for name in names)]
    bundle = [Partition(25, bytes(8)), *(Partition(24, inside) for _ in names)]
    monkeypatch.setattr(inspect, "MAX_FIELDS", fields)
    for parts, header in ((flow, FLOW), (bundle, BUNDLE)):
        facts = describe(write(tmp_path / "m.om", parts, header))
        assert facts["error"] is None
        assert ("submodels" in facts) == (f"not read further: more than {fields} fields" not in facts["notes"])
        assert fields < 1000 or "submodels" in facts


def test_a_file_that_is_longer_than_what_is_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.om", [graph(op("Data", "x")) + b"\x08\x01" * 5000])
    monkeypatch.setattr(inspect, "MAX_READ", 4096)
    facts = describe(path)
    assert facts["error"] is None
    assert facts["notes"][0].startswith("not read further: 4096 bytes read")
    assert "graph" not in facts


def test_the_graph_of_a_large_language_model_is_read_whole(tmp_path: Path) -> None:
    fields = b"".join(wire.bytes_field(23, f"in{number}") for number in range(28))
    attrs: dict[str, Attribute] = {f"attribute_{number}": "x" for number in range(100)}
    caches = [op("Data", f"cache{number}", desc(33, 1, 1, 8, 2048, 128)) for number in range(160)]
    many = graph(*caches, *(op(f"Type{number % 40}", f"op{number}", fields) for number in range(10_000)))
    facts = describe(write(tmp_path / "m.om", [many + attributes(attrs)]))
    assert facts["notes"] == []
    assert (facts["graph"]["ops"], len(facts["inputs"])) == (10_160, 160)


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
from pytest_cannlm.container.modeldef import Attribute
from pytest_cannlm.container.schema import decode_op
from pytest_cannlm.container.source import FileSource
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
