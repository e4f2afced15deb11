"""PKG016 to PKG029: what the numbers of ``executor.json`` say together, and with ``context.json``."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cannlm.compat.places import CONTEXT, EXECUTOR
from pytest_cannlm.lint.facts import THETA, PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.schema import COMPILED_FLAGS, NEWER_TOKENIZER_TYPES, TOKENIZER_TYPES

BOOK = RuleBook()

_FALLBACK_THETA = 10_000


def _number(field: str, found: object, expected: str, fix: str) -> Problem:
    return Problem(EXECUTOR, f"llm_config.{field}", str(found), expected, fix)


@BOOK.rule("PKG016", "error", "a tokenizer type that the engine does not accept")
def tokenizer_type(facts: PackageFacts) -> Iterator[Problem]:
    """The engine fails to create its tokenizer, and with it the executor."""
    kind = facts.setting("tokenizer", "type", str)
    if kind in NEWER_TOKENIZER_TYPES:
        raise CannotLook(f"whether the engine takes tokenizer type {kind} depends on its version")
    if kind not in TOKENIZER_TYPES:
        expected = "one of " + ", ".join(TOKENIZER_TYPES)
        yield Problem(EXECUTOR, "tokenizer.type", kind, expected, "Write bpe for a byte-level BPE tokenizer")


@BOOK.rule("PKG017", "error", "the attention heads cannot share the KV heads evenly")
def heads_per_kv_head(facts: PackageFacts) -> Iterator[Problem]:
    """Each KV head serves the same number of attention heads; other numbers belong to no model."""
    heads, shared = facts.count("num_attention_heads"), facts.count("num_attention_kv_heads")
    if heads % shared:
        yield _number("num_attention_kv_heads", shared, f"a divisor of {heads} heads", "Take both from config.json")


@BOOK.rule("PKG018", "note", "heads times head size is not the hidden size")
def heads_times_size(facts: PackageFacts) -> Iterator[Problem]:
    """True of some families (Qwen3, Gemma) and a mistake in others; only the checkpoint's config.json can tell."""
    heads, size = facts.count("num_attention_heads"), facts.count("num_attention_head_dims")
    hidden = facts.count("hidden_size")
    if heads * size != hidden:
        expected = f"hidden_size {hidden}, where the model does not say otherwise"
        yield _number("num_attention_heads", f"{heads} x {size} = {heads * size}", expected, "Compare with config.json")


@BOOK.rule("PKG019", "note", "rope_theta may be a fallback value")
def fallback_theta(facts: PackageFacts) -> Iterator[Problem]:
    """Packaging scripts write 10000 when they find none; of the Qwen models only DeepSeek's distillations have it."""
    theta = facts.setting("llm_config", "rope_theta", object)
    family = facts.setting("llm_config", "model_type", str)
    if family.lower().startswith("qwen") and theta == _FALLBACK_THETA and facts.recorded(*THETA) is None:
        yield _number("rope_theta", theta, "rope_theta of config.json, often 1000000", "Compare with config.json")


@BOOK.rule("PKG020", "error", "a step is longer than the KV cache")
def step_lengths(facts: PackageFacts) -> Iterator[Problem]:
    """prefill_len and decode_len are slots of the KV cache that one step writes."""
    cache = facts.count("kv_cache_max_len")
    for key in ("prefill_len", "decode_len"):
        if facts.count(key) > cache:
            yield _number(key, facts.count(key), f"at most kv_cache_max_len {cache}", "Use the gears of the model")


@BOOK.rule("PKG021", "warning", "the KV cache is longer than the model was made for")
def trained_positions(facts: PackageFacts) -> Iterator[Problem]:
    """Positions beyond max_position_embeddings were never trained; answers degrade there without an error."""
    cache, trained = facts.count("kv_cache_max_len"), facts.count("max_position_embeddings")
    if cache > trained:
        expected = f"at most max_position_embeddings {trained}"
        yield _number("kv_cache_max_len", cache, expected, "Build with a shorter context")


