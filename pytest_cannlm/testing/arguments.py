"""The command lines of the vendor's converters as their doubles read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.testing.onnxfile import Value

_TYPES = {"FP16": "float16", "FP32": "float"}


@dataclass(frozen=True)
class Flags:
    """Flags by name, without their dashes."""

    values: Mapping[str, str]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Flags:
        """``--name=value`` and ``--name value``; a flag without a value is empty."""
        values: dict[str, str] = {}
        name = ""
        for argument in arguments:
            if argument.startswith("--"):
                name, equals, value = argument[2:].partition("=")
                values[name] = value
                name = "" if equals else name
            elif name:
                values[name], name = argument, ""
        return cls(values)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and dimensions of ``--input_shape``."""
        for entry in filter(None, self.values.get("input_shape", "").split(";")):
            name, _, dims = entry.rpartition(":")
            yield name, tuple(int(dim) for dim in dims.split(","))

    def types(self, flag: str) -> dict[str, str]:
        """Names and the container's types of ``--input_type`` or ``--output_type``."""
        entries = (entry.rpartition(":") for entry in self.values.get(flag, "").split(";") if entry)
        return {name: _TYPES[kind] for name, _, kind in entries}


def tensors_of(
    values: Sequence[Value],
    dtypes: Mapping[int, str],
    asked: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[TensorIO]:
    """Inputs or outputs as a compiled model declares them: the command line's word counts, then the model's."""
    return [
        TensorIO(
            value.name, asked.get(value.name, dtypes.get(value.dtype, "float")), shapes.get(value.name, value.dims)
        )
        for value in values
    ]
