"""Drive ``dopt``, the vendor's quantizer of language models: three stages, and the edit between two of them.

The first run of stage 1 only lists the layers; strategies are then written into its list, and it runs again. Command
line, files and texts of success: the page on language models of the CANN Kit guide, and public logs of its runs. A
stage that was believed is sealed, and not run again while its inputs and results are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.build.believing import disagreements, failure, not_written, read_log
from pytest_cannlm.build.cache import key_of
from pytest_cannlm.build.convert.quant_params import (
    FLOAT,
    PARAMS,
    QUANT_PARAM_2,
    SETTINGS,
    STRATEGIES,
    TRAIN_OUTPUT,
    WEIGHTS,
    QuantParams,
    read_quant_params,
    read_strategies,
)
from pytest_cannlm.build.dopt_inputs import check_calibration, check_group_size, programs_key
from pytest_cannlm.build.dopt_records import Seal, claim
from pytest_cannlm.build.running import run_tool
from pytest_cannlm.errors import EnvironmentFailure, UsageError
from pytest_cannlm.locking import locked
from pytest_cannlm.models.checkpoint import checkpoint_digest
from pytest_cannlm.models.config import DecoderConfig
from pytest_cannlm.models.hashing import file_sha256, write_atomically
from pytest_cannlm.progress import Progress
from pytest_cannlm.toolkits import Toolkit

LISTED = "generate plugin quang config please set quant strategy firstly"
"""What the first run of stage 1 says, in the vendor's words, before it stops."""
TIME_LIMIT_S = 24 * 3600.0

_WEIGHT_BITS, _ACTIVATION_BITS = 4, 16
"""Of the decoder's matrices and of what they are multiplied with: the one pair that omg is known to take."""
_WIKITEXT = "wikitext2"
"""A data set that dopt knows and fetches."""
_MODULES = ("dopt_lm", "dopt_llm")
"""DDK 6.1.1.0 renamed the second to the first."""
_DECODER = "Quant_act_weight_eco"
_EMBEDDING = "Quant_Embed_MinMax"
_LM_HEAD = "lm_head"
_BLOCKS = ("Qwen2DecoderLayer", "Qwen3DecoderLayer", "GlmDecoderLayer", "LlamaDecoderLayer")


@dataclass(frozen=True)
class Stage:
    """One of the three: what it writes, and an expression for what it says at its end."""

    name: str
    outputs: tuple[str, ...]
    success: str


STAGES = (
    Stage("stage1", ("trained_quant_weight.pth",), "weight quant done ?!!!"),
    Stage("stage2", ("trained.pth",), "quant done ?!!!"),
    Stage("stage3", (WEIGHTS, PARAMS), "build done"),
)


@dataclass(frozen=True)
class DoptJob:
    """What to quantize, and how.

    Attributes:
        model: Hugging Face folder.
        out: gets ``dopt_config.json`` and ``train_output``; the folder for ``--quant-params``.
        chip: normalized name; it decides ``quant_param_2``.
        calibration: JSON list of ``{"text": …}``; None takes the data set that dopt knows.
        group_size: weights per scale. The LM head stays float, as every public run left it.
    """

    model: Path
    out: Path
    chip: str = "KirinX90"
    calibration: Path | None = None
    group_size: int = 128

    @property
    def results(self) -> Path:
        """Where the stages write."""
        return self.out / TRAIN_OUTPUT

    def facts(self) -> dict[str, Any]:
        """What the results depend on, JSON-ready, by content: files are known to change where they lie."""
        return {
            "model": checkpoint_digest(self.model),
            "chip": self.chip,
            "calibration": file_sha256(self.calibration) if self.calibration else _WIKITEXT,
            "group_size": self.group_size,
            "weight_bits": _WEIGHT_BITS,
            "activation_bits": _ACTIVATION_BITS,
        }


