"""What step 2 leaves for a converter, and what a converter is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import onnx
from google.protobuf.message import DecodeError

from pytest_cannlm.build.engine_form import TensorRows
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.config import DecoderConfig


@dataclass(frozen=True)
class Exported:
    """What step 2 leaves for a converter."""

    config: DecoderConfig
    runtime_graph: Path
    weight_size: int
    write_engine_form: Callable[[Path, TensorRows | None], None]
    """Writes the engine form with its float32 weights to a path: four bytes per weight, so nobody keeps it.

    The weights are the given ones, or those of the checkpoint.
    """


class Converter(Protocol):
    """Makes the compiled model. No converter is believed: each holds its result against the recipe before it returns.

    Attributes:
        name: as the recipe has it.
        cann: the CANN version that the result is of.
        facts: what the result depends on beside the recipe, JSON-ready; part of the cache key and of the manifest.
    """

    name: str
    cann: str
    facts: Mapping[str, Any]

    def prepare(self) -> None:
        """Checks that take a while and need no step's result; called before the first step of a build."""

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write the ``.omc`` to ``target``, and what else belongs into the package beside it.

        Raises:
            BuildError: the result is not what was asked for.
        """


def read_graph(model: Path) -> onnx.GraphProto:
    """The graph of an ONNX file, its external weights not read.

    Raises:
        BadInputError: it is none.
    """
    try:
        return onnx.load(model, load_external_data=False).graph
    except DecodeError as error:
        raise BadInputError("not an ONNX model", file=model, found=error) from error


def external_files(model: Path) -> list[str]:
    """Names of the files that hold the weights of an ONNX model.

    Raises:
        BadInputError: one of them does not lie beside it.
    """
    tensors = read_graph(model).initializer
    names = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for name in sorted(names):
        if Path(name).name != name or not (model.parent / name).is_file():
            raise BadInputError(
                "the model's weights do not lie beside it",
                file=model,
                field="location",
                found=name,
                expected="the name of a file in the same folder",
            )
    return sorted(names)
