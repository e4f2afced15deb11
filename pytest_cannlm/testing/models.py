"""The compiled model that a converter's double leaves: a valid container with nothing in it that could run."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_cannlm.container.kirin import ATC_VERSION, FRAMEWORK_TYPE, SOC_VERSION, platform_code, task_info_v2
from pytest_cannlm.container.layout import (
    EXTERNAL_WEIGHT_FILE,
    KIRIN_COMPILED,
    KIRIN_PORTABLE,
    MODEL_DEF,
    TASK_INFO,
    WEIGHTS_DATA,
    HeaderFields,
    name_field,
)
from pytest_cannlm.container.modeldef import Attribute, TensorIO, encode_model_def
from pytest_cannlm.container.writer import Partition, write_container

DOUBLE_MARK = b"CANNLM-DOUBLE"
"""Start of userdefineinfo in the header (zero in every known real file), and the content of the weights."""

_LONG_AGO = 1_000_000_000
_BLOCK = 1 << 16


def write_model(
    path: Path,
    *,
    chip: str,
    inputs: Sequence[TensorIO],
    outputs: Sequence[TensorIO],
    weight_size: int,
    attrs: Mapping[str, Attribute],
    faults: Collection[str],
) -> None:
    """Write the model and its weights beside it, or what the faults make of them."""
    if "writes-nothing" in faults:
        return
    if "writes-empty" in faults:
        path.write_bytes(b"")
        return
    task_info = task_info_v2(platform_code("Kirin9030" if "other-chip" in faults else chip))
    model_def = encode_model_def(
        name=path.stem,
        inputs=inputs,
        outputs=outputs,
        attrs=attrs,
        weight_size=weight_size,
        task_size=len(task_info),
    )
    kind = KIRIN_PORTABLE if "not-compiled" in faults else KIRIN_COMPILED
    write_container(
        path,
        header=HeaderFields(layout="K", modeltype=kind, name=name_field(path.stem), userdefineinfo=DOUBLE_MARK),
        partitions=[Partition(MODEL_DEF, model_def), Partition(WEIGHTS_DATA, b""), Partition(TASK_INFO, task_info)],
    )
    if "loses-weights" not in faults:
        _write_weights(path.with_name(EXTERNAL_WEIGHT_FILE), weight_size - ("cuts-weights" in faults))
    if "leaves-old-file" in faults or "leaves-old-file-and-fails" in faults:
        os.utime(path, (_LONG_AGO, _LONG_AGO))


def atc_attributes(version: str, chip: str) -> dict[str, Attribute]:
    """What ``atc`` writes of itself into a model; ``omg`` writes nothing of the kind."""
    return {ATC_VERSION: version, SOC_VERSION: chip, FRAMEWORK_TYPE: "Onnx"}


def _write_weights(path: Path, size: int) -> None:
    """The mark, over and over: a number format would make noise of it, and a reader sees what it is."""
    block = (DOUBLE_MARK + b"\n") * (_BLOCK // (len(DOUBLE_MARK) + 1))
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
