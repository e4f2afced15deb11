"""From token ids back to text, one id at a time.

A token is a piece of bytes, not of characters: an emoji can be spread over four tokens. So every token is turned into
its bytes and the bytes go through an incremental UTF-8 decoder; the cost per token does not depend on what came before.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from typing import Any

from pytest_cannlm.errors import UnsupportedModelError

PieceToBytes = Callable[[str], bytes]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of every byte in byte-level BPE (GPT-2's table): printable Latin-1 stands for itself,
    the other bytes are numbered from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + rank): byte for rank, byte in enumerate(moved)}


BYTE_LEVEL = _byte_level_alphabet()


def byte_level_piece(piece: str) -> bytes:
    """Bytes of a byte-level piece; one with a character outside the alphabet (an added token) stands for itself."""
    try:
        return bytes(BYTE_LEVEL[character] for character in piece)
    except KeyError:
        return piece.encode()


def byte_fallback_piece(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: ``▁`` is a space, ``<0x0A>`` is one byte."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


def piece_decoder(decoder: Mapping[str, Any] | None) -> tuple[PieceToBytes, bool]:
    """How pieces become bytes, and whether one leading space of the whole text is dropped.

    ``decoder`` is the ``decoder`` entry of a ``tokenizer.json``. Raises ``UnsupportedModelError`` for other kinds.
    """
    steps: list[Mapping[str, Any]] = [decoder] if decoder else []
    if decoder and decoder.get("type") == "Sequence":
        steps = list(decoder.get("decoders", []))
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_piece, False
    if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return byte_fallback_piece, "Strip" in kinds
    raise UnsupportedModelError(
        "this tokenizer's decoder is not supported",
        field="decoder",
        found=" + ".join(kinds) or "none",
        expected="ByteLevel, or Replace + ByteFallback + Fuse + Strip",
    )


class TokenStream:
    """Text of a growing sequence of tokens. ``feed`` in order, then ``finish`` once."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_leading_space

    def feed(self, token: int) -> str:
        """The text that became certain with this token; empty inside a UTF-8 character."""
        return self._stripped(self._decoder.decode(self._token_bytes(token)))

    def finish(self) -> str:
        """What is left: U+FFFD for the bytes of a character that never ended."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
