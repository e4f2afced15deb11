"""The two references that a package is compared with, as runtime-form models with float32 weights.

The *float* reference has the checkpoint's own weights; the *quantized* reference the float32 numbers that the package's
codes stand for, embedding rows included: what a perfect NPU would compute from. Both are kept in the build cache; but
where float32 weights would take more than :data:`WHOLE_BYTES`, they stay where they are and are read layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_cannlm.build.cache import BuildCache, key_of
from pytest_cannlm.build.folder import COEFFICIENT_FILE, PackageFolder
from pytest_cannlm.build.package import verify
from pytest_cannlm.build.quantize import Formats, RowSource, write_weights
from pytest_cannlm.build.runtime_form import runtime_form
from pytest_cannlm.build.schemes import Float32, dequantize_w8
from pytest_cannlm.build.source import Source, config_from_json
from pytest_cannlm.build.weights import WEIGHT_FILE, Coefficients, WeightReader
from pytest_cannlm.errors import PackageError
from pytest_cannlm.models import tensors
from pytest_cannlm.models.checkpoint import checkpoint_digest, open_checkpoint
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.tokenizer import TokenizerSpec
from pytest_cannlm.progress import Progress

Against = Literal["float", "quantized"]

GRAPH = "reference.onnx"
WEIGHTS = "reference.weight"
EMBEDDING = "embedding.float32"

WHOLE_BYTES = 4 << 30
"""Up to so many bytes of float32 weights a reference is written to disk and loaded as a whole, which is quicker."""

_FORMAT = 2
_ROWS = 4096


@dataclass(frozen=True)
class ReferenceFolder:
    """A reference on disk: graph, weights, embedding rows, configuration and tokenizer."""

    folder: Path
    against: Against
    digest: str
    """Identity of what it was made from."""

    @property
    def source(self) -> Source:
        """Configuration and tokenizer."""
        return Source.load(self.folder)


@dataclass(frozen=True)
class StreamedReference:
    """A reference whose float32 weights are made as they are read, from a checkpoint or from a package's codes."""

    against: Against
    digest: str
    """Identity of what it is made from."""
    source: Source
    context: int
    """Positions that it is for at most."""
    read: RowSource
    embedding: Callable[[slice], Float32]
    """Rows of the embedding."""
    progress: Progress


def float_reference(
    checkpoint: Path, *, context: int, cache: Path, progress: Progress, whole_bytes: int = WHOLE_BYTES
) -> ReferenceFolder | StreamedReference:
    """The float reference of a checkpoint, for up to ``context`` positions.

    One with more than ``whole_bytes`` of float32 weights is streamed.
    """
    digest = checkpoint_digest(checkpoint, memo=cache / "hashes")
    known = BuildCache(cache / "references").find("float", _key("float", digest, context))
    if known is not None:
        return ReferenceFolder(known, "float", digest)
    opened = open_checkpoint(checkpoint)  # a streamed reference goes on reading from it
    if _float32_bytes(opened.config) > whole_bytes:
        return StreamedReference(
            "float",
            digest,
            Source(opened.config, opened.tokenizer()),
            context,
            read=opened.read,
            embedding=lambda rows: opened.read(tensors.EMBEDDING, rows),
            progress=progress,
        )

    def make(folder: Path) -> None:
        _write(
            folder,
            source=Source(opened.config, opened.tokenizer()),
            read=opened.read,
            rows_of=lambda name: opened.tensors[name].shape[0],
            embedding=lambda rows: opened.read(tensors.EMBEDDING, rows),
            context=context,
            progress=progress,
        )

    with opened:
        return _obtain("float", digest, context, make, cache, progress)


