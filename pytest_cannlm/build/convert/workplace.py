"""A fresh folder in which a vendor's converter works, under a path that it takes, and the judgement of what it left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pytest_cannlm.build.believing import disagreements, failure, read_log
from pytest_cannlm.build.cache import link_or_copy
from pytest_cannlm.build.convert.commands import taken_by_omg
from pytest_cannlm.build.convert.judging import file_disagreements
from pytest_cannlm.build.convert.model import Exported, external_files
from pytest_cannlm.build.convert.toolchain import version_of
from pytest_cannlm.build.engine_form import TensorRows
from pytest_cannlm.build.running import run_tool
from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.errors import EnvironmentFailure
from pytest_cannlm.progress import Progress
from pytest_cannlm.toolkits import Toolkit

LOG = "convert.log"
"""The converter's output, beside the package's manifest."""
TIME_LIMIT_S = 4 * 3600.0
"""A model of 1.5B takes about three minutes."""

_MODEL = "model.onnx"
_SCRATCH = "scratch"
_CHECK_REPORT = "check_result.json"
"""Where omg leaves what its checks found, in the folder that it was started in."""


@dataclass(frozen=True)
class Bench:
    """Where and how vendor's tools run, whatever is converted."""

    environment: Mapping[str, str]
    progress: Progress
    logs: Path
    """Folder that keeps the log of a run that failed."""
    hashes: Path | None = None
    """Folder that remembers hashes of unchanged files."""
    time_limit_s: float = TIME_LIMIT_S


class Workplace:
    """A folder of one run. What is in it goes when it is left; the results are moved out if they are believed.

    Paths for the tool lead through a link where the real one has characters that ``omg`` refuses.
    """

    def __init__(self, target: Path, bench: Bench) -> None:
        self._target, self._bench = target, bench
        self._folder = (target.parent / "work").absolute()
        self._shown = self._folder
        self._link_in: Path | None = None

    def __enter__(self) -> Workplace:
        (self._folder / _SCRATCH).mkdir(parents=True)
        if os.name == "posix" and not taken_by_omg(self._folder / _MODEL):
            self._link_in = _safe_folder()
            self._shown = self._link_in / "work"
            self._shown.symlink_to(self._folder.resolve(), target_is_directory=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._link_in:
            with suppress(OSError):
                self._shown.unlink()
                self._link_in.rmdir()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def output(self) -> Path:
        """What the tool is told to write, without the suffix that it adds."""
        return self._shown / self._target.stem

    @property
    def scratch(self) -> Path:
        """For the tool's temporary files."""
        return self._shown / _SCRATCH

    def stage(self, exported: Exported, *, model: Path | None = None, tensors: TensorRows | None = None) -> Path:
        """The ONNX model under a name that every converter takes: ``model`` with its weights, or our engine form.

        The engine form gets the weights ``tensors``, or those of the checkpoint.
        """
        staged = self._folder / _MODEL
        if model is None:
            with self._bench.progress.task(f"{self._target.stem}: float32 model for the converter"):
                exported.write_engine_form(staged, tensors)
        else:
            link_or_copy(model, staged)
            for name in external_files(model):
                link_or_copy(model.parent / name, self._folder / name)
        return self._shown / _MODEL

    def stage_file(self, file: Path) -> Path:
        """One more input."""
        link_or_copy(file, self._folder / file.name)
        return self._shown / file.name

    def run(
        self,
        tool: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        toolkit: Toolkit,
        chip: str,
        success: Sequence[str],
    ) -> None:
        """Run the tool and move its model, weights and log to the target's folder.

        Raises:
            BuildError: it is not believed; the log stays in the folder of logs.
            EnvironmentFailure: it cannot be started or took too long.
        """
        target, bench = self._target, self._bench
        bench.logs.mkdir(parents=True, exist_ok=True)
        log = bench.logs / f"{target.stem}-{tool}-{os.getpid()}.log"
        run = run_tool(
            command,
            folder=self._shown,
            environment=environment,
            log=log,
            label=f"{tool} {target.name}",
            progress=bench.progress,
            time_limit_s=bench.time_limit_s,
        )
        said = read_log(log, success=success)
        made = self._folder / target.name
        read = version_of(toolkit)
        files = file_disagreements(made, began=run.began, chip=chip, version=read.version, pairs=toolkit.pairs)
        reasons = disagreements(said, run, files)
        if reasons:
            report = self._folder / _CHECK_REPORT
            raise failure(tool, reasons, said, log=log, code="CONVERSION_FAILED", report=report)
        for one in said.unknown:
            bench.progress.say(f"{tool}: {one.sentence()}")
        made.replace(target)
        (self._folder / EXTERNAL_WEIGHT_FILE).replace(target.with_name(EXTERNAL_WEIGHT_FILE))
        shutil.move(log, target.with_name(LOG))


def _safe_folder() -> Path:
    """A new folder whose path has nothing that ``omg`` refuses."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if taken_by_omg(Path(place) / _MODEL):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="cannlm_", dir=place))
    raise EnvironmentFailure(
        "omg takes only letters, digits and underscores in a path, and no folder for temporary files has such a one",
        field="TMPDIR",
        found=tempfile.gettempdir(),
        remedy="Set TMPDIR to a folder of such a name",
    )
