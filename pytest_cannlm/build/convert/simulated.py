"""The converter that stands in for the vendor's: it writes the container that they would write, marked as simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cannlm.build.convert.model import Exported
from pytest_cannlm.build.engine_form import interface
from pytest_cannlm.build.graph import Dims
from pytest_cannlm.build.package import base_name
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.container.kirin import read_simulated, write_simulated_omc
from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.errors import BuildError

_CONTAINER_DTYPES = {"float32": "float", "int8": "int8", "int32": "int32", "float16": "float16"}


class SimulatedConverter:
    """Writes a container with the graph that the simulated NPU runs.

    Inputs and outputs are declared with the engine's names and types, the KV cache in fp16 as the vendor's command line
    asks for it.
    """

    name = "simulated"
    facts: Mapping[str, Any] = {}

    def __init__(self, cann: str) -> None:
        self.cann = cann

    def prepare(self) -> None:
        """Nothing has to be there."""

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write a simulated ``.omc``; its chip and version must be those of the recipe."""
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
