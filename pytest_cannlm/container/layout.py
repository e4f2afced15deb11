"""The 256-byte header, its three layouts, and the names that go with each dialect. Valid for Python 3.10.

Two dialects share the container: Ascend (layouts A1 and A2) and Kirin (layout K). The same numbers mean different
things in them, so a model type or a partition type has a name only together with its dialect.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

MAGIC = b"IMOD"
HEADER_BYTES = 256
VERSION_1 = 0x10000000
VERSION_2 = 0x20000000

Layout = Literal["A1", "A2", "K"]
Dialect = Literal["ascend", "kirin"]

COMMON = struct.Struct("<4sII64sI4B32sI32sI")
TAIL_A2 = struct.Struct("<I20sB3sQBB62s")
TAIL_V1 = struct.Struct("<20sBB2sII16s52s")  # K; A1 keeps platform_version and platform_type in the same place

MODEL_DEF, WEIGHTS_DATA, TASK_INFO = 0, 1, 2
FLOW_MODEL, FLOW_SUBMODEL, MODEL_INOUT_INFO = 6, 7, 8
PRE_MODEL_DESC, BUNDLE_MODEL_INFO, BUNDLE_MODEL_VAR_INFO = 20, 24, 25
NANO_TYPES = {9, 10, 11}
EXECUTOR_TYPES = NANO_TYPES | {20, 21, 22, 23}
"""Ascend partitions for the small executors (nano, exeom), whose files align table and partitions to 8 bytes."""

RUNTIME_GRAPH = 200
"""Our own Kirin partition type: the graph that the simulated NPU runs. Vendor readers skip every type above 8."""

FLOW, LITE, BUNDLE = 3, 4, 5
"""Ascend model types with a table of their own kind."""

KIRIN_PORTABLE, KIRIN_COMPILED = 3, 4

EXTERNAL_WEIGHT_FILE = "SubGraph_0.weight"
"""Where a compiled Kirin model keeps weights outside; the name is fixed, so two models need two folders."""

SIMULATED_MARK = b"CANNLM-SIMULATED"
"""Start of userdefineinfo (zero in every known real file) of a model that only the simulated NPU can run."""

MODEL_TYPES: dict[str, tuple[str, ...]] = {
    "ascend": ("IR_MODEL", "STANDARD_MODEL", "OM_TINY_MODEL", "FLOW_MODEL", "LITE_MODEL", "BUNDLE_MODEL"),
    "kirin": (
        "IR_GRAPH_MODEL",
        "OM_STANDARD_MODEL",
        "IGS_MODEL",
        "STANDARD_IR_GRAPH_MODEL",
        "HCS_PARTITION_MODEL",
        "ISPNN_MODEL",
        "SPECIAL_3RD_MODEL",
        "IR_API_GRAPH_MODEL",
        "UTINY",
        "MULTI_SHAPE",
        "ENUM_SHAPE",
        "SINGLE_IP",
        "MULTI_SHAPE_SINGLE_IP",
    ),
}

PARTITION_TYPES: dict[str, dict[int, str]] = {
    "ascend": {
        0: "MODEL_DEF",
        1: "WEIGHTS_DATA",
        2: "TASK_INFO",
        3: "TBE_KERNELS",
        4: "CUST_AICPU_KERNELS",
        5: "SO_BINS",
        6: "FLOW_MODEL",
        7: "FLOW_SUBMODEL",
        8: "MODEL_INOUT_INFO",
        9: "STATIC_TASK_DESC",
        10: "DYNAMIC_TASK_DESC",
        11: "TASK_PARAM",
        12: "TILING_DATA",
        20: "PRE_MODEL_DESC",
        21: "PRE_MODEL_SQE",
        22: "PRE_KERNEL_ARGS",
        23: "PRE_MODEL_DESC_EXTEND",
        24: "BUNDLE_MODEL_INFO",
        25: "BUNDLE_MODEL_VAR_INFO",
        26: "CUSTOM_OPS",
    },
    "kirin": {
        0: "MODEL_DEF",
        1: "WEIGHTS_DATA",
        2: "TASK_INFO",
        3: "TASK_GRAPH",
        4: "SIGNATURE_INFO",
        5: "MODEL_CONFIG",
        6: "AIPP_CUSTOM_INFO",
        7: "ENCRYPT_INFO",
        8: "WEIGHT_INFO",
        RUNTIME_GRAPH: "CANNLM_RUNTIME_GRAPH",
    },
}


BYTE_FIELDS = {"checksum": 64, "name": 32, "userdefineinfo": 32, "platform_version": 20, "custom_lib_info": 16}


def dialect_of(layout: Layout) -> Dialect:
    """Whose container a layout is."""
    return "kirin" if layout == "K" else "ascend"


def model_type_name(dialect: Dialect, number: int) -> str | None:
    """Name of header byte 82, None where the dialect has none for it."""
    names = MODEL_TYPES[dialect]
    return names[number] if number < len(names) else None


def partition_name(dialect: Dialect, number: int) -> str:
    """Name of a partition type; ``type N`` where the dialect has none for it."""
    return PARTITION_TYPES[dialect].get(number, f"type {number}")


def field_text(raw: bytes) -> str:
    """Text of a NUL-padded header field; bytes that are no UTF-8 are shown as escapes."""
    return raw.split(b"\0", 1)[0].decode("utf-8", errors="backslashreplace")


def name_field(text: str, limit: int = 31) -> bytes:
    """``text`` for a header field: cut to ``limit`` bytes, never inside a character."""
    return text.encode("utf-8")[:limit].decode("utf-8", errors="ignore").encode("utf-8")


@dataclass(frozen=True)
class HeaderFields:
    """What a writer can say in a header; everything that follows from the payload is left to the writer.

    Byte fields are without their NUL padding. ``table_bits`` is 64 only in layout A2, where a header says so by giving
    the payload's size in ``model_length`` instead of ``length``.
    """

    layout: Layout
    table_bits: Literal[32, 64] = 32
    name: bytes = b""
    modeltype: int = 0
    om_ir_version: int = 2
    platform_version: bytes = b""
    platform_type: int = 0
    checksum: bytes = b""
    is_encrypt: int = 0
    is_checksum: int = 0
    genmode: int = 0
    ops: int = 0
    userdefineinfo: bytes = b""
    pad: bytes = b""
    reserved: bytes = b""
    model_num: int = 1
    need_check_os_cpu_info: int = 0
    is_unknow_model: int = 0
    heter_tuning_flag: int = 0
    custom_data_len: int = 0
    multi_shape_gears: int = 0
    custom_lib_info: bytes = b""

    def is_ascend_type(self, number: int) -> bool:
        """Layout A2 with that model type."""
        return self.layout == "A2" and self.modeltype == number

    def pack(self, payload: int) -> bytes:
        """The 256 bytes for a payload of that many bytes; ``ValueError`` for a byte field that is too long."""
        for label, limit in BYTE_FIELDS.items():
            if len(getattr(self, label)) > limit:
                raise ValueError(f"header field {label} takes at most {limit} bytes")
        wide = self.layout == "A2" and self.table_bits == 64
        common = COMMON.pack(
            MAGIC,
            HEADER_BYTES,
            VERSION_2 if self.layout == "A2" else VERSION_1,
            self.checksum,
            0 if wide else payload,
            self.is_encrypt,
            self.is_checksum,
            self.modeltype,
            self.genmode,
            self.name,
            self.ops,
            self.userdefineinfo,
            self.om_ir_version,
        )
        if self.layout == "A2":
            return common + TAIL_A2.pack(
                self.model_num,
                self.platform_version,
                self.platform_type,
                self.pad,
                self._model_length(payload) if wide else 0,
                self.need_check_os_cpu_info,
                self.is_unknow_model,
                self.reserved,
            )
        return common + TAIL_V1.pack(
            self.platform_version,
            self.platform_type,
            self.heter_tuning_flag,
            self.pad,
            self.custom_data_len,
            self.multi_shape_gears,
            self.custom_lib_info,
            self.reserved,
        )

    def _model_length(self, payload: int) -> int:
        """A bundle counts its header in."""
        return payload + HEADER_BYTES if self.is_ascend_type(BUNDLE) else payload


@dataclass(frozen=True)
class Header(HeaderFields):
    """A header as it stands in a file."""

    version: int = field(default=VERSION_1, kw_only=True)
    length: int = field(default=0, kw_only=True)
    model_length: int = field(default=0, kw_only=True)
    layout_guessed: bool = field(default=False, kw_only=True)
    """The platform version fits neither dialect; Kirin is assumed."""

    @property
    def dialect(self) -> Dialect:
        """Whose container this is."""
        return dialect_of(self.layout)

    @property
    def declared_length(self) -> int:
        """Payload bytes that the header promises, as the field says it (a bundle counts its header in)."""
        return self.model_length or self.length

    @property
    def declared_payload(self) -> int:
        """Payload bytes that must follow the header."""
        if self.is_ascend_type(BUNDLE) and self.model_length:
            return max(self.model_length - HEADER_BYTES, 0)
        return self.declared_length

    @property
    def multi_model(self) -> bool:
        """Several groups of table and partitions follow each other (dynamic shapes)."""
        return (
            self.layout == "A2"
            and self.modeltype not in (FLOW, BUNDLE)
            and (self.model_num > 1 or self.is_unknow_model == 1)
        )

    @property
    def several_models(self) -> bool:
        """The file holds more than one model, or one for several shapes."""
        return self.multi_model or self.model_num > 1 or self.multi_shape_gears > 1


def parse_header(raw: bytes) -> Header:
    """The header in 256 bytes whose magic, size and version have been checked."""
    (_, _, version, checksum, length, is_encrypt, is_checksum, modeltype, genmode, name, ops, user, om_ir_version) = (
        COMMON.unpack_from(raw)
    )
    tail = raw[COMMON.size : HEADER_BYTES]
    layout: Layout
    guessed = False
    model_num, model_length, need_check, unknown_model = 1, 0, 0, 0
    tuning, custom_data_len, gears, lib_info = 0, 0, 0, b""
    if version == VERSION_2:
        layout = "A2"
        (model_num, platform, platform_type, pad, model_length, need_check, unknown_model, reserved) = TAIL_A2.unpack(
            tail
        )
    else:
        platform, platform_type, tuning, pad, custom_data_len, gears, lib_info, reserved = TAIL_V1.unpack(tail)
        text = field_text(platform)
        layout = "A1" if text.startswith("1.") else "K"
        guessed = bool(text) and not text.startswith(("1.", "3."))
    wide = layout == "A2" and (model_length != 0 or modeltype == FLOW)
    return Header(
        layout=layout,
        table_bits=64 if wide else 32,
        name=name.rstrip(b"\0"),
        modeltype=modeltype,
        om_ir_version=om_ir_version,
        platform_version=platform.rstrip(b"\0"),
        platform_type=platform_type,
        checksum=checksum.rstrip(b"\0"),
        is_encrypt=is_encrypt,
        is_checksum=is_checksum,
        genmode=genmode,
        ops=ops,
        userdefineinfo=user.rstrip(b"\0"),
        pad=pad.rstrip(b"\0"),
        reserved=reserved.rstrip(b"\0"),
        model_num=model_num,
        need_check_os_cpu_info=need_check,
        is_unknow_model=unknown_model,
        heter_tuning_flag=tuning,
        custom_data_len=custom_data_len,
        multi_shape_gears=gears,
        custom_lib_info=lib_info.rstrip(b"\0"),
        version=version,
        length=length,
        model_length=model_length,
        layout_guessed=guessed,
    )
