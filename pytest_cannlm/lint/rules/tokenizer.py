"""PKG050 to PKG061: the tokenizer file, its ids, and what ``executor.json`` and ``context.json`` say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.schema import BPE_TYPES

BOOK = RuleBook()


@dataclass(frozen=True)
class Tokens:
    """The ids of a tokenizer file."""

    file: str
    ids: Mapping[int, str]
    added: frozenset[int]
    """Ids that ``added_tokens`` lists: those that plain text does not produce piece by piece."""
    unusable: tuple[str, ...]
    """Tokens whose id is no whole number of at least 0."""
    twice: tuple[int, ...]
    """Ids of several different tokens."""

    @cached_property
    def limit(self) -> int:
        """One more than the largest id."""
        return max(self.ids, default=-1) + 1


@BOOK.rule("PKG050", "error", "merges are pairs")
def merges_as_pairs(facts: PackageFacts) -> Iterator[Problem]:
    """The engine wants every merge as one text, "a b"; on the newer form, a list of two, it ends the process."""
    merges = _model(facts).get("merges")
    if not isinstance(merges, list):
        raise CannotLook("the tokenizer has no list of merges")
    wrong = next((merge for merge in merges if not isinstance(merge, str)), None)
    if wrong is not None:
        fix = "Join the two parts of every merge with one space, as cannlm build does"
        yield Problem(facts.tokenizer_file.name, "model.merges", str(wrong)[:80], 'texts such as "a b"', fix)


@BOOK.rule("PKG051", "warning", "ignore_merges is set down")
def ignore_merges(facts: PackageFacts) -> Iterator[Problem]:
    """It belongs to the newer form of the file, which the engine's parser does not know; ids can then differ."""
    model = _model(facts)
    if "ignore_merges" in model:
        found = str(model["ignore_merges"])[:80]
        fix = "Take it out, and compare the ids of some texts where it is true"
        yield Problem(facts.tokenizer_file.name, "model.ignore_merges", found, "nothing", fix)


@BOOK.rule("PKG052", "error", "the tokenizer is of another kind than its type")
def model_type(facts: PackageFacts) -> Iterator[Problem]:
    """The types bpe, qwen and qwen2 make the engine read a BPE model: a vocabulary and merges."""
    kind = facts.setting("tokenizer", "type", str)
    if kind not in BPE_TYPES:
        raise CannotLook(f"what a tokenizer of type {kind} looks like inside is not described")
    file, model = facts.tokenizer_file.name, facts.tokenizer.get("model")
    fix = "Use the right type or file"
    if not isinstance(model, Mapping):
        yield Problem(file, "model", "nothing", "an object with vocab and merges", fix)
        return
    found = model.get("type", "BPE" if "merges" in model else None)
    if found != "BPE":
        yield Problem(file, "model.type", str(found)[:80], f"BPE, for tokenizer.type {kind}", fix)
    for part, words in (("vocab", "an object of texts and ids"), ("merges", "a list of texts")):
        if not isinstance(model.get(part), (Mapping if part == "vocab" else list)):
            yield Problem(file, f"model.{part}", "nothing usable", words, fix)


@BOOK.rule("PKG053", "error", "token ids that are no ids, or not unique")
def unique_ids(facts: PackageFacts) -> Iterator[Problem]:
    """Two tokens of one id cannot both come back as text, and an id that is no number stops the parser."""
    tokens = _tokens(facts)
    fix = "Take tokenizer.json from the checkpoint again"
    if tokens.unusable:
        found = f"{len(tokens.unusable)} tokens, first {tokens.unusable[0][:40]!r}"
        yield Problem(tokens.file, "ids", found, "whole numbers of at least 0", fix)
    if tokens.twice:
        found = f"{len(tokens.twice)} ids of several tokens, first {tokens.twice[0]}"
        yield Problem(tokens.file, "ids", found, "one token per id", fix)


@BOOK.rule("PKG054", "note", "gaps in the token ids")
def gaps(facts: PackageFacts) -> Iterator[Problem]:
    """An id between others that has no token gives no text if the model ever picks it."""
    tokens = _tokens(facts)
    missing = tokens.limit - len(tokens.ids)
    if missing:
        found = f"{missing} ids below {tokens.limit} without a token"
        yield Problem(tokens.file, "ids", found, "every id", "Nothing, if the checkpoint has the same gaps")


@BOOK.rule("PKG055", "error", "token ids beyond the vocabulary")
def ids_have_rows(facts: PackageFacts) -> Iterator[Problem]:
    """The engine looks up the embedding row of every id: one past the end reads other memory."""
    tokens, vocab = _tokens(facts), facts.count("vocab_size")
    if tokens.limit > vocab:
        found = f"ids up to {tokens.limit - 1}"
        yield Problem(
            tokens.file, "ids", found, f"ids below vocab_size {vocab}", "Use the tokenizer of this checkpoint"
        )


