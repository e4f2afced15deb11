"""A ``tokenizer.json`` from the vocabulary inside a GGUF file.

GGUF keeps pieces, types and merges of a byte-level BPE tokenizer, and only a name (``tokenizer.ggml.pre``) for the
rules that split a text into words first. Those rules are the model's own; a name that is not known here is refused,
because another rule gives other ids for the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.tokenizer import TokenizerSpec


class TokenType(IntEnum):
    """Token types that matter here, as in ``tokenizer.ggml.token_type`` of the GGUF specification."""

    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    """Fills the vocabulary up to the rows of the embedding; its piece stands for no text."""


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split_by(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _BYTE_LEVEL | {"use_regex": False}]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_PRE_TOKENIZERS: Mapping[str, Mapping[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
    "default": _BYTE_LEVEL,
    "llama-bpe": _split_by(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"),
    "qwen2": _split_by(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"),
}
_NORMALIZERS: Mapping[str, Mapping[str, Any]] = {"qwen2": {"type": "NFC"}}
_IGNORES_MERGES = ("llama-bpe",)
_ADDS_BOS = ("llama-bpe",)


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, file: Path) -> TokenizerSpec:
    """The tokenizer that ``tokenizer.ggml.*`` describes.

    Raises ``UnsupportedModelError`` for vocabularies other than byte-level BPE and for unknown pre-tokenizers,
    ``BadInputError`` for missing or inconsistent entries.
    """
    kind, pre = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre", ""))
    if kind != "gpt2":
        raise UnsupportedModelError(
            "this kind of vocabulary is not supported",
            file=file,
            field="tokenizer.ggml.model",
            found=kind or "none",
            expected="gpt2 (byte-level BPE)",
            remedy="Use the model's Hugging Face folder, which has its tokenizer.json",
        )
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedModelError(
            "this pre-tokenizer is not supported",
            file=file,
            field="tokenizer.ggml.pre",
            found=pre or "none (the file does not say how words are split)",
            expected=", ".join(_PRE_TOKENIZERS),
            remedy="Use the model's Hugging Face folder, which has its tokenizer.json",
        )
    pieces, types, merges = (_texts(metadata, name, file=file) for name in ("tokens", "token_type", "merges"))
    if len(types) != len(pieces) or len(set(pieces)) != len(pieces):
        raise BadInputError(
            "the vocabulary contradicts itself",
            file=file,
            field="tokenizer.ggml.tokens",
            found=f"{len(pieces)} tokens, {len(set(pieces))} of them different, {len(types)} types",
        )
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(number, piece, special=kind == TokenType.CONTROL)
            for number, (piece, kind) in enumerate(zip(pieces, types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ],
        "normalizer": _NORMALIZERS.get(pre),
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            **({"ignore_merges": True} if pre in _IGNORES_MERGES else {}),
            "vocab": {
                piece: number
                for number, (piece, kind) in enumerate(zip(pieces, types, strict=True))
                if kind != TokenType.UNUSED
            },
            "merges": merges,
        },
    }
    add_bos = metadata.get("tokenizer.ggml.add_bos_token")
    return TokenizerSpec(
        json_text=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        chat_template=metadata.get("tokenizer.chat_template"),
        bos_token=_piece(metadata, "bos_token_id", pieces, file=file),
        eos_token=_piece(metadata, "eos_token_id", pieces, file=file),
        add_bos=pre in _ADDS_BOS if add_bos is None else bool(add_bos),
    )


def _texts(metadata: Mapping[str, Any], name: str, *, file: Path) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise BadInputError("the vocabulary is incomplete", file=file, field=f"tokenizer.ggml.{name}", found=value)
    return value


def _piece(metadata: Mapping[str, Any], name: str, pieces: list[str], *, file: Path) -> str | None:
    number = metadata.get(f"tokenizer.ggml.{name}")
    if number is None:
        return None
    if not 0 <= number < len(pieces):
        raise BadInputError(
            "a token id lies outside the vocabulary", file=file, field=f"tokenizer.ggml.{name}", found=number
        )
    return str(pieces[number])


def _added_token(number: int, piece: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": piece,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