def stage_command(python: str, program: Path, job: DoptJob, stage: str) -> list[str]:
    """The command line of one stage. ``python`` is the interpreter in which dopt's own needs are installed."""
    results, strategies = job.results.absolute(), job.out.absolute() / STRATEGIES
    return [
        *(python, "-u", str(program), "--model-path", str(job.model.resolve())),
        *("--optimize-config", str(results / SETTINGS), "--dopt-config", str(strategies)),
        *("--quant-stage", stage, "--group-size", str(job.group_size)),
        *("--w-bits", str(_WEIGHT_BITS), "--act-bits", str(_ACTIVATION_BITS), "--block-size", "128"),
        *("--output-dir", str(results)),
    ]


def settings_text(job: DoptJob) -> str:
    """``config.yaml`` with the guide's values: no training, and the chip's ``quant_param_2``.

    Raises:
        UsageError: nobody knows ``quant_param_2`` of the chip.
    """
    if job.chip not in QUANT_PARAM_2:
        raise UsageError(
            "the right quant_param_2 is not known for this chip, and the wrong one makes every negative weight 0",
            field="chip",
            found=job.chip,
            expected=f"one of {', '.join(QUANT_PARAM_2)}",
        )
    texts = str(job.calibration.resolve()) if job.calibration else _WIKITEXT
    blocks = "".join(f"    - {name}\n" for name in _BLOCKS)
    return (
        "kd:\n  enable: False\n  loss: mse\n  no_split_module_classes:\n" + blocks + "dataset:\n"
        f"  train_files: {json.dumps(texts)}\n  train_samples: 1024\n  ptq_samples: 1024\n"
        "extra_training_config:\n  fp16: True\ncutoff_len: 128\nnum_samples: 256\n"
        f"quant_param_2: {QUANT_PARAM_2[job.chip]}\nembedding_separate: True\n"
    )


def with_strategies(layers: Mapping[str, Any], job: DoptJob) -> dict[str, Any]:
    """The layers of ``dopt_config.json``; the decoder's matrices and the embedding get a strategy, others none."""
    return {name: _with_strategy(name, layer, job) for name, layer in layers.items()}


def quantize(
    job: DoptJob,
    toolkit: Toolkit,
    config: DecoderConfig,
    *,
    python: str,
    environment: Mapping[str, str],
    progress: Progress,
    time_limit_s: float = TIME_LIMIT_S,
) -> QuantParams:
    """Run what is missing of the three stages and check what they leave.

    Args:
        job: what to quantize.
        toolkit: the DDK.
        config: of the model.
        python: the interpreter for dopt (Python 3.10 with torch).
        environment: for the processes.
        progress: told about every stage.
        time_limit_s: for each of them.

    Raises:
        UsageError: ``job.out`` holds another run, or the chip's settings, the group size or the calibration text will
            not do.
        BadInputError: the calibration text is not what dopt reads.
        EnvironmentFailure: the DDK has no dopt, a stage cannot be started or took too long, or another process works
            in ``job.out`` for an hour.
        BuildError: a stage failed, or its weights lost their signs.
    """
    program = _program(toolkit)
    settings = settings_text(job)
    check_group_size(job.group_size, config)
    if job.calibration:
        check_calibration(job.calibration)
    job.results.mkdir(parents=True, exist_ok=True)
    with locked(job.out / ".lock", f"dopt: waiting for another process that works in {job.out}", progress):
        facts = {**job.facts(), "toolkit": _identity(toolkit, program)}
        claim(job.out, facts, strategies=job.out / STRATEGIES)
        (job.results / SETTINGS).write_text(settings, encoding="utf-8")
        run = _Runner(job, program, python, _environment(environment, program), progress, time_limit_s)
        _stages(run, made_from=key_of({**facts, "settings": settings}))
        params = read_quant_params(job.out, chip=job.chip, config=config)
        params.check_weights(progress)
        return params