@BOOK.rule("PKG056", "error", "bos_token_id or eos_token_id names no token")
def special_ids_exist(facts: PackageFacts) -> Iterator[Problem]:
    """A model never ends by an id that has no token, and an answer then runs to its limit."""
    tokens = _tokens(facts)
    for key in ("bos_token_id", "eos_token_id"):
        token = facts.token_id(key)
        if token not in tokens.ids:
            expected = f"an id that {tokens.file} has a token for"
            fix = "Take it from config.json of the checkpoint"
            yield Problem(EXECUTOR, f"llm_config.{key}", str(token), expected, fix)


@BOOK.rule("PKG057", "warning", "the end-of-text id is an ordinary token")
def end_is_special(facts: PackageFacts) -> Iterator[Problem]:
    """End of text is a token of its own that the tokenizer adds; an ordinary word would cut answers short."""
    tokens, end = _tokens(facts), facts.token_id("eos_token_id")
    if not tokens.added:
        raise CannotLook(f"{tokens.file} lists no added tokens")
    if end in tokens.ids and end not in tokens.added:
        found = f"{end}, {tokens.ids[end][:40]!r}"
        expected = "one of the added tokens, such as " + ", ".join(
            repr(tokens.ids[i]) for i in sorted(tokens.added)[:3]
        )
        fix = "Compare with generation_config.json of the checkpoint"
        yield Problem(EXECUTOR, "llm_config.eos_token_id", found, expected, fix)


@BOOK.rule("PKG058", "warning", "the end-of-text token is no stop sequence")
def end_is_stop_sequence(facts: PackageFacts) -> Iterator[Problem]:
    """The engine takes one end id; chat models have several, and what is not in stop_sequence stays in the answer."""
    end = _tokens(facts).ids.get(facts.token_id("eos_token_id"))
    stop = facts.setting("generate_options", "stop_sequence", list, file=CONTEXT)
    if end is not None and end not in stop:
        found = ", ".join(map(repr, stop[:5])) or "an empty list"
        expected = f"{end!r}, the token of eos_token_id, among them"
        yield Problem(CONTEXT, "generate_options.stop_sequence", found, expected, f"Add {end!r}")


@BOOK.rule("PKG059", "warning", "vocab_real_size leaves tokens out")
def real_size_too_small(facts: PackageFacts) -> Iterator[Problem]:
    """Tokens from vocab_real_size on are taken for padding rows and never picked."""
    tokens, real, vocab = _tokens(facts), facts.count("vocab_real_size"), facts.count("vocab_size")
    if real < min(tokens.limit, vocab):
        expected = f"{min(tokens.limit, vocab)}, the largest id of {tokens.file} plus one"
        yield Problem(EXECUTOR, "llm_config.vocab_real_size", str(real), expected, "Write the tokenizer's size")


@BOOK.rule("PKG060", "note", "vocab_real_size counts ids without a token")
def real_size_too_large(facts: PackageFacts) -> Iterator[Problem]:
    """Sampling may pick a padding row, which gives no text; official packages leave it so."""
    tokens, real = _tokens(facts), facts.count("vocab_real_size")
    if real > tokens.limit:
        expected = f"{tokens.limit}, the largest id of {tokens.file} plus one"
        yield Problem(EXECUTOR, "llm_config.vocab_real_size", str(real), expected, "Write the tokenizer's size")


@BOOK.rule("PKG061", "warning", "the tokenizer cuts or pads texts")
def changes_prompts(facts: PackageFacts) -> Iterator[Problem]:
    """Truncation shortens long prompts without a word, and padding adds tokens to short ones."""
    for key in ("truncation", "padding"):
        if facts.tokenizer.get(key) is not None:
            yield Problem(facts.tokenizer_file.name, key, "set", "null", f"Write null for {key}")


def _model(facts: PackageFacts) -> Mapping[str, Any]:
    model = facts.tokenizer.get("model")
    if not isinstance(model, Mapping):
        raise CannotLook(f"{facts.tokenizer_file.name} has no model")
    return model


def _tokens(facts: PackageFacts) -> Tokens:
    return facts.derived("tokens", lambda: _read_tokens(facts))


def _read_tokens(facts: PackageFacts) -> Tokens:
    vocabulary = _model(facts).get("vocab")
    if not isinstance(vocabulary, Mapping):
        raise CannotLook("the vocabulary of the tokenizer is no object of texts and ids")
    listed = facts.tokenizer.get("added_tokens")
    added = [
        (entry["content"], entry.get("id"))
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, Mapping) and isinstance(entry.get("content"), str)
    ]
    ids: dict[int, str] = {}
    unusable: list[str] = []
    twice: set[int] = set()
    for text, token in chain(vocabulary.items(), (pair for pair in added if vocabulary.get(pair[0]) != pair[1])):
        if type(token) is not int or token < 0:  # true is an int too, and no id
            unusable.append(text)
        elif token in ids:
            twice.add(token)
        else:
            ids[token] = text
    special = frozenset(token for _, token in added if type(token) is int)
    return Tokens(facts.tokenizer_file.name, ids, special, tuple(unusable), tuple(sorted(twice)))
