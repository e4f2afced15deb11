"""Hypothesis strategies for what this project reads and judges; importing this module needs hypothesis.

Users can test their own tools with them: ``containers()`` writes sound model containers of every layout,
``mutations()`` damages bytes the way that transfers and bad tools do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from pytest_cannlm.container.layout import HeaderFields, Layout, name_field
from pytest_cannlm.container.modeldef import DTYPES, Attribute, TensorIO, encode_model_def
from pytest_cannlm.container.taskinfo import encode_task_info
from pytest_cannlm.container.writer import Partition


@dataclass(frozen=True)
class ContainerParts:
    """What ``write_container`` takes."""

    header: HeaderFields
    partitions: tuple[Partition, ...]


INT64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
_U8 = st.integers(0, 255)
_U32 = st.integers(0, 0xFFFFFFFF)


def attribute_values() -> st.SearchStrategy[Attribute]:
    """Values that an attribute of a model can have; a list is not empty, for an empty one has no kind."""
    return st.one_of(
        st.text(max_size=40),
        st.booleans(),
        INT64,
        st.floats(width=32, allow_nan=False),
        st.lists(INT64, min_size=1, max_size=8),
        st.lists(st.text(max_size=10), min_size=1, max_size=5),
    )


def tensor_ios() -> st.SearchStrategy[TensorIO]:
    """Inputs and outputs of a model, -1 for a dimension that varies."""
    return st.builds(
        TensorIO,
        name=_texts,
        dtype=st.sampled_from(sorted(DTYPES)),
        shape=st.lists(st.integers(-1, 4096), max_size=5).map(tuple),
    )


def model_defs() -> st.SearchStrategy[bytes]:
    """Sound MODEL_DEF partitions."""
    return st.builds(
        _model_def,
        name=_texts,
        inputs=st.lists(tensor_ios(), max_size=3),
        outputs=st.lists(tensor_ios(), max_size=2),
        attrs=st.dictionaries(st.text(max_size=20), attribute_values(), max_size=6),
        weight_size=st.integers(0, 1 << 40),
    )


@st.composite
def containers(draw: st.DrawFn, layouts: tuple[Layout, ...] = ("K", "A1", "A2")) -> ContainerParts:
    """Sound containers of the given layouts, with one model or, in A2, several."""
    layout = draw(st.sampled_from(layouts))
    wide: Literal[32, 64] = draw(st.sampled_from((32, 64))) if layout == "A2" else 32
    models = draw(st.integers(1, 3)) if layout == "A2" else 1
    platforms = {"K": (b"", b"3.31.z.0", b"3.51.z.0"), "A1": (b"1.11.z.0",), "A2": (b"1.11.z.0", b"")}
    header = HeaderFields(
        layout=layout,
        table_bits=wide,
        name=name_field(draw(_texts)),
        modeltype=draw(st.sampled_from((0, 3, 4) if layout == "K" else (0, 1))),
        om_ir_version=draw(_U32),
        platform_version=draw(st.sampled_from(platforms[layout])),
        platform_type=draw(_U8),
        genmode=draw(_U8),
        ops=draw(_U32),
        userdefineinfo=draw(st.binary(max_size=32)).rstrip(b"\0"),
        model_num=models,
    )
    partitions: list[Partition] = []
    for model in range(models):
        partitions.append(Partition(0, draw(model_defs()), model))
        partitions.append(Partition(1, draw(st.binary(max_size=200)), model))
        partitions.append(Partition(2, draw(task_infos()), model))
    return ContainerParts(header, tuple(partitions))


def task_infos() -> st.SearchStrategy[bytes]:
    """TASK_INFO partitions of compiled Kirin models."""
    return st.builds(encode_task_info, _U32, ids=st.lists(_U32, max_size=4))


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Functions that damage bytes: flipped bits, a cut end, extra bytes, a huge number somewhere."""
    kind = draw(st.sampled_from(("flip", "cut", "grow", "huge")))
    position = draw(st.floats(0, 1, exclude_max=True))
    amount = draw(st.integers(1, 64))
    number = draw(st.sampled_from((0, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)))

    def mutate(data: bytes) -> bytes:
        at = int(position * len(data))
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ (1 << amount % 8)]) + data[at + 1 :] if data else data
        if kind == "cut":
            return data[:at]
        if kind == "grow":
            return data + bytes(amount)
        raw = number.to_bytes(8, "little")[: 8 if number >> 32 else 4]
        return data[:at] + raw + data[at + len(raw) :]

    return mutate


def _model_def(**arguments: Any) -> bytes:
    return encode_model_def(**arguments)
