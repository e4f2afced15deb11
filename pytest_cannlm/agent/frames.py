"""Length-prefixed frames over a byte stream: how supervisor and worker talk, and how logits reach the harness.

A frame is one kind byte (``J`` JSON object, ``B`` raw bytes), the payload's length as a big-endian uint32, the payload.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Protocol, Union

from pytest_cannlm.errors import EnvironmentFailure

Frame = Union[dict[str, Any], bytes]

_HEAD = struct.Struct(">cI")
_JSON, _BYTES = b"J", b"B"


class ByteSource(Protocol):
    """What frames are read from."""

    def read(self, size: int, /) -> bytes | None:
        """Up to ``size`` bytes; fewer only at the end of the stream."""


def encode(frame: Frame) -> bytes:
    """One frame as bytes, ready to be written in a single call."""
    kind, payload = (_BYTES, frame) if isinstance(frame, bytes) else (_JSON, json.dumps(frame).encode())
    return _HEAD.pack(kind, len(payload)) + payload


def read_frame(stream: ByteSource) -> Frame | None:
    """The next frame; None at the end of the stream, also where the writer died in the middle of a frame.

    Raises :class:`EnvironmentFailure` if the bytes are no frame at all.
    """
    head = stream.read(_HEAD.size) or b""
    if len(head) < _HEAD.size:
        return None
    kind, length = _HEAD.unpack(head)
    if kind not in (_JSON, _BYTES):
        raise EnvironmentFailure(
            "the stream between harness, agent and engine is damaged", found=head, expected="a frame"
        )
    payload = stream.read(length) or b""
    if len(payload) < length:
        return None
    if kind == _BYTES:
        return payload
    decoded: dict[str, Any] = json.loads(payload)
    return decoded
