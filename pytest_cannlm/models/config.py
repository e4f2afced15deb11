"""The decoder's shape and constants, read from a Hugging Face ``config.json`` in its old and its new spelling.

Field meanings follow transformers' ``LlamaConfig``, ``Qwen2Config``, ``Qwen3Config`` and ``GlmConfig``. transformers 4
writes ``rope_theta``, ``rope_scaling`` and ``torch_dtype``; transformers 5 writes ``rope_parameters`` and ``dtype``.
Both are read; a contradiction is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.families import Family, require_family
from pytest_cannlm.models.fields import Fields
from pytest_cannlm.models.rope import Rope, rope_of

MOST_LAYERS = 10_000
"""So that a damaged count is refused before names are made for that many layers."""

EosSources = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only model, normalised: families differ only here and in their canonical tensor names."""

    family: str
    architecture: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding; can exceed the tokenizer's vocabulary."""
    max_position_embeddings: int
    """Positions that the model is made for, those that YaRN adds included."""
    rms_norm_eps: float
    rope: Rope
    qkv_bias: bool
    """The projections to q, k and v have biases."""
    output_bias: bool
    """The projection of what attention found has a bias."""
    qk_norm: bool
    """Every head of q and of k is normed before the rotary embedding."""
    tie_word_embeddings: bool
    bos_token_id: int | None
    pad_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Union of all sources, sorted: generation stops at any of them."""
    eos_sources: EosSources
    """Where each end-of-text id was named: ``("generation_config.json", (151645, 151643))``, ..."""
    torch_dtype: str
    """Label of the source checkpoint's weights, such as "bfloat16" or "q4_1"."""
    unknown_fields: tuple[str, ...] = ()
    """Keys of the configuration that were not needed, for the record."""


def decoder_config(
    config: Mapping[str, Any],
    *,
    file: Path,
    generation: Mapping[str, Any] | None = None,
    tokenizer_eos: int | None = None,
) -> DecoderConfig:
    """Normalise a ``config.json``.

    ``generation`` is ``generation_config.json``; ``tokenizer_eos`` the id of the end-of-text token that
    ``tokenizer_config.json`` names. Raises ``UnsupportedModelError`` for anything that this version would compute
    wrongly, and ``BadInputError`` for missing, contradictory or nonsensical values.
    """
    fields = Fields(config, file=file)
    family = _family(fields)
    _refuse_unsupported(fields, family)
    layers = fields.integer("num_hidden_layers", maximum=MOST_LAYERS)
    _refuse_sliding_window(fields, family, layers=layers)
    vocab_size = fields.integer("vocab_size")
    heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    generation_fields = Fields(generation or {}, file=file.with_name("generation_config.json"))
    sources = (
        (file.name, fields.token_ids("eos_token_id", vocab_size=vocab_size)),
        ("generation_config.json", generation_fields.token_ids("eos_token_id", vocab_size=vocab_size)),
        ("tokenizer_config.json", () if tokenizer_eos is None else (tokenizer_eos,)),
    )
    eos_token_ids, eos_sources = unite_eos(sources, vocab_size=vocab_size, file=file)
    bos = fields.one_token_id("bos_token_id", vocab_size=vocab_size)
    if bos is None:
        bos = generation_fields.one_token_id("bos_token_id", vocab_size=vocab_size)
    head_dim = _head_dim(fields, family, hidden_size=hidden_size, heads=heads)
    rope = rope_of(fields, family=family, head_dim=head_dim)
    qkv_bias, output_bias = _attention_biases(fields, family)
    result = DecoderConfig(
        family=family.name,
        architecture=family.architecture,
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=max(fields.integer("max_position_embeddings"), rope.yarn.positions if rope.yarn else 0),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=family.qk_norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        bos_token_id=bos,
        pad_token_id=fields.one_token_id("pad_token_id", vocab_size=vocab_size),
        eos_token_ids=eos_token_ids,
        eos_sources=eos_sources,
        torch_dtype=_dtype(fields),
        unknown_fields=fields.not_asked(),
    )
    check_shape(result, file=file)
    return result


