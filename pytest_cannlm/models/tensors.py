"""Which tensors a decoder consists of: names, shapes, and the check that a checkpoint has exactly these."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.config import DecoderConfig

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor: canonical Hugging Face name, shape ``[out, in]`` or ``[n]``, storage type, stored bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor of the decoder; a tied ``lm_head.weight`` is not among them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q_rows, hidden),
            prefix + "self_attn.k_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.v_proj.weight": (kv_rows, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q_rows),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
        if config.qkv_bias:
            shapes |= {
                prefix + "self_attn.q_proj.bias": (q_rows,),
                prefix + "self_attn.k_proj.bias": (kv_rows,),
                prefix + "self_attn.v_proj.bias": (kv_rows,),
            }
        if config.output_bias:
            shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes |= {
                prefix + "self_attn.q_norm.weight": (config.head_dim,),
                prefix + "self_attn.k_norm.weight": (config.head_dim,),
            }
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    return shapes


def is_rotary(name: str) -> bool:
    """Whether the rows of a tensor are the dimensions that rotary embedding turns, head by head."""
    return name.split(".")[-2] in ("q_proj", "k_proj", "q_norm", "k_norm")


def parameter_count(config: DecoderConfig) -> int:
    """Weights of the decoder; a tied embedding counts once."""
    return sum(math.prod(shape) for shape in expected_shapes(config).values())


def check_tensors(found: Mapping[str, TensorInfo], config: DecoderConfig, *, file: Path) -> None:
    """Compare the tensors of a checkpoint with what its configuration describes; every difference is told at once.

    Raises ``BadInputError`` for missing tensors and wrong shapes, ``UnsupportedModelError`` where all that is wrong is
    that the checkpoint holds weights that this family does not have: leaving them out would compute another model.
    """
    expected = expected_shapes(config)
    problems = [f"missing tensor {name} {list(shape)}" for name, shape in expected.items() if name not in found]
    problems += [
        f"tensor {name} has shape {list(found[name].shape)}, the configuration describes {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    if problems:
        raise problems_error("the tensors do not fit the configuration", problems, file=file)
    surplus = [name for name, info in found.items() if name not in expected and math.prod(info.shape) > 0]
    if surplus:
        raise UnsupportedModelError(
            f"the checkpoint holds weights that family {config.family} does not have",
            file=file,
            found=shorten(surplus),
            remedy="Use a checkpoint of a supported architecture; leaving these weights out would be another model",
        )


def problems_error(
    summary: str, problems: list[str], *, file: Path, remedy: str | None = None, limit: int = 20
) -> BadInputError:
    """One error that lists every problem, at most ``limit`` of them in full."""
    shown = "".join(f"\n  - {problem}" for problem in problems[:limit])
    more = f"\n  - and {len(problems) - limit} more" if len(problems) > limit else ""
    return BadInputError(f"{summary}:{shown}{more}\n", file=file, remedy=remedy)


def file_safe(name: str) -> str:
    """A model's name with everything that does not belong into a file name replaced by ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def shorten(names: Iterable[str], limit: int = 5) -> str:
    """The first names of a long list, and how many more there are."""
    items = list(names)
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")
