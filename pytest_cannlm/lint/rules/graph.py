"""PKG030 to PKG039, and PKG089: ``executor.json`` against the inputs and outputs that the compiled graph declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_cannlm.compat.package import described_cache
from pytest_cannlm.compat.places import EXECUTOR
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook

BOOK = RuleBook()

_FIX = "Take the number from the checkpoint that the model was built from, or build the package again"
_INPUTS = ("input_embed", "attention_mask", "position_ids", "new_kv_cache_pos", "embed_scales")
_OUTPUT = "lm_logits"
_CACHE_SETTINGS = ("kv_cache_max_len", "num_attention_kv_heads", "num_attention_head_dims")
_COS = "rope_cos"
"""The rotary table of a simulated model; one row per position of the KV cache."""


def _disagrees(facts: PackageFacts, key: str, found: int, compiled: int, tensor: str) -> Iterator[Problem]:
    if found != compiled:
        expected = f"{compiled}, as {tensor} of {facts.interface.file}"
        yield Problem(EXECUTOR, f"llm_config.{key}", str(found), expected, _FIX)


@BOOK.rule("PKG030", "error", "the number of layers is not the graph's")
def layers(facts: PackageFacts) -> Iterator[Problem]:
    """The engine binds one key and one value cache per layer by name, and crashes at load where there is none."""
    caches, count = set(facts.interface.caches()), facts.count("num_hidden_layers")
    largest = len(caches)
    for kind in ("past_key_in", "past_value_in"):
        have = sum(f"{kind}{i}" in caches for i in range(largest))
        named = sum(name.startswith(kind) for name in caches)
        if have != count or named != count:
            expected = f"{named}, as {kind}… of {facts.interface.file}"
            yield Problem(EXECUTOR, "llm_config.num_hidden_layers", str(count), expected, _FIX)
            return


@BOOK.rule("PKG031", "error", "the KV cache is not the graph's")
def cache_shape(facts: PackageFacts) -> Iterator[Problem]:
    """The engine allocates [kv_cache_max_len, KV heads, 1, head size] per layer and lets the model write into it."""
    needed = {key: facts.count(key) for key in _CACHE_SETTINGS}
    described = described_cache({**facts.executor["llm_config"], **needed})
    caches = facts.interface.caches()
    wrong = next((name for name, at in caches.items() if described.contradicts(at.shape)), None)
    if wrong is not None:
        field = f"llm_config.{', '.join(_CACHE_SETTINGS)}"
        found = _dims((needed["kv_cache_max_len"], described.heads, 1, described.head_size))
        yield Problem(
            EXECUTOR, field, found, f"{_dims(caches[wrong].shape)}, as {wrong} of {facts.interface.file}", _FIX
        )
    for name, at in caches.items():
        compared = at.shape if described.length else at.shape[1:]
        if any(axis < 1 for axis in compared):
            raise CannotLook(f"{facts.interface.file} leaves an axis of {name} open")


@BOOK.rule("PKG032", "error", "the hidden size is not the graph's")
def hidden_size(facts: PackageFacts) -> Iterator[Problem]:
    """The engine copies rows of hidden_size numbers into input_embed; another size crashes at load."""
    compiled = facts.interface.axis("input_embed", 2, rank=3)
    yield from _disagrees(facts, "hidden_size", facts.count("hidden_size"), compiled, "input_embed")


@BOOK.rule("PKG033", "error", "the vocabulary is not the graph's")
def vocabulary(facts: PackageFacts) -> Iterator[Problem]:
    """The engine reads vocab_size numbers per position from lm_logits; another size crashes or reads other memory."""
    if facts.flag("enable_lm_head_topk"):
        raise CannotLook(f"with enable_lm_head_topk {_OUTPUT} holds the likeliest tokens only")
    compiled = facts.interface.axis(_OUTPUT, 2, rank=3)
    yield from _disagrees(facts, "vocab_size", facts.count("vocab_size"), compiled, _OUTPUT)


@BOOK.rule("PKG034", "error", "the attention mask has another length than the KV cache")
def mask_length(facts: PackageFacts) -> Iterator[Problem]:
    """The mask has one number per slot of the cache."""
    compiled = facts.interface.axis("attention_mask", 3, rank=4)
    yield from _disagrees(facts, "kv_cache_max_len", facts.count("kv_cache_max_len"), compiled, "attention_mask")


@BOOK.rule("PKG035", "error", "the step length is not the graph's")
def step_length(facts: PackageFacts) -> Iterator[Problem]:
    """A graph of a fixed step takes chunks of exactly that length: it is prefill_len or decode_len."""
    compiled = facts.interface.axis("input_embed", 1, rank=3)
    lengths = facts.count("prefill_len"), facts.count("decode_len")
    if compiled not in lengths:
        expected = f"{compiled} among them, as input_embed of {facts.interface.file}"
        found = f"{lengths[0]} and {lengths[1]}"
        yield Problem(EXECUTOR, "llm_config.prefill_len, decode_len", found, expected, _FIX)


@BOOK.rule("PKG036", "warning", "the graph lacks an input or output of the engine")
def names(facts: PackageFacts) -> Iterator[Problem]:
    """The engine finds inputs and outputs by name."""
    declared = {**facts.interface.inputs, **facts.interface.outputs}
    wanted = (*_INPUTS, _OUTPUT)
    missing = [name for name in wanted if name not in declared]
    for name in missing if len(missing) < len(wanted) else ():
        yield Problem(
            facts.interface.file, name, "nothing", "an input or output of that name", "Export the model again"
        )


@BOOK.rule("PKG089", "error", "no language model of the engine")
def language_model(facts: PackageFacts) -> Iterator[Problem]:
    """The engine binds its inputs and outputs by name and finds none: the model is made for something else."""
    declared, wanted = {*facts.interface.inputs, *facts.interface.outputs}, (*_INPUTS, _OUTPUT)
    if not declared.intersection(wanted):
        shown = ", ".join(list(facts.interface.inputs)[:5])
        found = f"none of them; its inputs are {shown}" if shown else "none of them"
        yield Problem(
            facts.interface.file, None, found, ", ".join(wanted), "Use the compiled model of a language model"
        )


@BOOK.rule("PKG037", "error", "the embedding type is not the graph's")
def embedding_dtype(facts: PackageFacts) -> Iterator[Problem]:
    """The engine copies rows of this type into input_embed."""
    declared = facts.interface.inputs.get("input_embed")
    if declared is None or declared.dtype == "undefined":
        raise CannotLook(f"{facts.interface.file} does not declare the type of input_embed")
    kind = facts.setting("llm_config", "embedding_input_type", str)
    if _dtype(kind) != declared.dtype:
        expected = f"{declared.dtype}, as input_embed of {facts.interface.file}"
        yield Problem(EXECUTOR, "llm_config.embedding_input_type", kind, expected, "Use the embedding of this export")


@BOOK.rule("PKG038", "warning", "the KV cache is held in 32 bits")
def cache_dtype(facts: PackageFacts) -> Iterator[Problem]:
    """fp16 caches take half the memory and half the traffic; the conversion lacked --input_type and --output_type."""
    wide = [name for name, at in facts.interface.caches().items() if at.dtype == "float"]
    if wide:
        found = f"float, {len(wide)} inputs"
        yield Problem(facts.interface.file, wide[0], found, "float16", "Convert with fp16 caches")


@BOOK.rule("PKG039", "error", "the simulator's graph is another one")
def simulated_graph(facts: PackageFacts) -> Iterator[Problem]:
    """A simulated model declares one interface and runs the graph inside it; both must describe the same cache."""
    file, part = facts.container.path.name, "graph for the simulator"
    try:
        runtime = facts.runtime
    except CannotLook as cause:
        if not facts.container.simulated:
            raise
        yield Problem(file, part, str(cause), "a graph that the simulator can run", "Build the package again")
        return
    heads, size = facts.count("num_attention_kv_heads"), facts.count("num_attention_head_dims")
    count = facts.count("num_hidden_layers")
    if len(runtime.caches) > 2 * count or any(
        runtime.caches.get(name) != shape for name, shape in _caches(count, heads, size, len(runtime.caches))
    ):
        found = _summary(runtime.caches)
        expected = f"{count} layers of {heads} KV heads of {size}, as {EXECUTOR}"
        yield Problem(file, part, found, expected, "Build the package again")
    table = next((array for array in runtime.arrays if array.name == _COS), None)
    length = facts.count("kv_cache_max_len")
    if table is not None and table.dims[:1] != (length,):
        expected = f"{length} positions, as kv_cache_max_len of {EXECUTOR}"
        yield Problem(file, _COS, _dims(table.dims), expected, "Build the package again")


def _caches(layers: int, heads: int, size: int, present: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The cache inputs that the simulator's graph should have, one layer more than are present at most."""
    for i in range(min(layers, present // 2 + 1)):
        yield f"past_key_in{i}", (heads, size, -1)
        yield f"past_value_in{i}", (heads, -1, size)


def _summary(caches: Mapping[str, tuple[int, ...]]) -> str:
    shapes = ", ".join(sorted({_dims(shape) for shape in caches.values()})[:4])
    return f"{len(caches)} cache inputs of {shapes}" if caches else "no cache inputs"


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _dtype(name: str) -> str:
    """The container's name of a type that settings may call otherwise."""
    return {"float32": "float", "fp32": "float", "fp16": "float16"}.get(name, name)