def quantized_reference(
    package: PackageFolder, *, cache: Path, progress: Progress, whole_bytes: int = WHOLE_BYTES
) -> ReferenceFolder | StreamedReference:
    """The quantized reference of a package; with more than ``whole_bytes`` of float32 weights it is streamed.

    Raises:
        PackageError: the package has no manifest or no coefficient file beside it, or a file of it was changed.
    """
    if package.manifest is None or package.coefficients is None:
        raise PackageError(
            "the quantized reference needs what lies beside a built package",
            file=package.package.parent,
            expected=f"manifest.json and {COEFFICIENT_FILE}",
            remedy="build the package with 'cannlm build'",
        )
    verify(package, memo=cache / "hashes")
    coefficients = Coefficients.load(package.coefficients)
    files, context = package.data["files"], package.data["build"]["context"]
    digest = key_of({name: entry["sha256"] for name, entry in files.items()})

    tokenizer = package.data["tokenizer"]
    spec = TokenizerSpec(
        json_text=(package.package / "tokenizer.json").read_text(encoding="utf-8"),
        **{key: tokenizer[key] for key in ("chat_template", "bos_token", "eos_token", "add_bos")},
    )
    source = Source(config_from_json(package.data["model"]["config"]), spec)
    matrices = _DequantizedMatrices(package.package / WEIGHT_FILE, coefficients)
    embedding = _dequantized_embedding(package.package, source.config.hidden_size)
    if _float32_bytes(source.config) > whole_bytes:
        return StreamedReference(
            "quantized", digest, source, context, read=matrices, embedding=embedding, progress=progress
        )

    def make(folder: Path) -> None:
        _write(
            folder,
            source=source,
            read=matrices,
            rows_of=matrices.count,
            embedding=embedding,
            context=context,
            progress=progress,
        )

    return _obtain("quantized", digest, context, make, cache, progress)


def _obtain(
    against: Against, digest: str, context: int, make: Callable[[Path], None], cache: Path, progress: Progress
) -> ReferenceFolder:
    found = BuildCache(cache / "references").obtain(against, _key(against, digest, context), make, progress)
    return ReferenceFolder(found.folder, against, digest)


def _key(against: Against, digest: str, context: int) -> str:
    return key_of({"format": _FORMAT, "against": against, "digest": digest, "context": context})


def _float32_bytes(config: DecoderConfig) -> int:
    return 4 * tensors.parameter_count(config)


def _write(
    folder: Path,
    *,
    source: Source,
    read: RowSource,
    rows_of: Callable[[str], int],
    embedding: Callable[[slice], Float32],
    context: int,
    progress: Progress,
) -> None:
    coefficients = write_weights(
        config=source.config,
        read=read,
        rows_of=rows_of,
        formats=Formats("f32", "f32"),
        scheme="float32 reference",
        positions=context,
        path=folder / WEIGHTS,
        label="writing the float32 weights of the reference",
        progress=progress,
    )
    rows = source.config.vocab_size
    with (folder / EMBEDDING).open("wb") as file:
        for start in range(0, rows, _ROWS):
            file.write(np.ascontiguousarray(embedding(slice(start, min(start + _ROWS, rows))), "<f4").data)
    model = runtime_form(source.config, coefficients, location=WEIGHTS)
    (folder / GRAPH).write_bytes(model.SerializeToString(deterministic=True))
    source.save(folder)


def _dequantized_embedding(package: Path, hidden_size: int) -> Callable[[slice], Float32]:
    codes = np.memmap(next(package.glob("*.embedding_weights")), np.int8, "r").reshape(-1, hidden_size)
    scales = np.fromfile(next(package.glob("*.embedding_dequant_scale")), "<f4").astype(np.float32)
    return lambda rows: dequantize_w8(codes[rows], scales[rows])


class _DequantizedMatrices:
    """Rows of a package's matrices as float32, by the names of the checkpoint tensors that are stacked in them.

    The tensor of a tied embedding is the LM head's: the embedding rows themselves lie outside the weight file.
    """

    def __init__(self, weights: Path, coefficients: Coefficients) -> None:
        self._reader = WeightReader(weights, coefficients)
        self._places: dict[str, tuple[str, int, int]] = {}
        for matrix in coefficients.matrices.values():
            first = 0
            for part in matrix.parts:
                self._places[part.tensor] = (matrix.name, first, part.rows)
                first += part.rows

    def count(self, name: str) -> int:
        """Rows of the tensor."""
        return self._places[name][2]

    def __call__(self, name: str, rows: slice | None = None) -> Float32:
        """Rows of a matrix, or a whole norm weight."""
        vector = self._reader.coefficients.vectors.get(name)
        if vector is not None:
            values: npt.NDArray[np.float32] = self._reader.array(vector)
            return values
        matrix, first, count = self._places[name]
        start, stop, _ = (rows or slice(None)).indices(count)
        return self._reader.dequantized(matrix, slice(first + start, first + stop))
