"""The double of the mobile-station ``atc``; texts and rules are those of the vendor's open graph engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_cannlm.compat.chips import normalize
from pytest_cannlm.testing.arguments import Flags, tensors_of
from pytest_cannlm.testing.installations import read_orders
from pytest_cannlm.testing.models import atc_attributes, write_model
from pytest_cannlm.testing.onnxfile import FLOAT, INT8, INT32, OnnxFile, read_onnx

_FLAGS = {
    *("mode", "model", "framework", "output", "soc_version", "input_format", "input_shape", "output_type"),
    *("core_type", "out_nodes", "external_weight", "precision_mode", "precision_mode_v2", "log"),
}
_REFUSED = {"GroupQueryAttention", "MatMulNBits", "RotaryEmbedding", "SkipSimplifiedLayerNormalization"}
_OPSETS = range(11, 19)
_DTYPES = {FLOAT: "float", INT8: "int8", INT32: "int32"}
_FAILED = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"


def main() -> None:
    """Run as the program; ends it with the status that ``atc`` would give."""
    given = sys.argv[1:]
    folder = Path(given[given.index("--double") + 1])
    sys.exit(run(folder, [one for one in given if one not in ("--double", str(folder))]))


def run(folder: Path, arguments: Sequence[str]) -> int:
    """One conversion; returns the exit status."""
    version, faults = read_orders(folder)
    print("ATC start working now, please wait for a moment.", flush=True)
    if "hangs" in faults:
        time.sleep(3600)
    flags = Flags.parse(arguments)
    refusal = next(_refusals(flags), None)
    if refusal or faults & {"fails", "fails-silently"}:
        print(refusal or "E19999: Inner Error!")
        print(_FAILED)
        return 0 if "fails-silently" in faults else 1
    model = read_onnx(Path(flags.values["model"]))
    chip = normalize(flags.values["soc_version"])
    write_model(
        Path(flags.values["output"] + ".omc"),
        chip=chip,
        inputs=tensors_of(model.inputs, _DTYPES, {}, dict(flags.shapes())),
        outputs=tensors_of(model.outputs, _DTYPES, {}, {}),
        weight_size=2 * sum(weight.count for weight in model.weights if weight.location),
        attrs=atc_attributes("8.5.0" if "other-version" in faults else version, chip),
        faults=faults,
    )
    if "leaves-old-file-and-fails" in faults:
        print(_FAILED)
        return 1
    print("ATC run success, welcome to the next use.")
    return 0


def _refusals(flags: Flags) -> Iterator[str]:
    unknown = [name for name in flags.values if name not in _FLAGS]
    if unknown:
        yield f"ERROR: unknown command line flag '{unknown[0]}'"
    try:
        model = read_onnx(Path(flags.values.get("model", "")))
    except (OSError, ValueError):
        yield f"E10410: File {flags.values.get('model')} does not exist."
        return
    yield from _refused_graph(model, flags)


def _refused_graph(model: OnnxFile, flags: Flags) -> Iterator[str]:
    shapes = dict(flags.shapes())
    if any(-1 in shapes.get(value.name, value.dims) for value in model.inputs):
        yield "E19999 [Mobile] mobile is not support unknown shape model to om!!!"
    if model.opset not in _OPSETS:
        first = model.nodes[0][1] if model.nodes else "Add"
        yield f"E19010: No parser is registered for Op [{first}, optype [ai.onnx::{model.opset}::{first}]]."
    refused = [kind for _, kind in model.nodes if kind in _REFUSED]
    if refused:
        lines = [f"No parser is registered for Op [optype [{kind}]]." for kind in dict.fromkeys(refused)]
        yield "\n".join([f"E19010: {lines[0]}", *lines[1:]])


if __name__ == "__main__":
    main()
