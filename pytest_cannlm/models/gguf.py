"""A GGUF file as a checkpoint. The ``gguf`` package parses and dequantizes; here names, shapes and row order become
those of Hugging Face.

GGUF of architecture ``llama`` stores the rows of q and k so that rotary pairs lie side by side; they are read back into
the half-split order of ``LlamaForCausalLM`` (the inverse of llama.cpp's conversion). ``qwen2`` and ``qwen3`` are stored
as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import BadInputError, CannlmError, UnsupportedModelError
from pytest_cannlm.models.config import MOST_LAYERS, DecoderConfig, check_shape, unite_eos
from pytest_cannlm.models.families import FAMILIES, Family, require_family
from pytest_cannlm.models.fields import Fields
from pytest_cannlm.models.gguf_vocab import tokenizer_from_gguf
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.rope import Rope, half_split_rows
from pytest_cannlm.models.tensors import EMBEDDING, LM_HEAD, TensorInfo, check_tensors, file_safe, is_rotary
from pytest_cannlm.models.tokenizer import TokenizerSpec, check_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_TOP_LEVEL = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": LM_HEAD}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BIASED = ("attn_q", "attn_k", "attn_v", "attn_output")
_QKV_BIAS, _OUTPUT_BIAS = "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_QUANTIZATION_SUFFIX = re.compile(r"[.-](?:I?Q\d\w*|BF16|F16|F32|FP16)$", re.IGNORECASE)


class GgufCheckpoint:
    """A checkpoint in one GGUF file. Weights stay mapped from the file; only what is asked for is dequantized."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = file_safe(_QUANTIZATION_SUFFIX.sub("", path.name.removesuffix(".gguf")))
        reader = _open(path)
        self._metadata = _contents(reader, path)
        stored = {_canonical_name(tensor.name): tensor for tensor in reader.tensors}
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, _shape(tensor), tensor.tensor_type.name.lower(), tensor.n_bytes)
            for name, tensor in stored.items()
        }
        self.config: DecoderConfig = gguf_config(self._metadata, self.tensors, file=path)
        self._interleaved = FAMILIES[self.config.family].gguf_interleaved
        check_tensors(self.tensors, self.config, file=path)
        _require_readable_types(stored, path)
        self._stored: dict[str, tuple[npt.NDArray[Any], Any]] = {
            name: (tensor.data, tensor.tensor_type) for name, tensor in stored.items()
        }

    def read(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """Dequantized float32 ``[out, in]`` (or ``[n]``), C-contiguous; with ``rows`` only those rows are touched."""
        from gguf import dequantize

        data, kind = self._stored[name]
        selected = slice(None) if rows is None else rows
        source = data[self._rope_rows(name)[selected]] if self._interleaved and is_rotary(name) else data[selected]
        weights = np.ascontiguousarray(dequantize(source, kind), dtype=np.float32)
        return weights if weights.flags.writeable else weights.copy()  # stored float32 comes as a view of the file

    def digest(self, *, memo: Path | None = None) -> str:
        """sha256 of the file, remembered across processes in the folder ``memo`` if one is given."""
        return file_sha256(self.path, memo=memo)

    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer described by the file's vocabulary."""
        return self._tokenizer

    def close(self) -> None:
        """Let go of the mapped file."""
        self._stored.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @cached_property
    def _tokenizer(self) -> TokenizerSpec:
        spec = tokenizer_from_gguf(self._metadata, file=self.path)
        check_vocabulary(spec.json_text, rows=self.config.vocab_size, file=self.path)
        return spec

    def _rope_rows(self, name: str) -> npt.NDArray[np.intp]:
        """For every row in half-split order, the row of the file that holds it."""
        head_dim = self.config.head_dim
        rows = self.tensors[name].shape[0]
        return half_split_rows(rows, head_dim=head_dim, rotary_dim=head_dim, interleaved=True)


def gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], *, file: Path) -> DecoderConfig:
    """Normalise the metadata of a GGUF file. Raises as :func:`pytest_cannlm.models.config.decoder_config` does."""
    fields = Fields(metadata, file=file)
    family = _family(metadata, file=file)
    arch = family.name
    _refuse_unsupported(fields, arch, tensors)
    if EMBEDDING not in tensors:
        raise BadInputError("the file has no token embedding", file=file, field="token_embd.weight")
    vocab_size = tensors[EMBEDDING].shape[0]
    heads = fields.integer(f"{arch}.attention.head_count")
    hidden_size = fields.integer(f"{arch}.embedding_length")
    head_dim = fields.integer(f"{arch}.attention.key_length", default=max(1, hidden_size // heads))
    rotated = fields.integer(f"{arch}.rope.dimension_count", default=head_dim)
    if rotated != head_dim:
        raise fields.unsupported("partial rotary embedding", f"{arch}.rope.dimension_count", rotated, str(head_dim))
    named = [f"tokenizer.ggml.{key}" for key in _EOS_KEYS]
    eos_token_ids, eos_sources = unite_eos(
        tuple((key, fields.token_ids(key, vocab_size=vocab_size)) for key in named), vocab_size=vocab_size, file=file
    )
    config = DecoderConfig(
        family=arch,
        architecture=family.architecture,
        layers=fields.integer(f"{arch}.block_count", maximum=MOST_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
        heads=heads,
        kv_heads=fields.integer(f"{arch}.attention.head_count_kv", default=heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer(f"{arch}.context_length"),
        rms_norm_eps=_shortest(fields.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        rope=Rope(_shortest(fields.number(f"{arch}.rope.freq_base")), rotary_dim=head_dim),
        qkv_bias=_QKV_BIAS in tensors if family.qkv_bias is None else family.qkv_bias,
        output_bias=family.output_bias and _OUTPUT_BIAS in tensors,
        qk_norm=family.qk_norm,
        tie_word_embeddings=LM_HEAD not in tensors,
        bos_token_id=fields.one_token_id("tokenizer.ggml.bos_token_id", vocab_size=vocab_size),
        pad_token_id=fields.one_token_id("tokenizer.ggml.padding_token_id", vocab_size=vocab_size),
        eos_token_ids=eos_token_ids,
        eos_sources=eos_sources,
        torch_dtype=_dtype_label(fields),
        unknown_fields=tuple(key for key in fields.not_asked() if key.startswith(f"{arch}.")),
    )
    check_shape(config, file=file)
    return config


def _family(metadata: Mapping[str, Any], *, file: Path) -> Family:
    field = "general.architecture"
    family = require_family(str(metadata.get(field, "none")), file=file, field=field)
    if family.gguf_interleaved is None:
        raise UnsupportedModelError(
            f"GGUF of family {family.name!r} is not supported",
            file=file,
            field=field,
            found=family.name,
            remedy="Use the model's Hugging Face folder",
        )
    return family


def _refuse_unsupported(fields: Fields, arch: str, tensors: Mapping[str, TensorInfo]) -> None:
    accepted: dict[str, tuple[str, tuple[Any, ...]]] = {
        "general.type": ("a GGUF file that is not a whole model", (None, "model")),
        "split.count": ("a model split into several GGUF files (merge them with llama-gguf-split)", (None, 0, 1)),
        f"{arch}.expert_count": ("mixture of experts", (None, 0)),
        f"{arch}.rope.scaling.type": ("RoPE scaling", (None, "none")),
        f"{arch}.rope.scaling.factor": ("RoPE scaling", (None, 0.0, 1.0)),
        f"{arch}.rope.scale_linear": ("RoPE scaling", (None, 0.0, 1.0)),
        f"{arch}.attention.sliding_window": ("sliding window attention", (None, 0)),
    }
    for field, (what, values) in accepted.items():
        value = fields.get(field)
        if value not in values:
            raise fields.unsupported(what, field, value, f"{values[-1]!r} or absent")
    if "rope_freqs.weight" in tensors:
        raise fields.unsupported("RoPE type 'llama3'", "rope_freqs.weight", "present", "absent")


class _PlainBytes:
    """Makes ``GGUFReader.data`` a plain array.

    The reader takes a slice of it for every entry of every array, 250,000 of them for a vocabulary of 49,152 tokens,
    and a slice of ``np.memmap`` runs Python code. A plain view of the same mapping opens such a file three times as
    fast (measured).
    """

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self._bytes

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._bytes = mapped.view(np.ndarray)


def _open(path: Path) -> GGUFReader:
    import gguf

    reader_class = type("PlainReader", (_PlainBytes, gguf.GGUFReader), {})
    try:
        return reader_class(path)
    except (ValueError, KeyError, IndexError, OverflowError, TypeError, MemoryError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CannlmError:
    return BadInputError(
        "this GGUF file is cut short or damaged",
        file=path,
        found=f"{path.stat().st_size:,} bytes; {error}",
        remedy="Download it again",
    )


def _contents(reader: GGUFReader, path: Path) -> dict[str, Any]:
    """All metadata as Python values: the reader's own fields hold two small arrays per entry of the vocabulary."""
    try:
        return {name: field.contents() for name, field in reader.fields.items()}
    except (UnicodeDecodeError, IndexError, ValueError) as error:
        raise _damaged(path, error) from error


def _canonical_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown one keeps its own, to be refused under it."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in (_PER_LAYER if match[3] == "weight" else _BIASED):
        return f"model.layers.{match[1]}.{_PER_LAYER[match[2]]}.{match[3]}"
    return _TOP_LEVEL.get(name, name)


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """``[out, in]``: GGUF counts dimensions from the fastest one."""
    return tuple(map(int, reversed(tensor.shape)))


def _require_readable_types(stored: Mapping[str, ReaderTensor], path: Path) -> None:
    """Try one row of every storage type, so that an unknown one is told now and not in the middle of a build."""
    from gguf import dequantize

    for tensor in {tensor.tensor_type: tensor for tensor in stored.values()}.values():
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise UnsupportedModelError(
                "this storage type cannot be read", file=path, field=tensor.name, found=tensor.tensor_type.name
            ) from error


def _shortest(value: float) -> float:
    """The shortest decimal with the same float32 value: GGUF keeps 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _dtype_label(fields: Fields) -> str:
    from gguf import LlamaFileType

    try:
        kind = str(LlamaFileType(fields.get("general.file_type")).name)
    except ValueError:
        return "unknown"
    return kind.removeprefix("MOSTLY_").removeprefix("ALL_").lower()
