"""Step 3: turn the exported graph into what the device loads. One interface, one converter per tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_cannlm.build.engine_form import interface
from pytest_cannlm.build.graph import Dims
from pytest_cannlm.build.package import base_name
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.container.kirin import read_simulated, write_simulated_omc
from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.errors import BuildError
from pytest_cannlm.models.config import DecoderConfig

_CONTAINER_DTYPES = {"float32": "float", "int8": "int8", "int32": "int32", "float16": "float16"}


@dataclass(frozen=True)
class Exported:
    """What step 2 leaves for a converter."""

    config: DecoderConfig
    runtime_graph: Path
    weight_size: int


class Converter(Protocol):
    """Makes the compiled model. Its success is never believed: :func:`convert` checks the file."""

    name: str

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write the ``.omc`` to ``target``."""


class SimulatedConverter:
    """Stands in for the vendor's converters: writes the container that they would write, marked as simulated.

    Inside is the graph that the simulated NPU runs. Inputs and outputs are declared with the engine's names and types,
    the KV cache in fp16 as the vendor's command line asks for it.
    """

    name = "simulated"

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write a simulated ``.omc``."""
        inputs, outputs = interface(exported.config, recipe.context)
        write_simulated_omc(
            target,
            name=base_name(recipe),
            chip=recipe.chip,
            build_version=recipe.cann,
            inputs=_declared(inputs),
            outputs=_declared(outputs),
            weight_size=exported.weight_size,
            runtime_graph=exported.runtime_graph.read_bytes(),
        )


def converter_for(recipe: Recipe) -> Converter:
    """The converter that the (validated) recipe asks for."""
    return {"simulated": SimulatedConverter()}[recipe.converter]


def convert(recipe: Recipe, exported: Exported, target: Path) -> None:
    """Run the recipe's converter and check its result: file, chip and version must be those of the recipe.

    Raises:
        BuildError: the result is not what was asked for.
    """
    converter_for(recipe).convert(recipe, exported, target)
    made = read_simulated(target)
    if (made.chip, made.build_version) != (recipe.chip, recipe.cann):
        raise BuildError(
            "the converter made something else",
            file=target,
            found=f"{made.chip}, CANN {made.build_version}",
            expected=f"{recipe.chip}, CANN {recipe.cann}",
        )


def _declared(tensors: Sequence[tuple[str, str, Dims]]) -> list[TensorIO]:
    return [
        TensorIO(name, "float16" if name.startswith("past_") else _CONTAINER_DTYPES[dtype], tuple(int(d) for d in dims))
        for name, dtype, dims in tensors
    ]
