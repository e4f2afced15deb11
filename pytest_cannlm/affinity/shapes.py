"""Sizes that the user gives to a model's inputs: whole shapes, and values of symbolic dimensions (gears)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from pytest_cannlm.errors import UsageError

Given = Mapping[str, Sequence[int]]
_NAMES = {"--shape": "an input", "--gears": "a symbolic dimension"}


@dataclass(frozen=True)
class Sizes:
    """What is given, and what follows from it.

    Attributes:
        shapes: the whole shape of an input, by its name.
        gears: sizes of a symbolic dimension, by its name; the first gear takes the first size of each, and so on.
    """

    shapes: Mapping[str, tuple[int, ...]]
    gears: Mapping[str, tuple[int, ...]]

    @property
    def gear_count(self) -> int:
        """How many sets of sizes have to be compiled."""
        return max((len(sizes) for sizes in self.gears.values()), default=1)


def parsed(option: str, texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """``NAME=1,64`` as name and sizes. Whether the sizes can be is decided by :func:`resolve`, with the model at hand.

    Raises:
        UsageError: a text is not of this form, or names something twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        try:
            sizes = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            sizes = ()
        if not name or not sizes:
            raise UsageError("not a name and whole numbers", field=option, found=text, expected="such as NAME=1,64")
        if name in found:
            raise UsageError("given twice", field=option, found=name, expected="once")
        found[name] = sizes
    return found


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs that have to be fed: old files list their initializers among the inputs."""
    filled = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in filled]


def dims_of(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension] | None:
    """The declared dimensions; None where no shape is declared, or the value is no tensor."""
    tensor = value.type.tensor_type
    return list(tensor.shape.dim) if value.type.HasField("tensor_type") and tensor.HasField("shape") else None


def resolve(inputs: Sequence[onnx.ValueInfoProto], *, shapes: Given, gears: Given) -> Sizes:
    """Hold what is given against the inputs.

    Raises:
        UsageError: something given cannot be, or names what is not there; all such problems in one message.
    """
    declared = {value.name: dims_of(value) for value in inputs}
    symbols = {dim.dim_param for dims in declared.values() for dim in dims or () if dim.dim_param}
    known = {name: tuple(sizes) for name, sizes in gears.items()}
    problems = [
        *_unusable("--shape", shapes, declared, "--gears", symbols),
        *_unusable("--gears", gears, symbols, "--shape", declared),
    ]
    for name, shape in shapes.items():
        problems += _contradictions(name, tuple(shape), declared.get(name), known)
    lengths = {len(sizes) for sizes in known.values()} - {1}
    if len(lengths) > 1:
        counts = ", ".join(f"{name} has {len(sizes)}" for name, sizes in known.items())
        problems.append(f"--gears: sizes belong together one by one, and their numbers differ: {counts}")
    if problems:
        raise UsageError("; ".join(problems), expected="positive whole numbers for names of the model")
    return Sizes({name: tuple(shape) for name, shape in shapes.items()}, known)


def _unusable(option: str, given: Given, names: Iterable[str], other: str, others: Iterable[str]) -> list[str]:
    """What is given for names that are not there, or are those of the other option, and sizes that are none."""
    known, problems = sorted(names), []
    for name, sizes in given.items():
        shown = f"{option} {name}={','.join(map(str, sizes))}"
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
            hint = f"that is a name for {other}" if name in others else hint
            problems.append(f"{shown}: {_NAMES[option]} {name} is not in the model; {hint}")
        if not sizes or any(size < 1 for size in sizes):
            problems.append(f"{shown}: every size has to be positive")
    return problems


def _contradictions(
    name: str,
    shape: tuple[int, ...],
    dims: Sequence[onnx.TensorShapeProto.Dimension] | None,
    known: dict[str, tuple[int, ...]],
) -> list[str]:
    """Where a shape differs from the declared one. Sizes of symbols that it settles are added to ``known``."""
    if dims is None:
        return []
    if len(shape) != len(dims):
        return [f"--shape {name}: {len(shape)} dimensions are given, the model declares {len(dims)}"]
    problems = []
    for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            problems.append(f"--shape {name}: dimension {axis} is given as {size}, the model fixes {dim.dim_value}")
        elif dim.dim_param and known.setdefault(dim.dim_param, (size,)) != (size,):
            sizes = ",".join(map(str, known[dim.dim_param]))
            problems.append(f"--shape {name}: {dim.dim_param} is given as {size}, and elsewhere as {sizes}")
    return problems
