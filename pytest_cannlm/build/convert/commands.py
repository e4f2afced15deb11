"""The vendor's command lines and the environment that their tools need, as lists and mappings. Pure functions.

Sources: the overall parameters and the page on language models of the CANN Kit guide (``omg``), the option table of the
vendor's open graph engine and its public recipes (``atc``), and what public projects found to be missing in both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_cannlm.build.graph import Dims

Tensors = Sequence[tuple[str, str, Dims]]
"""Name, dtype and shape of each input or output; -1 is the length of a step."""

_REFUSED_BY_OMG = re.compile(r"[^A-Za-z0-9_]")
_ONNX = "5"
_DECODE = 1


def omg_command(
    program: Path,
    *,
    model: Path,
    output: Path,
    inputs: Tensors,
    outputs: Tensors,
    prefill: int,
    platform: str,
    quant_params: Path | None = None,
) -> list[str]:
    """The command line of ``omg`` for a language model with two shapes (gears): one position, and a prefill step.

    Args:
        program: the wrapper ``tools_omg/omg``.
        model: the ONNX model; :func:`taken_by_omg` says whether omg takes its path.
        output: the file to write, without its suffix.
        inputs: in the order of the model.
        outputs: in the order of the model.
        prefill: positions of a prefill step.
        platform: the chip as the DDK spells it, such as ``kirinx90``.
        quant_params: ``quant_params_file`` of dopt; without it weights become FP16.
    """
    caches_in = ";".join(f"{name}:FP16" for name, _, _ in inputs if name.startswith("past_"))
    kept = [f"{name}:{'FP16' if name.startswith('past_') else 'FP32'}" for name, _, _ in outputs]
    varying = sum(list(dims).count(-1) for _, _, dims in inputs)
    gears = ";".join(",".join([str(length)] * varying) for length in (_DECODE, prefill))
    weights = ["--weight_data_type", "FP16"] if quant_params is None else ["--compress_conf", str(quant_params)]
    return [
        *(str(program), "--model", str(model), "--framework", _ONNX, "--output", str(output)),
        *(f"--input_shape={input_shape(inputs)}", f"--dynamic_dims={gears}"),
        *(f"--input_type={caches_in}", f"--output_type={';'.join(kept)}"),
        *weights,
        *("--save_weights_as_external_data=true", f"--platform={platform}", "--target=omc"),
    ]


def atc_command(program: Path, *, model: Path, output: Path, inputs: Tensors, step: int, soc: str) -> list[str]:
    """The command line of the mobile-station ``atc``, which takes no shape that varies: every step is ``step`` long."""
    fixed = [(name, dtype, [step if dim == -1 else dim for dim in dims]) for name, dtype, dims in inputs]
    return [
        *(str(program), f"--model={model}", f"--framework={_ONNX}", f"--output={output}", f"--soc_version={soc}"),
        *(f"--input_shape={input_shape(fixed)}", "--external_weight=1"),
    ]


def input_shape(inputs: Tensors) -> str:
    """``name:1,-1,64;…`` of every input."""
    return ";".join(f"{name}:{','.join(map(str, dims))}" for name, _, dims in inputs)


def omg_libraries(tools: Path, *, platform: str) -> tuple[Path, ...]:
    """Where ``omg`` has its compiler: libraries of the DDK in ``tools``, and of the plugin ``platform``."""
    return tools / "tools_omg" / "master" / "lib64", tools / "platform" / platform / "lib64"


def atc_libraries(root: Path) -> tuple[Path, ...]:
    """Where ``atc`` of the CANN in ``root`` has its compiler."""
    return tuple(root / "lib64" / part for part in ("", "plugin/opskernel", "plugin/nnengine"))


def omg_environment(environment: Mapping[str, str], tools: Path, *, platform: str, scratch: Path) -> dict[str, str]:
    """What ``omg`` of the DDK in ``tools`` needs, in front of what is set already.

    Without the second library folder it fails in shape inference of RmsNorm; ``scratch`` stands in for a ``/tmp`` that
    may be read-only.
    """
    return {
        **environment,
        "LD_LIBRARY_PATH": _in_front(environment, "LD_LIBRARY_PATH", *omg_libraries(tools, platform=platform)),
        "PYTHONPATH": _in_front(environment, "PYTHONPATH", tools / "platform" / platform / "ops" / "impl"),
        "SOC_VERSION": platform,
        "TMPDIR": str(scratch),
    }


def atc_environment(environment: Mapping[str, str], root: Path, *, scratch: Path) -> dict[str, str]:
    """What ``set_env.sh`` of the CANN in ``root`` sets, as far as ``atc`` needs it, in front of what is set already."""
    return {
        **environment,
        **dict.fromkeys(("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH", "TOOLCHAIN_HOME"), str(root)),
        "ASCEND_OPP_PATH": str(root / "opp"),
        "LD_LIBRARY_PATH": _in_front(environment, "LD_LIBRARY_PATH", *atc_libraries(root)),
        "PYTHONPATH": _in_front(
            environment, "PYTHONPATH", root / "python" / "site-packages", root / "opp/built-in/op_impl/ai_core/tbe"
        ),
        "PATH": _in_front(environment, "PATH", root / "bin", root / "compiler" / "ccec_compiler" / "bin"),
        "TMPDIR": str(scratch),
    }


def taken_by_omg(path: Path) -> bool:
    """Whether ``omg`` takes a path: letters, digits and underscores, and dots in the file name only."""
    folders = path.parts[1:-1] if path.is_absolute() else path.parts[:-1]
    names = (*folders, path.name.replace(".", ""))
    return not any(_REFUSED_BY_OMG.search(name) for name in names)


def _in_front(environment: Mapping[str, str], name: str, *folders: Path) -> str:
    kept = [environment[name]] if environment.get(name) else []
    return os.pathsep.join([*map(str, folders), *kept])
