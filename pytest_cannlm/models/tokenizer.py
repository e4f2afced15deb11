"""Text to token ids and back, through the ``tokenizers`` library, and the file form that the engine reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pytest_cannlm.errors import BadInputError, UnsupportedModelError, UsageError
from pytest_cannlm.models import chat
from pytest_cannlm.models.detokenize import TokenStream, piece_decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


@dataclass(frozen=True)
class TokenizerSpec:
    """A tokenizer as the checkpoint gives it."""

    json_text: str
    """The original ``tokenizer.json``, or one made from a GGUF vocabulary."""
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    add_bos: bool
    """Whether a prompt starts with ``bos_token``."""

    def engine_json(self) -> str:
        """The ``tokenizer.json`` that the LM Engine reads: merges as ``"a b"`` texts, no ``ignore_merges``.

        The engine's parser aborts the process on merges that are pairs. Truncation and padding, which would change a
        prompt, are switched off. The ids stay the same; where they could not, ``UnsupportedModelError`` is raised.
        """
        data = _parse(self.json_text)
        model = data["model"]
        changed = any(data.get(key) is not None for key in ("truncation", "padding"))
        data |= {key: None for key in ("truncation", "padding") if key in data}
        merges = model.get("merges") or []
        if any(not isinstance(merge, str) for merge in merges):
            model["merges"] = [merge if isinstance(merge, str) else _joined(merge) for merge in merges]
            changed = True
        ignored_merges = model.pop("ignore_merges", None)
        if not changed and ignored_merges is None:
            return self.json_text
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        if ignored_merges:
            _require_same_ids(self.json_text, text)
        return text


class Tokenizer:
    """A tokenizer with the model's special tokens and chat template. Special tokens are never added twice."""

    def __init__(self, spec: TokenizerSpec) -> None:
        data = _parse(spec.json_text)
        self.spec = spec
        self._library = _load(spec.json_text)
        self._to_bytes, self._strip = piece_decoder(data.get("decoder"))
        added = self._library.get_added_tokens_decoder().items()
        self._special_ids = {token: entry.content for token, entry in added if entry.special}
        self.special_tokens: dict[str, int] = {text: token for token, text in sorted(self._special_ids.items())}
        """Text and id of every special token."""
        self.vocab_size: int = self._library.get_vocab_size(with_added_tokens=True)
        """Number of tokens that have a text; the model's embedding can have more rows."""
        self.id_limit: int = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the largest id that has a text."""
        self.bos_token_id: int | None = None if spec.bos_token is None else self._library.token_to_id(spec.bos_token)
        if spec.add_bos and self.bos_token_id is None:
            raise BadInputError(
                "prompts must start with a token that the tokenizer does not have",
                field="bos_token",
                found=spec.bos_token,
            )

    @classmethod
    def from_json(
        cls,
        text: str,
        *,
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        add_bos: bool = False,
    ) -> Self:
        """From the text of a ``tokenizer.json`` and what stands beside it."""
        return cls(TokenizerSpec(text, chat_template, bos_token, eos_token, add_bos))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``.

        With ``special`` the texts of special tokens become those tokens: right for a rendered chat. Without it they
        stay plain text: right for what a user typed. BOS is put in front where the model wants it and the text does not
        start with it already.
        """
        library = self._library if special else self._plain_library
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        if self.spec.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids`` without special tokens: exactly what :meth:`stream` yields for them."""
        stream = self.stream()
        return "".join(map(stream.feed, ids)) + stream.finish()

    def stream(self) -> TokenStream:
        """A detokenizer that takes one id at a time."""
        return TokenStream(self._bytes_of, strip_leading_space=self._strip)

    def token_text(self, token: int) -> str | None:
        """The text of a single token for display, special tokens included; ``None`` for an id without a token."""
        piece: str | None = self._library.id_to_token(token) if token >= 0 else None
        if piece is None or token in self._special_ids:
            return piece
        return self._to_bytes(piece).decode(errors="replace")

    def render_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text for ``messages``: the engine applies no template itself. Encode it with ``special=True``."""
        if self.spec.chat_template is None:
            raise UsageError(
                "this model has no chat template",
                field="chat_template",
                remedy="Give the finished prompt text instead of messages",
            )
        return chat.render(
            self.spec.chat_template,
            messages,
            bos_token=self.spec.bos_token,
            eos_token=self.spec.eos_token,
            add_generation_prompt=add_generation_prompt,
        )

    def _bytes_of(self, token: int) -> bytes:
        piece = None if token in self._special_ids or token < 0 else self._library.id_to_token(token)
        return b"" if piece is None else self._to_bytes(piece)

    @cached_property
    def _plain_library(self) -> Library:
        # A second instance, because the switch is a property of the whole tokenizer and not of one call.
        library = _load(self.spec.json_text)
        library.encode_special_tokens = True
        return library


