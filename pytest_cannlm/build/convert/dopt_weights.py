"""The weights that dopt adjusted, ``fake_quant_weight.pth``: whether they are intact, and for the engine form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_cannlm.build.convert.torchfile import TorchFile
from pytest_cannlm.build.engine_form import TensorRows
from pytest_cannlm.build.quantize import MIN_NEGATIVE_SHARE
from pytest_cannlm.build.schemes import Float32
from pytest_cannlm.errors import BadInputError, BuildError, UnsupportedModelError
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.tensors import EMBEDDING, LM_HEAD, expected_shapes

_JUDGED_SIZE = 10_000
_EXPORT = "Export the model with the vendor's script and put the ONNX file with its weights into the folder"


@dataclass(frozen=True)
class Signs:
    """How many numbers of a tensor are below 0."""

    name: str
    count: int
    negative: int


def signs_in(file: Path) -> list[Signs]:
    """Counts for every tensor of a ``.pth`` file.

    Raises:
        BadInputError: it is none, or is damaged.
    """
    stored = TorchFile(file)
    return [Signs(name, tensor.count, stored.negative(name)) for name, tensor in stored.tensors.items()]


def check_signs(tensors: Iterable[Signs], *, file: Path) -> None:
    """Refuse weights that have lost their negative half.

    Raises:
        BuildError: code SIGNS_COLLAPSED, with the share and the tensors that have no negative number at all.
    """
    judged = [one for one in tensors if one.name.endswith(".weight") and one.count >= _JUDGED_SIZE]
    total = sum(one.count for one in judged)
    share = sum(one.negative for one in judged) / total if total else 1.0
    without = [one.name for one in judged if not one.negative]
    if share < MIN_NEGATIVE_SHARE or without:
        raise BuildError(
            "the quantized weights have lost their negative half: the model would run and repeat itself",
            file=file,
            found=f"{share:.1%} below 0; {len(without)} of {len(judged)} large tensors have none"
            + (f", such as {without[0]}" if without else ""),
            expected=f"at least {MIN_NEGATIVE_SHARE:.0%}, and some in every tensor",
            remedy="Set quant_param_2 in config.yaml to the chip's value and quantize again",
            code="SIGNS_COLLAPSED",
        )


def weights_of(file: Path, config: DecoderConfig) -> TensorRows:
    """The tensors of ``fake_quant_weight.pth`` as the engine form takes them.

    A tied LM head is a tensor of its own there, because dopt treats it otherwise than the embedding.

    Raises:
        UnsupportedModelError: the family's checkpoints have another order of rows than the engine form.
        BadInputError: a tensor is missing or has another shape than the model's.
    """
    if FAMILIES[config.family].interleaved:
        raise UnsupportedModelError(
            f"weights of {config.family} from dopt cannot be put into the engine form", file=file, remedy=_EXPORT
        )
    stored = TorchFile(file)
    for name, shape in expected_shapes(config).items():
        found = stored.tensors.get(name)
        if found is None or found.shape != shape:
            raise BadInputError(
                "the weights of dopt are not those of the model",
                file=file,
                field=name,
                found="no such tensor" if found is None else list(found.shape),
                expected=list(shape),
                remedy=_EXPORT,
            )

    def tensor(name: str) -> Float32:
        return stored.read(LM_HEAD if name == EMBEDDING and LM_HEAD in stored.tensors else name)

    return tensor
