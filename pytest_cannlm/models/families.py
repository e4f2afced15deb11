"""The model families that can be built, each as data: what one family has and another has not stands only here.

Read from transformers' model classes (``LlamaForCausalLM``, ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM``,
``GlmForCausalLM``) and their configurations' defaults; the order of GGUF rows from llama.cpp's conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.errors import UnsupportedModelError


@dataclass(frozen=True)
class Family:
    """Decoder-only models with RMSNorm, rotary embedding, grouped attention and a gated SiLU MLP."""

    name: str
    """``model_type`` of ``config.json``."""
    architecture: str
    tokenizer_type: str
    """What the LM Engine calls the tokenizer, in ``executor.json``."""
    qkv_bias: bool | None = None
    """Whether q, k and v have biases; None: ``attention_bias`` decides."""
    attention_bias: bool = False
    """``attention_bias`` where a configuration does not say."""
    output_bias: bool = False
    """``attention_bias`` covers the output projection too."""
    qk_norm: bool = False
    """An RMSNorm over every head of q and of k, before the rotary embedding."""
    head_dim: int | None = None
    """Head size where a configuration does not say; None: ``hidden_size / num_attention_heads``."""
    partial_rotary_factor: float | None = None
    """Rotated share of a head where a configuration does not say; None: the family always rotates whole heads."""
    interleaved: bool = False
    """Rotary pairs lie side by side in a Hugging Face checkpoint, instead of half a head apart."""
    fused_gate_up: bool = False
    """A Hugging Face checkpoint keeps ``mlp.gate_proj`` and ``mlp.up_proj`` stacked, as ``mlp.gate_up_proj``."""
    sliding_window: bool = True
    """``use_sliding_window`` where a configuration does not say."""
    gguf_interleaved: bool | None = None
    """As ``interleaved``, for the GGUF architecture of the same name; None: its layout is not known."""


_ALL = (
    Family("llama", "LlamaForCausalLM", "bpe", output_bias=True, gguf_interleaved=True),
    Family("qwen2", "Qwen2ForCausalLM", "qwen", qkv_bias=True, sliding_window=False, gguf_interleaved=False),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "qwen",
        output_bias=True,
        qk_norm=True,
        head_dim=128,
        sliding_window=False,
        gguf_interleaved=False,
    ),
    Family(
        "glm",
        "GlmForCausalLM",
        "glm",
        attention_bias=True,
        head_dim=128,
        partial_rotary_factor=0.5,
        interleaved=True,
        fused_gate_up=True,
    ),
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
"""By ``model_type``, which is also the GGUF architecture."""

_EXPERTS, _IMAGES = "it has a mixture of experts", "it takes images"
_RELATIVES: Mapping[str, str] = {
    "chatglm": "GLM models are read from a Hugging Face folder of GlmForCausalLM",
    "glm4": "it has norms behind attention and MLP too",
    "glm4_moe": _EXPERTS,
    "glm4v": _IMAGES,
    "glm4moe": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "qwen2moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "qwen3moe": _EXPERTS,
    "qwen2_vl": _IMAGES,
    "qwen2vl": _IMAGES,
    "qwen2_5_vl": _IMAGES,
    "qwen3_vl": _IMAGES,
    "qwen3_next": "it has linear attention",
    "qwen3_5": "it takes images and has linear attention",
}
"""Near relatives that are easily taken for a supported family, and what sets them apart."""


def require_family(name: str, *, file: Path | None, field: str) -> Family:
    """The family called ``name``. Raises ``UnsupportedModelError`` if this version cannot build it."""
    if name in FAMILIES:
        return FAMILIES[name]
    reason = f": {_RELATIVES[name]}" if name in _RELATIVES else ""
    raise UnsupportedModelError(
        f"model family {name!r} is not supported{reason}",
        file=file,
        field=field,
        found=name,
        expected=", ".join(FAMILIES),
    )