def adds_bos(json_text: str, bos_token: str | None) -> bool:
    """Whether the post-processor of this ``tokenizer.json`` puts ``bos_token`` in front of a text."""
    processor = _parse(json_text).get("post_processor") or {}
    steps = processor.get("processors", [processor])
    starts = [step["single"][:1] for step in steps if step.get("type") == "TemplateProcessing"]
    return any(part.get("SpecialToken", {}).get("id") == bos_token for start in starts for part in start)


def check_vocabulary(json_text: str, *, rows: int, file: Path) -> None:
    """Refuse a tokenizer with an id that the embedding of ``rows`` rows does not have."""
    data = _parse(json_text)
    vocabulary = data["model"].get("vocab")
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else []
    largest = max([*ids, *(entry["id"] for entry in data.get("added_tokens") or ())], default=-1)
    if largest >= rows:
        raise BadInputError(
            "the tokenizer has ids that the model's embedding does not have",
            file=file,
            field="vocab_size",
            found=f"id {largest}",
            expected=f"ids below {rows}",
        )


def token_id(json_text: str, token: str) -> int | None:
    """The id of ``token`` in a ``tokenizer.json``, without building the tokenizer."""
    data = _parse(json_text)
    for entry in data.get("added_tokens") or ():
        if entry.get("content") == token:
            return int(entry["id"])
    vocabulary = data["model"].get("vocab")
    found = vocabulary.get(token) if isinstance(vocabulary, Mapping) else None
    return found if isinstance(found, int) else None


def _parse(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError("tokenizer.json is not readable JSON", found=error) from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise BadInputError("tokenizer.json does not describe a tokenizer", field="model", expected="an object")
    return data


def _load(text: str) -> Library:
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_str(text)
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise BadInputError("tokenizer.json cannot be loaded", found=error) from error
    library.no_truncation()
    library.no_padding()
    return library


def _joined(merge: Sequence[str]) -> str:
    if len(merge) != 2 or any(" " in part for part in merge):
        raise UnsupportedModelError(
            "a merge of this tokenizer cannot be written in the form that the engine reads",
            field="model.merges",
            found=repr(merge),
            expected="two pieces without spaces",
        )
    return f"{merge[0]} {merge[1]}"


def _require_same_ids(original: str, rewritten: str) -> None:
    """``ignore_merges`` takes whole words from the vocabulary before merging: compare on every piece there is."""
    before, after = _load(original), _load(rewritten)
    texts = [before.decode([token], skip_special_tokens=False) for token in range(before.get_vocab_size())]
    pairs = zip(before.encode_batch_fast(texts), after.encode_batch_fast(texts), strict=True)
    different = [text for text, (one, other) in zip(texts, pairs, strict=True) if one.ids != other.ids]
    if different:
        raise UnsupportedModelError(
            "without ignore_merges, which the engine cannot read, this tokenizer gives other ids",
            field="model.ignore_merges",
            found=f"{len(different)} words, such as {different[0]!r}",
            expected="the same ids",
        )
