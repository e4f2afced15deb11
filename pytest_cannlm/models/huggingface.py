"""A Hugging Face folder as a checkpoint: ``config.json``, safetensors weights, ``tokenizer.json``."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.config import DecoderConfig, decoder_config
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.fields import read_json
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.rope import half_split_rows
from pytest_cannlm.models.shards import INDEX, StoredTensor, find_tensors
from pytest_cannlm.models.tensors import EMBEDDING, LM_HEAD, TensorInfo, check_tensors, file_safe, is_rotary
from pytest_cannlm.models.tokenizer import TokenizerSpec, adds_bos, check_vocabulary, token_id

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
_DTYPE_LABELS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_COMPARED_ROWS = 4096
_HASHED_AT_ONCE = 2
"""Files of a checkpoint: a disk gives about as much as two cores hash."""
_FUSED, _FUSED_PARTS = "mlp.gate_up_proj.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")


class CheckpointWarning(UserWarning):
    """A checkpoint that can be used although it contradicts itself; the message says which side was taken."""


class HuggingFaceCheckpoint:
    """A checkpoint in a folder. Nothing stays open: each read takes just the asked-for bytes from the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(_config_file(path))
        self.name = _model_name(path, config)
        parsed = decoder_config(
            config,
            file=path / "config.json",
            generation=self._optional("generation_config.json"),
            tokenizer_eos=self._eos_id,
        )
        self._stored = {name: tensor for name, tensor in find_tensors(path).items() if not _is_rotary_buffer(name)}
        self._family = FAMILIES[parsed.family]
        if self._family.fused_gate_up:
            self._stored = _unfused(self._stored)
        if parsed.tie_word_embeddings:
            self._leave_out_tied_head()
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, tensor.shape, tensor.dtype.lower(), tensor.nbytes)
            for name, tensor in self._stored.items()
        }
        check_tensors(self.tensors, parsed, file=path)
        label = _DTYPE_LABELS[self._stored[EMBEDDING].dtype]
        self.config: DecoderConfig = parsed if parsed.torch_dtype != "unknown" else replace(parsed, torch_dtype=label)

    def read(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """Float32 ``[out, in]`` (or ``[n]``), C-contiguous; with ``rows`` only their bytes are read."""
        stored = self._stored[name]
        if not (self._family.interleaved and is_rotary(name)):
            return stored.read(rows)
        taken = self._rope_rows(stored.shape[0])[slice(None) if rows is None else rows]
        first, last = (taken.min(), taken.max() + 1) if taken.size else (0, 0)
        return stored.read(slice(first, last))[taken - first]

    def digest(self, *, memo: Path | None = None) -> str:
        """sha256 over the configuration, the tokenizer files and every weight file, by name and content."""
        weights = {tensor.file.name for tensor in self._stored.values()}
        names = {"config.json", "generation_config.json", INDEX, *_TOKENIZER_FILES, *weights}
        files = [self.path / name for name in sorted(names) if (self.path / name).is_file()]
        total = hashlib.sha256()
        with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
            for file, digest in zip(files, pool.map(partial(file_sha256, memo=memo), files), strict=True):
                total.update(f"{file.name}\0{digest}\n".encode())
        return total.hexdigest()

    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer in the folder. Raises ``BadInputError`` if it has no ``tokenizer.json``."""
        return self._tokenizer

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _rope_rows(self, rows: int) -> npt.NDArray[np.intp]:
        """For every row of q or k in half-split order, the row of the checkpoint that holds it."""
        config = self.config
        return half_split_rows(
            rows, head_dim=config.head_dim, rotary_dim=config.rope.rotary_dim, interleaved=self._family.interleaved
        )

    @cached_property
    def _tokenizer(self) -> TokenizerSpec:
        text = self._tokenizer_json
        if text is None:
            raise BadInputError(
                "the folder has no tokenizer.json",
                file=self.path / "tokenizer.json",
                remedy="Save the model's fast tokenizer into the folder (tokenizer.save_pretrained)",
            )
        check_vocabulary(text, rows=self.config.vocab_size, file=self.path / "tokenizer.json")
        bos, eos = self._special_token("bos_token"), self._special_token("eos_token")
        add_bos = (self._optional("tokenizer_config.json") or {}).get("add_bos_token")
        return TokenizerSpec(
            json_text=text,
            chat_template=self._chat_template(),
            bos_token=bos,
            eos_token=eos,
            add_bos=add_bos if isinstance(add_bos, bool) else adds_bos(text, bos),
        )

    @cached_property
    def _tokenizer_json(self) -> str | None:
        file = self.path / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError("tokenizer.json is not readable", file=file, found=error) from error

    @property
    def _eos_id(self) -> int | None:
        """Id of the end-of-text token that the tokenizer's configuration names."""
        token = self._special_token("eos_token")
        if token is None or self._tokenizer_json is None:
            return None
        number = token_id(self._tokenizer_json, token)
        if number is None:
            raise BadInputError(
                "the tokenizer does not have its own end-of-text token",
                file=self.path / "tokenizer_config.json",
                field="eos_token",
                found=token,
            )
        return number

    def _special_token(self, name: str) -> str | None:
        """A special token's text; it is kept as a text or as an object with its content, in one of two files."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            value = (self._optional(file) or {}).get(name)
            if isinstance(value, Mapping):
                value = value.get("content")
            if isinstance(value, str):
                return value
        return None

    def _chat_template(self) -> str | None:
        """Newer exports keep the template in a file of its own, older ones in the tokenizer's configuration."""
        separate = self.path / "chat_template.jinja"
        if separate.is_file():
            return separate.read_text(encoding="utf-8")
        for file in ("chat_template.json", "tokenizer_config.json"):
            value = (self._optional(file) or {}).get("chat_template")
            if isinstance(value, list):
                value = next((entry.get("template") for entry in value if entry.get("name") == "default"), None)
            if isinstance(value, str):
                return value
        return None

    def _optional(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        return read_json(file) if file.is_file() else None

    def _leave_out_tied_head(self) -> None:
        """A tied model uses its embedding as output layer; a stored copy is dropped, a different one is told."""
        head = self._stored.pop(LM_HEAD, None)
        embedding = self._stored.get(EMBEDDING)
        if head is not None and embedding is not None and not _same_values(head, embedding):
            warnings.warn(
                f"{self.path / 'config.json'} says tie_word_embeddings, but {LM_HEAD} in {head.file.name} differs from "
                f"{EMBEDDING}; the embedding is used as output layer, as the configuration says",
                CheckpointWarning,
                stacklevel=4,
            )


def _config_file(folder: Path) -> Path:
    file = folder / "config.json"
    if file.is_file():
        return file
    models = sorted(entry.name for entry in folder.glob("*.gguf"))
    raise BadInputError(
        "the folder has no config.json, so it is not a Hugging Face checkpoint",
        file=file,
        found=f"GGUF files: {', '.join(models)}" if models else None,
        remedy="Give the path of one of the GGUF files" if models else "Give the folder that holds config.json",
    )


def _model_name(folder: Path, config: Mapping[str, Any]) -> str:
    """The folder's name; where that is a commit hash, as in the Hugging Face cache (``models--org--name/snapshots/…``),
    the name of the model."""
    name = folder.resolve().name
    if re.fullmatch(r"[0-9a-f]{40}", name):
        cached = folder.resolve().parent.parent.name.split("--")
        name = cached[-1] if cached[0] == "models" else str(config.get("_name_or_path") or name).rpartition("/")[2]
    return file_safe(name)


def _is_rotary_buffer(name: str) -> bool:
    """Old exports store the rotary frequencies, which follow from the configuration."""
    return name.endswith("rotary_emb.inv_freq")


def _unfused(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors with each stacked gate and up projection as two; nothing is copied."""
    parts: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        prefix = name.removesuffix(_FUSED)
        if prefix == name or not tensor.shape or tensor.shape[0] % len(_FUSED_PARTS):
            parts[name] = tensor
            continue
        for number, part in enumerate(_FUSED_PARTS):
            parts[prefix + part] = tensor.part(number, len(_FUSED_PARTS))
    return parts


def _same_values(one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape:
        return False
    starts = range(0, one.shape[0], _COMPARED_ROWS)
    return all(
        np.array_equal(one.read(slice(start, start + _COMPARED_ROWS)), other.read(slice(start, start + _COMPARED_ROWS)))
        for start in starts
    )
