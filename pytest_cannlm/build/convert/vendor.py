"""The vendor's converters, driven: ``omg`` of the Kirin DDK and ``atc`` of the mobile-station toolkit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_cannlm.build.believing import read_log
from pytest_cannlm.build.cache import key_of
from pytest_cannlm.build.convert.commands import (
    atc_command,
    atc_environment,
    atc_libraries,
    omg_command,
    omg_environment,
    omg_libraries,
)
from pytest_cannlm.build.convert.model import Exported
from pytest_cannlm.build.convert.quant_params import QuantParams
from pytest_cannlm.build.convert.toolchain import check_toolkit, platform_of, version_of
from pytest_cannlm.build.convert.workplace import LOG, Bench, Workplace
from pytest_cannlm.build.engine_form import interface
from pytest_cannlm.build.recipe import Recipe
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.toolkits import Toolkit

OMG_SUCCESS = "OMG generate offline model success"
ATC_SUCCESS = "ATC run success"
OMG_FUSED = "_dequant_s16s4|MatMuls16s4Gen"
"""What ``omg`` says where it takes weights as 4-bit ones."""


class OmgConverter:
    """``omg`` of a Kirin DDK: two shapes in one model, FP16 weights or those of a dopt run."""

    name = "omg"

    def __init__(self, toolkit: Toolkit, recipe: Recipe, bench: Bench, quant_params: QuantParams | None = None) -> None:
        self._program = toolkit.root / "tools_omg" / "omg"
        self._doubt = check_toolkit(toolkit, recipe, program=self._program)
        self._toolkit, self._bench, self._quant_params = toolkit, bench, quant_params
        self.cann = version_of(toolkit).version.raw
        platform = platform_of(toolkit, recipe.chip)
        assert platform is not None  # check_toolkit asks for it
        self._platform = platform.path.name
        self.facts: Mapping[str, Any] = {
            "toolkit": _identity(toolkit, omg_libraries(toolkit.root, platform=self._platform), bench.hashes),
            **({"quant_params": quant_params.facts} if quant_params else {}),
        }

    def prepare(self) -> None:
        """Look into the weights that dopt left, if there are any."""
        if self._doubt:
            self._bench.progress.say(f"omg: {self._doubt}")
        if self._quant_params:
            self._quant_params.check_weights(self._bench.progress)

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write ``target``, its weights and the log beside it."""
        inputs, outputs = interface(exported.config, recipe.context)
        params = self._quant_params
        with Workplace(target, self._bench) as work:
            command = omg_command(
                self._program,
                model=work.stage(
                    exported,
                    model=params.model if params else None,
                    tensors=params.tensors(exported.config) if params else None,
                ),
                output=work.output,
                inputs=inputs,
                outputs=outputs,
                prefill=recipe.prefill,
                platform=self._platform,
                quant_params=work.stage_file(params.file) if params else None,
            )
            environment = omg_environment(
                self._bench.environment, self._toolkit.root, platform=self._platform, scratch=work.scratch
            )
            work.run(self.name, command, environment, toolkit=self._toolkit, chip=recipe.chip, success=[OMG_SUCCESS])
        if params and read_log(target.with_name(LOG), success=[OMG_FUSED]).missing:
            self._bench.progress.say(
                "omg: its log does not say that it took 4-bit weights; compare the size of the model"
            )


class AtcConverter:
    """``atc`` of the mobile-station toolkit: one fixed shape, FP16 weights. Not known to load in the LM Engine."""

    name = "atc"

    def __init__(self, toolkit: Toolkit, recipe: Recipe, bench: Bench) -> None:
        program = next((tool.path for tool in toolkit.tools if tool.name == "atc"), toolkit.root / "bin" / "atc")
        self._doubt = check_toolkit(toolkit, recipe, program=program)
        self._program, self._toolkit, self._bench = program, toolkit, bench
        self.cann = version_of(toolkit).version.raw
        self.facts: Mapping[str, Any] = {
            "toolkit": _identity(toolkit, atc_libraries(toolkit.root), bench.hashes),
            "label": "not known to load in the LM Engine",
        }

    def prepare(self) -> None:
        """Say what the result is good for."""
        if self._doubt:
            self._bench.progress.say(f"atc: {self._doubt}")
        self._bench.progress.say("atc: what it builds is not known to load in the LM Engine; omg is the documented way")

    def convert(self, recipe: Recipe, exported: Exported, target: Path) -> None:
        """Write ``target``, its weights and the log beside it."""
        inputs, _ = interface(exported.config, recipe.context)
        with Workplace(target, self._bench) as work:
            command = atc_command(
                self._program,
                model=work.stage(exported),
                output=work.output,
                inputs=inputs,
                step=recipe.prefill,
                soc=recipe.chip,
            )
            environment = atc_environment(self._bench.environment, self._toolkit.root, scratch=work.scratch)
            work.run(self.name, command, environment, toolkit=self._toolkit, chip=recipe.chip, success=[ATC_SUCCESS])


def _identity(toolkit: Toolkit, libraries: Iterable[Path], hashes: Path | None) -> dict[str, Any]:
    """What tells this toolkit from others, wherever it lies: its programs, and the libraries in which they compile."""
    read = version_of(toolkit)
    files = {file for folder in libraries for file in folder.rglob("*") if file.is_file()}
    return {
        "kind": toolkit.kind,
        "version": read.version.raw,
        "version_from": f"{read.key} of {read.file.name}",
        "programs": {tool.name: file_sha256(tool.path, memo=hashes) for tool in toolkit.tools},
        "libraries": key_of(
            {file.relative_to(toolkit.root).as_posix(): file_sha256(file, memo=hashes) for file in files}
        ),
    }