def _stages(run: _Runner, *, made_from: str) -> None:
    """Do what is missing. ``made_from`` is the key of all inputs."""
    job, strategies = run.job, run.job.out / STRATEGIES
    listing = Seal(job.out / "stage1-list.json", made_from, ())  # its file is edited afterwards
    if not (listing.holds() and strategies.is_file()):
        strategies.unlink(missing_ok=True)  # with one in place stage 1 quantizes at once
        run.stage(Stage("stage1", (), LISTED), log="stage1-list.log", outputs=[strategies], status_counts=False)
        listing.put()
    document, key = read_strategies(strategies)
    edited = {**document, key: with_strategies(document[key], job)}
    if edited != document:
        write_atomically(strategies, json.dumps(edited, indent=4).encode())
    made_from = key_of({"inputs": made_from, "strategies": file_sha256(strategies)})
    for stage in STAGES:
        outputs = tuple(job.results / name for name in stage.outputs)
        seal = Seal(job.out / f"{stage.name}.json", made_from, outputs)
        if seal.holds():
            run.progress.say(f"dopt: {stage.name}: was done already")
        else:
            run.stage(stage, log=f"{stage.name}.log", outputs=outputs)
            seal.put()
        made_from = seal.key()


@dataclass(frozen=True)
class _Runner:
    job: DoptJob
    program: Path
    python: str
    environment: Mapping[str, str]
    progress: Progress
    time_limit_s: float

    def stage(self, stage: Stage, *, log: str, outputs: Sequence[Path], status_counts: bool = True) -> None:
        """Run a stage and believe it or raise. The listing of layers stops halfway, so its status says nothing."""
        run = run_tool(
            stage_command(self.python, self.program, self.job, stage.name),
            folder=self.job.out,
            environment=self.environment,
            log=self.job.out / log,
            label=f"dopt {stage.name}",
            progress=self.progress,
            time_limit_s=self.time_limit_s,
        )
        said = read_log(run.log, success=[stage.success])
        files = [problem for output in outputs if (problem := not_written(output, run.began))]
        reasons = disagreements(said, run if status_counts else None, files)
        if reasons:
            raise failure(f"dopt {stage.name}", reasons, said, log=run.log, code="QUANTIZATION_FAILED")


def _with_strategy(name: str, layer: Any, job: DoptJob) -> Any:
    kind = str(layer.get("type", "")) if isinstance(layer, dict) else ""
    if "Embedding" in kind:
        return {**layer, "quant_strategy": _EMBEDDING}
    if "Linear" not in kind:
        return layer
    if name.split(".")[-1] == _LM_HEAD:
        return {**layer, "quant_strategy": FLOAT}
    return {
        **layer,
        "quant_strategy": _DECODER,
        "weight": {"bit": _WEIGHT_BITS, "group_size": job.group_size},
        "input": {"bit": _ACTIVATION_BITS},
    }


def _program(toolkit: Toolkit) -> Path:
    package = toolkit.root / "tools_dopt" / "dopt_pytorch_py3" / "dopt"
    found = next((path for name in _MODULES if (path := package / name / "opt_main.py").is_file()), None)
    if found is None:
        raise EnvironmentFailure(
            "the DDK has no dopt for language models",
            file=package,
            found="no opt_main.py",
            expected=" or ".join(f"{name}/opt_main.py" for name in _MODULES),
            remedy="Unpack DDK-tools-next again, or name another one with --toolkit",
            code="TOOLKIT_BROKEN",
        )
    return found


def _identity(toolkit: Toolkit, program: Path) -> str:
    """Version and content of the DDK's dopt."""
    version = toolkit.version.version.raw if toolkit.version else "unknown version"
    return f"{version}, dopt {programs_key(program.parents[1])}"


def _environment(environment: Mapping[str, str], program: Path) -> dict[str, str]:
    """dopt computes on CUDA unless the environment says otherwise."""
    package = str(program.parents[2])
    before = environment.get("PYTHONPATH")
    return {
        "DEVICE": "cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "WANDB_DISABLED": "true",
        **environment,
        "PYTHONPATH": os.pathsep.join([package, *([before] if before else [])]),
    }
