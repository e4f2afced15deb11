"""ModelDefs and containers built field by field, for tests of what a converter's own files hold."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_cannlm.container import wire
from pytest_cannlm.container.attrnames import encode_key
from pytest_cannlm.container.inoutinfo import InOutInfo, InOutTensor, encode_inout_info
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import Attribute, encode_attribute
from pytest_cannlm.container.taskinfo import encode_task_info
from pytest_cannlm.container.writer import Partition, write_container

ASCEND = HeaderFields(layout="A2", table_bits=64, name=b"m", platform_version=b"1.11.z.0")
FLOW = HeaderFields(layout="A2", table_bits=64, modeltype=3, name=b"flow")
BUNDLE = HeaderFields(layout="A2", table_bits=64, modeltype=5, name=b"bundle")


def map_entry(key: str | bytes, value: Attribute) -> bytes:
    """An entry of a map<string, AttrDef>."""
    return wire.bytes_field(1, key) + wire.bytes_field(2, encode_attribute(value))


def op(kind: str, name: str = "op", *rest: bytes, attrs: Mapping[str | bytes, Attribute] | None = None) -> bytes:
    """An op of a graph; ``rest`` are more of its fields."""
    entries = b"".join(wire.bytes_field(10, map_entry(key, value)) for key, value in (attrs or {}).items())
    return wire.bytes_field(6, wire.bytes_field(1, name) + wire.bytes_field(2, kind) + b"".join(rest) + entries)


def desc(number: int, dtype: int, *shape: int, layout: str = "ND") -> bytes:
    """A TensorDescriptor as field ``number`` of an op, its dims unpacked, as some writers do."""
    dims = wire.bytes_field(3, b"".join(wire.number_field(1, dim) for dim in shape))
    return wire.bytes_field(number, wire.number_field(2, dtype) + dims + wire.bytes_field(4, layout))


def graph(*parts: bytes) -> bytes:
    """graph[0] of a ModelDef."""
    return wire.bytes_field(7, b"".join(parts))


def attributes(attrs: Mapping[str, Attribute]) -> bytes:
    """Attributes of a ModelDef."""
    return b"".join(wire.bytes_field(11, map_entry(key, value)) for key, value in attrs.items())


def net_output(*sources: str, dtype: int = 1) -> bytes:
    """A NetOutput with one tensor [5] per source."""
    return op(
        "NetOutput",
        "out",
        *(wire.bytes_field(24, source) for source in sources),
        wire.packed_field(25, [0] * len(sources)),
        *(desc(33, dtype, 5) for _ in sources),
    )


def write(path: Path, parts: Sequence[Partition | bytes], header: HeaderFields = ASCEND) -> Path:
    """A container; bytes stand for a MODEL_DEF."""
    partitions = [Partition(0, part) if isinstance(part, bytes) else part for part in parts]
    write_container(path, header=header, partitions=partitions)
    return path


def submodel(name: str, data: bytes = b"", *, kind: str = "PNE_NPU", file: str = "") -> Partition:
    """A FLOW_SUBMODEL."""
    body = wire.bytes_field(1, name) + wire.bytes_field(2, kind)
    body += wire.bytes_field(3, data) if data else b""
    body += wire.bytes_field(9, file) if file else b""
    return Partition(7, body)


def flow_list(*names: str) -> Partition:
    """A FLOW_MODEL that lists its submodels."""
    return Partition(6, wire.bytes_field(1, "flow") + b"".join(wire.bytes_field(3, name) for name in names))


def custom_data(model: bytes, kind: bytes = b"kind", value: bytes = b"value") -> bytes:
    """A file with custom data before its model."""
    head = struct.pack("<ii", len(kind) + len(value), len(kind)) + kind + struct.pack("<i", len(value)) + value
    return b"CUST" + head + model


def corpus(folder: Path) -> dict[str, bytes]:
    """A small sound file of every layout and kind, by name."""
    model = graph(
        wire.bytes_field(1, "g"),
        op("Data", "x", desc(33, 1, 1, -1), desc(34, 2, 1, -1), attrs={"index": 0}),
        op("GraphOp", "SubGraph_0", attrs={"cl_name": "NPUCL", "graphop_task_size": 2, "graphop_weight_size": 4}),
        op("FileConstant", "w", attrs={"location": "weight/w", "offset": 0, "length": 9}),
        net_output("x"),
    ) + attributes({"soc_version": "Ascend310B4", "atc_version": "7.6.0.1.220", "om_info_list": [4, 0, 0, 2, 0]})
    tables: dict[str, Attribute] = {"om_compress_version": 1, "attr_name_enum": ["a", "index"]}
    tables |= {"attrs_use_string_value": [True, False], "attr_value_enum": ["text"]}
    compressed = graph(op("Data", "x", desc(33, 1, 4), attrs={encode_key(1): 0, encode_key(0): 0})) + attributes(tables)
    tensor = InOutTensor("x", "float", (1, -1), "ND", ranges=((1, 1), (1, 9)))
    info = encode_inout_info(InOutInfo((tensor,), (tensor,), (1, 2), ((2, 2),), ((1,),), ("s",), ("x",)))
    rest = [Partition(1, b"1234"), Partition(2, b"`\x01")]
    kirin = [model, Partition(1, b"1234"), Partition(2, encode_task_info(10, ids=[3]))]
    path = folder / "m.om"

    def made(parts: Sequence[Partition | bytes], header: HeaderFields) -> bytes:
        return write(path, parts, header).read_bytes()

    plain = made([model, *rest], ASCEND)
    compiled = made(kirin, HeaderFields(layout="K", modeltype=4))
    several = [Partition(0, model), Partition(5, b"so"), Partition(0, compressed, 1), Partition(1, b"w", 1)]
    bundle = made([Partition(25, bytes(8)), Partition(24, plain), Partition(24, compiled)], BUNDLE)
    return {
        "a1": made([model, *rest], HeaderFields(layout="A1", platform_version=b"1.11.z.0")),
        "a2, 32 bits": made([model, *rest], HeaderFields(layout="A2")),
        "a2, 64 bits": plain,
        "kirin, compiled": compiled,
        "kirin, portable": made([model], HeaderFields(layout="K", modeltype=3, platform_version=b"3.51.z.0")),
        "several models": made(several, HeaderFields(layout="A2", table_bits=64, model_num=2)),
        "listed tensors": made([Partition(8, info), model, *rest], ASCEND),
        "compressed names": made([compressed, *rest], ASCEND),
        "flow": made([model, flow_list("a", "b"), submodel("a", plain), submodel("b", file="b.om")], FLOW),
        "bundle": bundle,
        "bundle of bundles": made([Partition(24, bundle)], BUNDLE),
        "exeom": made([Partition(20, b"12345678"), Partition(1, b"12345678")], replace(ASCEND, modeltype=4)),
        "custom data": custom_data(compiled),
    }