@BOOK.rule("PKG022", "error", "kept and generated tokens exceed max_io_tokens")
def io_tokens(facts: PackageFacts) -> Iterator[Problem]:
    """init_token_len + max_gen_tokens above max_io_tokens fails inside the engine, and Generate returns a failure."""
    kept = facts.setting("generate_options", "init_token_len", int, file=CONTEXT)
    new = facts.setting("generate_options", "max_gen_tokens", int, file=CONTEXT)
    most = facts.count("max_io_tokens")
    if kept + new > most:
        field = "generate_options.init_token_len + max_gen_tokens"
        yield Problem(CONTEXT, field, f"{kept} + {new}", f"at most max_io_tokens {most}", "Lower max_gen_tokens")


@BOOK.rule("PKG023", "warning", "more new tokens than the KV cache holds")
def answer_above_cache(facts: PackageFacts) -> Iterator[Problem]:
    """Capacity is kv_cache_max_len for prompt and answer together; past it the engine reports success and repeats."""
    new = facts.setting("generate_options", "max_gen_tokens", int, file=CONTEXT)
    cache = facts.count("kv_cache_max_len")
    if new >= cache:
        expected = f"less than kv_cache_max_len {cache}, which the prompt shares"
        yield Problem(CONTEXT, "generate_options.max_gen_tokens", str(new), expected, "Lower max_gen_tokens")


@BOOK.rule("PKG024", "error", "a flag of another compilation")
def compiled_flags(facts: PackageFacts) -> Iterator[Problem]:
    """These flags describe how the graph was compiled. A model that was compiled without them is then not created."""
    present = [flag for flag in COMPILED_FLAGS if facts.flag(flag) is not None]
    if present and not facts.own_build:
        raise CannotLook(f"only who compiled the model knows whether {', '.join(present)} fit it")
    for flag in present:
        yield _number(flag, facts.flag(flag), "nothing: the build compiles without it", "Take the flag out")


@BOOK.rule("PKG025", "error", "several KV lengths without merged caches")
def unmerged_lengths(facts: PackageFacts) -> Iterator[Problem]:
    """The engine asserts that a model whose is_kv_cache_merge is false has one KV length, and ends the process."""
    lengths = sorted({cache.shape[0] for cache in facts.interface.caches().values() if cache.shape})
    if len(lengths) > 1 and facts.flag("is_kv_cache_merge") is False:
        found = f"false, with KV lengths {', '.join(map(str, lengths))}"
        yield _number("is_kv_cache_merge", found, "true, or one KV length", "Use another package of this model")


@BOOK.rule("PKG026", "error", "a token id outside the vocabulary")
def ids_in_vocabulary(facts: PackageFacts) -> Iterator[Problem]:
    """The id selects a row of the embedding and of the logits that does not exist."""
    vocab = facts.count("vocab_size")
    for key in ("bos_token_id", "eos_token_id"):
        token = facts.token_id(key)
        if not 0 <= token < vocab:
            yield _number(key, token, f"an id from 0 to {vocab - 1}", "Take it from config.json of the checkpoint")


@BOOK.rule("PKG027", "warning", "the padding id is outside the vocabulary")
def padding_in_vocabulary(facts: PackageFacts) -> Iterator[Problem]:
    """The last prefill chunk is filled up with it."""
    vocab, token = facts.count("vocab_size"), facts.token_id("pad_token_id")
    if not 0 <= token < vocab:
        yield _number("pad_token_id", token, f"an id from 0 to {vocab - 1}", "Write 0 for a model without one")


@BOOK.rule("PKG028", "error", "more real tokens than rows")
def real_vocabulary(facts: PackageFacts) -> Iterator[Problem]:
    """vocab_real_size counts the leading rows of the vocabulary that stand for tokens."""
    vocab, real = facts.count("vocab_size"), facts.count("vocab_real_size")
    if real > vocab:
        yield _number("vocab_real_size", real, f"at most vocab_size {vocab}", "Write the tokenizer's size")


@BOOK.rule("PKG029", "warning", "an embedding type without a known layout")
def embedding_type(facts: PackageFacts) -> Iterator[Problem]:
    """int8 rows with one scale each are the only described form; sizes and numbers of others cannot be checked."""
    kind = facts.setting("llm_config", "embedding_input_type", str)
    if kind != "int8":
        yield _number("embedding_input_type", kind, "int8", "Store the embedding as int8 rows with one scale each")
