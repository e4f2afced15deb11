"""The double of ``omg``: what it accepts, refuses and prints follows the vendor's guide and public conversion logs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.testing.arguments import Flags, tensors_of
from pytest_cannlm.testing.installations import read_orders
from pytest_cannlm.testing.models import write_model
from pytest_cannlm.testing.onnxfile import FLOAT, FLOAT16, INT64, OnnxFile, read_onnx

_FLAGS = {
    *("mode", "model", "weight", "output", "om", "json", "framework", "target", "platform", "hiai_version"),
    *("input_shape", "input_format", "input_type", "output_type", "out_nodes", "dynamic_dims", "weight_data_type"),
    *("compress_conf", "save_weights_as_external_data", "stream_num", "check_report", "insert_op_conf"),
    *("op_name_map", "weight_merge"),
}
_REFUSED = {
    *("MatMulInteger", "DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv"),
    *("ConvInteger", "Unsqueeze", "GroupQueryAttention", "RotaryEmbedding", "MatMulNBits"),
    "SkipSimplifiedLayerNormalization",
}
_OPSETS = range(7, 19)
_MOST_GEARS = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9_/.]")
_BESIDE_SUCCESS = {
    "runs-on-cpu": "I/AI_FMK  partition type NPU:0, CPU:1",
    "breaks-rope": "E/AI_NPUCL rope_llm_fusion_pass.cc CheckMul0(222)::mul0 weight size invalid 0 != 1",
    "loses-node": "E/AI_FMK  Node:model.layers.0.mlp.up_proj has quant params, but not in the graph",
    "rejects-quantization": "E/AI_FMK  QuantizeOptimizer Fail!",
    "loses-libraries": "E/AI_FMK  RmsNorm /layers.0/input_norm infershape func failed",
    "unknown-noise": "E/AI_FMK  something_of_the_double.cpp Try(1)::a line that no table knows",
}
_DTYPES = {FLOAT: "float", FLOAT16: "float16", 3: "int8", 6: "int32"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as the program; ends it with the status that ``omg`` would give."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    folder = Path(given[given.index("--double") + 1])
    direct = "--behind-the-wrapper" in given
    rest = [one for one in given if one not in ("--double", str(folder), "--behind-the-wrapper")]
    sys.exit(run(folder, rest, os.environ, direct=direct))


def run(folder: Path, arguments: Sequence[str], environment: Mapping[str, str], *, direct: bool) -> int:
    """One conversion; returns the exit status."""
    _, faults = read_orders(folder)
    print("W/AI_FMK  te_fusion: cannot open shared object file, skip", flush=True)
    if "hangs" in faults:
        time.sleep(3600)
    flags = Flags.parse(arguments)
    unknown = [name for name in flags.values if name not in _FLAGS]
    if unknown:
        print(f"ERROR: unknown command line flag '{unknown[0]}'")
        return 0
    refusal = next(_refusals(folder.parent, flags, environment), None)
    if refusal or faults & {"fails", "fails-silently"}:
        print(refusal or 'E/OMG_TOOL  main.cpp main(30)::"OMG generate offline model failed"')
        return 0 if "fails-silently" in faults else 1
    if direct:
        print("E/AI_FMK  PlugIn library :libai_npucore_ascendc.so Initialize failed")
        print("W/AI_FMK  Skip InferShapeOptimize")
    for name, line in _BESIDE_SUCCESS.items():
        if name in faults:
            print(line)
    if "runs-on-cpu" not in faults:
        print("I/AI_FMK  partition type NPU:1, CPU:0")
    model = read_onnx(Path(flags.values["model"]))
    quantized = "compress_conf" in flags.values
    if quantized:
        print("I/AI_NPUCL MatMuls16s4Gen::/model.layers.0.mlp.up_proj_dequant_s16s4")
    write_model(
        Path(flags.values["output"] + ".omc"),
        chip=normalize(flags.values["platform"]),
        inputs=_declared(model, flags, outputs=False),
        outputs=_declared(model, flags, outputs=True),
        weight_size=_compiled_bytes(model, quantized=quantized),
        attrs={},
        faults=faults,
    )
    if "leaves-old-file-and-fails" in faults:
        print('E/OMG_TOOL  main.cpp main(30)::"OMG generate offline model failed"')
        return 1
    print("I/AI_FMK  SaveCompiledModelToFile SUCCESS")
    print('I/OMG_TOOL  main.cpp main(24)::"OMG generate offline model success."')
    return 0


def _refusals(tools: Path, flags: Flags, environment: Mapping[str, str]) -> Iterator[str]:
    """What the tool says when it refuses, the first thing first."""
    values = flags.values
    platform = values.get("platform", "")
    libraries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if str(tools / "tools_omg" / "master" / "lib64") not in libraries:
        yield "omg: error while loading shared libraries: libomg.so: cannot open shared object file"
    if not (tools / "platform" / platform).is_dir() or not platform:
        yield f"E/OMG_TOOL  platform/{platform} not exists! Please install platform plugin first!"
    if str(tools / "platform" / platform / "lib64") not in libraries:
        yield "E/AI_FMK  RmsNorm /layers.0/input_norm infershape func failed"
    for name in ("model", "output", "compress_conf"):
        if _UNSAFE.search(values.get(name, "")):
            yield f"E/OMG_TOOL  --{name}: {values[name]} has a character other than letters, digits and underscores"
    if values.get("framework") != "5" or values.get("target") != "omc":
        yield "E/OMG_TOOL  this double takes --framework 5 and --target=omc only"
    try:
        model = read_onnx(Path(values.get("model", "")))
    except (OSError, ValueError) as error:
        yield f"E/OMG_TOOL  onnx_parser.cpp Parse(88)::cannot read the model: {error}"
        return
    folder = Path(values["model"]).parent
    yield from _refused_graph(model, flags, folder)


def _refused_graph(model: OnnxFile, flags: Flags, folder: Path) -> Iterator[str]:
    if model.opset not in _OPSETS:
        yield f'E/AI_FMK  onnx_parser.cpp:579 "unsupported opset version {model.opset}, need to be in [7, 19)"'
    refused = [f"E/AI_FMK  Node:{name} type:{kind} don't support!" for name, kind in model.nodes if kind in _REFUSED]
    if refused:
        yield "\n".join(refused)
    if any(value.dtype == INT64 for value in model.inputs):
        yield "E/AI_FMK  Verify failed, Input[1] DataType INT64 is wrong"
    if any(weight.dtype == FLOAT16 for weight in model.weights):
        yield _BESIDE_SUCCESS["breaks-rope"]
    for location in sorted({weight.location for weight in model.weights if weight.location}):
        if not (folder / location).is_file():
            yield f"E/AI_FMK  onnx_parser.cpp Load(120)::cannot open {location}"
    shapes = dict(flags.shapes())
    missing = [value.name for value in model.inputs if value.name not in shapes]
    if missing:
        yield f"E/OMG_TOOL  --input_shape lacks {', '.join(missing)}"
    gears = [gear.split(",") for gear in flags.values.get("dynamic_dims", "").split(";") if gear]
    varying = sum(dims.count(-1) for dims in shapes.values())
    if len(gears) > _MOST_GEARS or any(len(gear) != varying for gear in gears) or bool(gears) != bool(varying):
        yield f"E/OMG_TOOL  --dynamic_dims does not fit {varying} dimensions"


def _declared(model: OnnxFile, flags: Flags, *, outputs: bool) -> list[TensorIO]:
    asked = flags.types("output_type" if outputs else "input_type")
    return tensors_of(model.outputs if outputs else model.inputs, _DTYPES, asked, dict(flags.shapes()))


def _compiled_bytes(model: OnnxFile, *, quantized: bool) -> int:
    """Two bytes per weight, or half a byte with a scale per 128 of them."""
    count = sum(weight.count for weight in model.weights if weight.location)
    return count // 2 + count // 64 if quantized else 2 * count


if __name__ == "__main__":
    main()
