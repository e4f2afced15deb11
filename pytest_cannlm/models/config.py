"""The decoder's shape and constants, read from a Hugging Face ``config.json`` in its old and its new spelling.

Field meanings follow transformers' ``LlamaConfig``. transformers 4 writes ``rope_theta``, ``rope_scaling`` and
``torch_dtype``; transformers 5 writes ``rope_parameters`` and ``dtype``. Both are read; a contradiction is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.fields import Fields

FAMILIES: Mapping[str, str] = {"llama": "LlamaForCausalLM"}
"""Supported families (``model_type``, and GGUF's ``general.architecture``) and their architecture."""

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
    rms_norm_eps: float
    rope_theta: float
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
    result = DecoderConfig(
        family=family,
        architecture=FAMILIES[family],
        layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=_head_dim(fields, hidden_size=hidden_size, heads=heads),
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
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


def require_family(name: str, *, file: Path | None, field: str) -> str:
    """``name`` if this version can build the family, else ``UnsupportedModelError``."""
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"model family {name!r} is not supported",
            file=file,
            field=field,
            found=name,
            expected=", ".join(FAMILIES),
        )
    return name


def refuse(what: str, *, file: Path, field: str, found: Any, expected: str) -> NoReturn:
    """Refuse a feature by name."""
    raise UnsupportedModelError(f"{what} is not supported", file=file, field=field, found=found, expected=expected)


def _family(fields: Fields) -> str:
    name = fields.get("model_type")
    if not isinstance(name, str):
        raise fields.missing("model_type") if name is None else fields.wrong("model_type", name, "a family name")
    family = require_family(name, file=fields.file, field="model_type")
    architectures = fields.get("architectures") or [FAMILIES[family]]
    if architectures != [FAMILIES[family]]:
        refuse(
            f"architecture {architectures!r}",
            file=fields.file,
            field="architectures",
            found=architectures,
            expected=FAMILIES[family],
        )
    return family


def _refuse_unsupported(fields: Fields, family: str) -> None:
    """Features that a config.json can switch on and that the exported graph does not have."""
    accepted: dict[str, tuple[str, tuple[Any, ...]]] = {
        "hidden_act": ("this activation", (None, "silu", "swish")),
        "attention_bias": ("attention bias", (None, False)),
        "mlp_bias": ("MLP bias", (None, False)),
        "partial_rotary_factor": ("partial rotary embedding", (None, 1.0)),
        "quantization_config": ("a checkpoint that is already quantized", (None,)),
        "text_config": ("a model with a nested text_config (multimodal)", (None,)),
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), ("mixture of experts", (None, 0, 1))),
    }
    for field, (what, values) in accepted.items():
        value = fields.get(field)
        if value not in values:
            expected = " or ".join("absent" if item is None else repr(item) for item in values)
            refuse(f"{what} (family {family})", file=fields.file, field=field, found=repr(value), expected=expected)
    window, in_use = fields.get("sliding_window"), fields.get("use_sliding_window")
    if window is not None and in_use is not False:
        refuse("sliding window attention", file=fields.file, field="sliding_window", found=window, expected="null")
    others = sorted({str(kind) for kind in fields.get("layer_types") or ()} - {"full_attention"})
    if others:
        refuse(
            "this kind of layer",
            file=fields.file,
            field="layer_types",
            found=", ".join(others),
            expected="full_attention",
        )


def _head_dim(fields: Fields, *, hidden_size: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        return fields.integer("head_dim")
    if hidden_size % heads:
        raise BadInputError(
            "hidden_size is not a multiple of num_attention_heads and head_dim is not given",
            file=fields.file,
            field="head_dim",
            found=f"{hidden_size} / {heads}",
        )
    return hidden_size // heads


def _rope_theta(fields: Fields) -> float:
    """The rotary base, wherever it stands. There is no default: a wrong base drifts with length, silently."""
    places = {"rope_theta": fields.get("rope_theta")}
    for name in ("rope_parameters", "rope_scaling"):
        group = fields.get(name)
        if group is None:
            continue
        if not isinstance(group, Mapping):
            raise fields.wrong(name, group, "an object or null")
        _require_default_rope(fields, name, group)
        places[f"{name}.rope_theta"] = group.get("rope_theta")
    given = {place: fields.as_number(place, value) for place, value in places.items() if value is not None}
    if not given:
        raise fields.missing("rope_theta")
    if len(set(given.values())) > 1:
        raise fields.conflict(given)
    return next(iter(given.values()))


def _require_default_rope(fields: Fields, name: str, group: Mapping[str, Any]) -> None:
    kinds = {key: group[key] for key in ("rope_type", "type") if group.get(key) is not None}
    if len(set(map(str, kinds.values()))) > 1:
        raise fields.conflict({f"{name}.{key}": value for key, value in kinds.items()})
    kind = next(iter(kinds.values()), "default")
    if kind != "default":
        refuse(f"RoPE type {kind!r}", file=fields.file, field=f"{name}.rope_type", found=kind, expected="default")
    for key in ("factor", "partial_rotary_factor"):
        if group.get(key) not in (None, 1):
            refuse(f"RoPE {key}", file=fields.file, field=f"{name}.{key}", found=group[key], expected="1 or absent")
    nested = [key for key, value in group.items() if isinstance(value, Mapping)]
    if nested:
        refuse(
            "RoPE per kind of layer",
            file=fields.file,
            field=name,
            found=", ".join(nested),
            expected="one for all layers",
        )


def _dtype(fields: Fields) -> str:
    value = fields.either("dtype", "torch_dtype")
    if value is None:
        return "unknown"
    if not isinstance(value, str):
        raise fields.wrong("dtype", value, "the name of a number format")
    return value
