"""What is checked before the partition tables: header and lengths, in a fixed order. Valid for Python 3.10."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from pytest_cannlm.container.layout import (
    HEADER_BYTES,
    MAGIC,
    VERSION_1,
    VERSION_2,
    Header,
    field_text,
    model_type_name,
    parse_header,
)
from pytest_cannlm.container.partitions import PartitionEntry, read_table, table_bytes
from pytest_cannlm.container.source import CountedSource
from pytest_cannlm.errors import ContainerError

FOUR_GIB = 1 << 32
_OTHER_FILE = "Check that this is the file that the converter wrote"


def read_header(source: CountedSource) -> Header:
    """The header, after everything that can be said about a file before its length is looked at."""
    path = source.path
    if source.size == 0:
        raise ContainerError(
            "the file is empty",
            file=path,
            found="0 bytes",
            expected=f"at least {HEADER_BYTES} bytes",
            remedy="Copy or convert it again",
            code="OM_EMPTY",
        )
    raw = source.at(0, min(source.size, HEADER_BYTES))
    if raw.startswith(b"CUST"):
        raise _custom_data_prefix(source)
    if raw.startswith(b"PK\x03\x04"):
        raise ContainerError(
            "an OM2 package (zip), another format",
            file=path,
            found=f"{raw[:4].hex()} ('PK', a zip archive)",
            expected=f"{MAGIC.hex()} ('IMOD')",
            remedy="Convert without the OM2 format, or look inside with unzip",
            code="OM2_ZIP",
        )
    if not MAGIC.startswith(raw[:4]):
        shown = raw[:4].decode("ascii", errors="replace")
        what, remedy = recognise(raw)
        raise ContainerError(
            f"not an offline model: {what}",
            file=path,
            field="magic",
            found=f"{raw[:4].hex()} ({shown!r})",
            expected=f"{MAGIC.hex()} ('IMOD')",
            remedy=remedy,
            code="OM_BAD_MAGIC",
        )
    if len(raw) < HEADER_BYTES:
        raise ContainerError(
            "the file ends inside its header",
            file=path,
            found=f"{len(raw)} bytes",
            expected=f"at least {HEADER_BYTES} bytes",
            remedy="Copy the file again and compare its size",
            code="OM_TRUNCATED_HEADER",
        )
    headsize, version = struct.unpack_from("<II", raw, 4)
    if headsize != HEADER_BYTES:
        raise ContainerError(
            "the header has another size (some 3-D microscopy files also begin with IMOD)",
            file=path,
            field="headsize",
            found=headsize,
            expected=HEADER_BYTES,
            remedy=_OTHER_FILE,
            code="OM_BAD_HEADER",
        )
    if version not in (VERSION_1, VERSION_2):
        raise ContainerError(
            "unknown container version",
            file=path,
            field="version",
            found=f"0x{version:08x}",
            expected=f"0x{VERSION_1:08x} or 0x{VERSION_2:08x}",
            remedy="Convert with a released toolkit, or copy the file again",
            code="OM_UNSUPPORTED_CONTAINER",
        )
    header = parse_header(raw)
    if header.is_encrypt:
        raise ContainerError(
            f"the model {field_text(header.name)!r} is encrypted",
            file=path,
            field="is_encrypt",
            found=header.is_encrypt,
            expected=0,
            remedy="Convert it without encryption to look inside",
            code="OM_ENCRYPTED",
        )
    return header


def check_length(source: CountedSource, header: Header) -> int:
    """Compare the promised payload with what is there; returns the file offset where the payload ends."""
    path = source.path
    have = source.size - HEADER_BYTES
    declared = header.declared_payload
    if declared > have:
        cut = _partition_at(source, header, HEADER_BYTES + declared, source.size)
        raise ContainerError(
            f"{declared - have} bytes of the payload are missing" + (f"; {cut} is cut" if cut else ""),
            file=path,
            field="model_length" if header.model_length else "length",
            found=f"{have} bytes",
            expected=f"{declared} bytes",
            remedy="Copy the file again and compare its size",
            code="OM_TRUNCATED",
        )
    if not header.model_length and have >= FOUR_GIB:
        limit = "Kirin's limit of 4 GiB" if header.layout == "K" else "the limit of 4 GiB of this layout"
        raise ContainerError(
            f"larger than {limit}: its 32-bit length field has wrapped",
            file=path,
            field="length",
            found=f"{source.size} bytes, length field {header.length}",
            expected=f"less than {FOUR_GIB} bytes of payload",
            remedy="Convert with external weights (omg --save_weights_as_external_data=true, atc --external_weight=1)",
            code="OM_OVER_4GIB",
        )
    extra = have - declared
    if extra and not (header.layout == "K" and extra == header.custom_data_len):
        whole = _partitions_end(source, header, HEADER_BYTES + declared) == HEADER_BYTES + declared
        raise ContainerError(
            f"{extra} trailing bytes behind the payload" if whole else "the length field is wrong",
            file=path,
            field="model_length" if header.model_length else "length",
            found=f"{have} bytes, {extra} more than declared",
            expected=f"{declared} bytes",
            remedy="Copy the file again, or convert it again",
            code="OM_LENGTH_MISMATCH",
        )
    return HEADER_BYTES + declared


def notes_on(header: Header, models: tuple[tuple[PartitionEntry, ...], ...]) -> list[str]:
    """What is odd about a sound container."""
    notes = []
    if header.layout_guessed:
        notes.append(f"platform version {field_text(header.platform_version)!r} fits no dialect; Kirin is a guess")
    if model_type_name(header.dialect, header.modeltype) is None:
        notes.append(f"model type {header.modeltype} has no name")
    if header.checksum:
        notes.append("the checksum field is not zero")
    if header.is_checksum:
        notes.append(f"is_checksum is {header.is_checksum}; it is 0 in every known file and no reader looks at it")
    if header.reserved or header.pad:
        notes.append("reserved header bytes are not zero")
    if header.custom_data_len:
        notes.append(f"{header.custom_data_len} bytes of custom data at the end of the file")
    rows = [(f"model {row.model} partition {index}", row) for entries in models for index, row in enumerate(entries)]
    notes += one_line(f"{where} has unknown type {row.type}" for where, row in rows if row.name.startswith("type "))
    notes += one_line(f"{where} ({row.name}) is empty" for where, row in rows if row.size == 0)
    return notes


def one_line(notes: Iterable[str]) -> list[str]:
    """Notes of one kind as at most one: the first, and how many more there are."""
    found = list(notes)
    return [f"{found[0]}, and {len(found) - 1} more"] if len(found) > 1 else found


def recognise(raw: bytes) -> tuple[str, str]:
    """What the first bytes of a file that is no container are, and what to do about it."""
    if raw.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer", "Run git lfs pull"
    if raw.startswith(b"\x7fELF"):
        return "an ELF program or library", _OTHER_FILE
    if raw.startswith(b"\x1f\x8b"):
        return "gzip data", "Unpack it"
    if raw.startswith(b"GGUF"):
        return "a GGUF checkpoint", "Build a package from it: cannlm build"
    if raw.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return "an HTML page, probably an error page of a download", "Download it again"
    if raw[4:8].startswith(b"MSL"):
        return "a MindSpore Lite model (.ms)", "Convert the model that it was made from with omg or atc"
    if raw[:1] == b"\x0a":
        return "perhaps a bare protobuf message (a Kirin model of type 7, or ONNX)", "Convert it with omg or atc"
    return "unknown bytes", _OTHER_FILE


def _custom_data_prefix(source: CountedSource) -> ContainerError:
    """CUST, i32 total, i32 type length, type, i32 value length, value, then the header."""
    where = "no IMOD header was found behind it"
    if source.size >= 16:
        (type_length,) = struct.unpack("<i", source.at(8, 4))
        value_at = 12 + type_length
        if type_length >= 0 and value_at + 4 <= source.size:
            (value_length,) = struct.unpack("<i", source.at(value_at, 4))
            header_at = value_at + 4 + value_length
            if value_length >= 0 and header_at + 4 <= source.size and source.at(header_at, 4) == MAGIC:
                where = f"the IMOD header starts at byte {header_at}"
    return ContainerError(
        f"custom data stand before the model; {where}",
        file=source.path,
        field="magic",
        found="43555354 ('CUST')",
        expected=f"{MAGIC.hex()} ('IMOD')",
        remedy="Cut off the prefix to read the model",
        code="OM_CUSTOM_DATA_PREFIX",
    )


def _partition_at(source: CountedSource, header: Header, payload_end: int, position: int) -> str | None:
    """Name of the partition of model 0 that ``position`` falls into, if the table can be read."""
    if position < HEADER_BYTES + table_bytes(header, 1):
        return None
    try:
        entries, _ = read_table(source, header, HEADER_BYTES, min(payload_end, source.size), 0)
    except ContainerError:
        return None
    return next((entry.name for entry in entries if entry.start <= position < entry.end), None)


def _partitions_end(source: CountedSource, header: Header, payload_end: int) -> int | None:
    """Where the partitions of model 0 end by their table, if it can be read."""
    try:
        entries, _ = read_table(source, header, HEADER_BYTES, payload_end, 0)
    except ContainerError:
        return None
    return max(entry.end for entry in entries)
