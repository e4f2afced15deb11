"""What a file really is, told from its first bytes: names and suffixes lie after a failed download or a rename."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.errors import BadInputError, EnvironmentFailure, UnsupportedModelError


@dataclass(frozen=True)
class Content:
    """What a file holds (``kind``), in words, and what to do if a model was expected."""

    kind: str
    words: str
    remedy: str


_MAGIC: tuple[tuple[bytes, Content], ...] = (
    (b"GGUF", Content("gguf", "a GGUF file", "")),
    (b"FUGG", Content("gguf-swapped", "a GGUF file of the other byte order", "Convert it to little-endian")),
    (b"ggml", Content("old-ggml", "a file of the format before GGUF", "Convert the model to GGUF again")),
    (b"lmgg", Content("old-ggml", "a file of the format before GGUF", "Convert the model to GGUF again")),
    (b"tjgg", Content("old-ggml", "a file of the format before GGUF", "Convert the model to GGUF again")),
    (b"IMOD", Content("om", "a compiled offline model (.om/.omc)", "Give the checkpoint that it was built from")),
    (b"\x1f\x8b", Content("gzip", "gzip-compressed data", "Unpack it first (gunzip)")),
    (b"\x28\xb5\x2f\xfd", Content("zstd", "zstd-compressed data", "Unpack it first (zstd -d)")),
    (b"\xfd7zXZ", Content("xz", "xz-compressed data", "Unpack it first (unxz)")),
    (b"PK\x03\x04", Content("zip", "a zip archive (a wheel, or a PyTorch file)", "Take the model out of it first")),
    (b"\x80\x02", Content("pickle", "a Python pickle (an old PyTorch file)", "Convert it to safetensors")),
)


def sniff(file: Path) -> Content:
    """Tell the content of ``file`` by reading at most 512 bytes. Raises ``EnvironmentFailure`` if it is unreadable."""
    try:
        with file.open("rb") as stream:
            head = stream.read(512)
    except OSError as error:
        raise EnvironmentFailure("the file cannot be read", file=file, found=error.strerror or error) from error
    if not head:
        return Content("empty", "empty (0 bytes)", "Download it again")
    if head.startswith(b"version https://git-lfs"):
        size = re.search(rb"^size (\d+)", head, re.MULTILINE)
        of = f" for {int(size[1]):,} bytes" if size else ""
        return Content("lfs-pointer", f"a git-lfs pointer{of}", "Run `git lfs pull` where it was cloned")
    for magic, content in _MAGIC:
        if head.startswith(magic):
            return content
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return Content("html", "an HTML page (a login or error page saved as a file)", "Download the file itself")
    if text.startswith(b"{"):
        return Content("json", "a JSON text", "Give the folder that holds config.json and the weights")
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 30:
        return Content("safetensors", "a safetensors file", "Give the folder that holds config.json and the weights")
    if re.match(rb"\x08[\x01-\x1f][\x12\x1a\x22\x2a\x32\x3a\x42]", head):  # ir_version, then another field
        return Content(
            "onnx", "an ONNX model", "Give the Hugging Face folder or the GGUF file that it was exported from"
        )
    return Content("unknown", "of no known kind", "Give a GGUF file or a Hugging Face folder")


def require(kind: str, file: Path, *, expected: str) -> None:
    """Raise unless ``file`` holds ``kind``: the error names what it is and what to do."""
    content = sniff(file)
    if content.kind == kind:
        return
    error = UnsupportedModelError if content.kind in ("onnx", "gguf-swapped", "pickle", "old-ggml") else BadInputError
    raise error(f"this file is {content.words}", file=file, expected=expected, remedy=content.remedy)
