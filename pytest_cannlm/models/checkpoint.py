"""One interface to trained weights, whatever file they come in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models import sniff
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.gguf import GgufCheckpoint
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.huggingface import HuggingFaceCheckpoint
from pytest_cannlm.models.tensors import TensorInfo
from pytest_cannlm.models.tokenizer import TokenizerSpec

__all__ = ["Checkpoint", "TensorInfo", "checkpoint_digest", "open_checkpoint"]

_EXPECTED = "a GGUF file or a Hugging Face folder"


class Checkpoint(Protocol):
    """A model's weights, configuration and tokenizer. Opening one has checked everything that headers can tell."""

    path: Path
    name: str
    """Short model name, fit for file names: "SmolLM2-135M-Instruct"."""
    config: DecoderConfig
    tensors: Mapping[str, TensorInfo]
    """By canonical Hugging Face name; ``lm_head.weight`` is absent where it is tied to the embedding."""

    def read(self, name: str, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """Weights as float32, C-contiguous, ``[out, in]`` or ``[n]``, q and k in half-split rotary order.

        With ``rows`` (contiguous) only those rows are read and dequantized. Raises ``KeyError`` for a name that is not
        in ``tensors``.
        """

    def digest(self, *, memo: Path | None = None) -> str:
        """sha256 identity of the content; remembered across processes in the folder ``memo`` if one is given."""

    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer that belongs to the weights."""

    def close(self) -> None:
        """Let go of files."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder, told apart by content.

    Raises ``BadInputError`` that names what the file is if it is neither, is damaged, or contradicts itself, and
    ``UnsupportedModelError`` for a sound model that this version cannot build.
    """
    if path.is_dir():
        return HuggingFaceCheckpoint(path)
    if not path.exists():
        raise BadInputError("there is no such file or folder", file=path, expected=_EXPECTED)
    sniff.require("gguf", path, expected=_EXPECTED)
    return GgufCheckpoint(path)


def checkpoint_digest(path: Path, *, memo: Path | None = None) -> str:
    """What ``open_checkpoint(path).digest()`` gives; a GGUF file is not parsed for it: a warm run needs no more."""
    if path.is_file():
        sniff.require("gguf", path, expected=_EXPECTED)
        return file_sha256(path, memo=memo)
    with open_checkpoint(path) as checkpoint:
        return checkpoint.digest(memo=memo)
