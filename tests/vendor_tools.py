"""The tiny model on the doubles of the vendor's tools, as the tests of their drivers run it."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from tiny import tiny_llama

from pytest_cannlm.build.convert import Bench, Exported, converter_for
from pytest_cannlm.build.engine_form import TensorRows, write_engine_form
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.testing import Fault, fake_ddk, fake_mobile_station

CONTEXT = 64
VERSIONS = {"omg": "6.1.1.0", "atc": "9.0.0"}


class Said(SilentProgress):
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def tiny_config() -> DecoderConfig:
    with open_checkpoint(tiny_llama()) as checkpoint:
        return checkpoint.config


def kit(folder: Path, converter: str = "omg", faults: Iterable[Fault] = ()) -> Path:
    """A toolkit with that converter's double."""
    make = fake_ddk if converter == "omg" else fake_mobile_station
    return make(folder, faults=faults)


def recipe(converter: str, toolkit: Path | None, **fields: Any) -> Recipe:
    given = {"context": CONTEXT, "scheme": "fp16", "cann": VERSIONS[converter], **fields}
    return Recipe("tiny", tiny_llama(), converter=converter, toolkit=toolkit, **given).validated()


@dataclass
class Job:
    """One conversion: what it is run with, and where its results go."""

    folder: Path
    progress: Said = field(default_factory=Said)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    time_limit_s: float = 60.0

    @property
    def target(self) -> Path:
        return self.folder / "made" / "tiny_fp16.omc"

    def bench(self) -> Bench:
        return Bench(self.environment, self.progress, self.folder / "logs", time_limit_s=self.time_limit_s)

    def run(self, wanted: Recipe, change: Any = None) -> Path:
        """Convert the engine form, which ``change`` may edit, and return the model that was made."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        converter = converter_for(wanted, self.bench())
        converter.prepare()
        converter.convert(wanted, self.exported(change), self.target)
        return self.target

    def exported(self, change: Any = None) -> Exported:
        def write(path: Path, tensors: TensorRows | None) -> None:
            with open_checkpoint(tiny_llama()) as checkpoint:
                write_engine_form(checkpoint.config, CONTEXT, tensors or checkpoint.read, path)
            if change:
                model = onnx.load(path, load_external_data=False)
                change(model)
                path.write_bytes(model.SerializeToString())

        return Exported(tiny_config(), self.folder / "no-runtime-form", 0, write)