def check_shape(config: DecoderConfig, *, file: Path) -> None:
    """Refuse head counts and sizes that contradict each other."""
    if config.heads % config.kv_heads:
        raise BadInputError(
            "the attention heads cannot be shared out among the key-value heads",
            file=file,
            field="num_key_value_heads",
            found=config.kv_heads,
            expected=f"a divisor of {config.heads}",
        )
    if config.head_dim % 2:
        raise BadInputError(
            "rotary embedding needs an even head size", file=file, field="head_dim", found=config.head_dim
        )


def unite_eos(sources: EosSources, *, vocab_size: int, file: Path) -> tuple[tuple[int, ...], EosSources]:
    """The sorted union of the end-of-text ids and the sources that named any. None at all is refused."""
    named = tuple((source, ids) for source, ids in sources if ids)
    for source, ids in named:
        if any(token >= vocab_size for token in ids):
            raise BadInputError(
                "an end-of-text id lies outside the vocabulary",
                file=file.with_name(source),
                field="eos_token_id",
                found=list(ids),
                expected=f"ids below {vocab_size}",
            )
    if not named:
        raise BadInputError(
            "no end-of-text id is named anywhere, so generation would never stop",
            file=file,
            field="eos_token_id",
            remedy="Set eos_token_id in config.json or generation_config.json",
        )
    return tuple(sorted({token for _, ids in named for token in ids})), named


def _family(fields: Fields) -> Family:
    name = fields.get("model_type")
    if not isinstance(name, str):
        raise fields.missing("model_type") if name is None else fields.wrong("model_type", name, "a family name")
    family = require_family(name, file=fields.file, field="model_type")
    architectures = fields.get("architectures") or [family.architecture]
    if architectures != [family.architecture]:
        raise fields.unsupported(f"architecture {architectures!r}", "architectures", architectures, family.architecture)
    return family


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    """Features that a config.json can switch on and that the exported graph does not have."""
    accepted: dict[str, tuple[str, tuple[Any, ...]]] = {
        "hidden_act": ("this activation", (None, "silu", "swish")),
        "mlp_bias": ("MLP bias", (None, False)),
        "quantization_config": ("a checkpoint that is already quantized", (None,)),
        "text_config": ("a model with a nested text_config (multimodal)", (None,)),
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), ("mixture of experts", (None, 0, 1))),
    }
    for field, (what, values) in accepted.items():
        value = fields.get(field)
        if value not in values:
            expected = " or ".join("absent" if item is None else repr(item) for item in values)
            raise fields.unsupported(f"{what} (family {family.name})", field, repr(value), expected)
    kinds = fields.get("layer_types") or []
    if not isinstance(kinds, list):
        raise fields.wrong("layer_types", kinds, "a list of names")
    others = sorted({str(kind) for kind in kinds} - {"full_attention"})
    if others:
        raise fields.unsupported("this kind of layer", "layer_types", ", ".join(others), "full_attention")


def _refuse_sliding_window(fields: Fields, family: Family, *, layers: int) -> None:
    """A window counts only where it is switched on, and only from layer ``max_window_layers`` on."""
    window = fields.get("sliding_window")
    in_use = fields.flag("use_sliding_window", default=family.sliding_window)
    first = fields.integer("max_window_layers", default=0, minimum=0)
    if window is not None and in_use and first < layers:
        raise fields.unsupported("sliding window attention", "sliding_window", window, "null")


def _attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Whether q, k and v, and whether the output projection have biases."""
    if family.qkv_bias is not None:
        return family.qkv_bias, False
    biased = fields.flag("attention_bias", default=family.attention_bias)
    return biased, biased and family.output_bias


def _head_dim(fields: Fields, family: Family, *, hidden_size: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    if family.head_dim is not None:
        return family.head_dim
    if hidden_size % heads:
        raise BadInputError(
            "hidden_size is not a multiple of num_attention_heads and head_dim is not given",
            file=fields.file,
            field="head_dim",
            found=f"{hidden_size} / {heads}",
        )
    return hidden_size // heads


def _dtype(fields: Fields) -> str:
    value = fields.either("dtype", "torch_dtype")
    if value is None:
        return "unknown"
    if not isinstance(value, str):
        raise fields.wrong("dtype", value, "the name of a number format")
    return value
