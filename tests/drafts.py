"""A built package of the tiny checkpoint that a test may spoil, file by file."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.kirin import read_simulated, task_info_v2, write_simulated_omc
from pytest_cannlm.container.layout import KIRIN_COMPILED, MODEL_DEF, TASK_INFO, WEIGHTS_DATA, HeaderFields, name_field
from pytest_cannlm.container.modeldef import TensorIO, encode_model_def
from pytest_cannlm.container.writer import Partition, write_container

CONTEXT, LAYERS, HIDDEN, KV_HEADS, HEAD_DIM, VOCAB = 256, 2, 128, 2, 32, 512
STEM = "tiny_w4a16"
MODEL = f"{STEM}.omc"
ROWS = f"{STEM}_64_256.embedding_weights"
SCALES = f"{STEM}_64_256.embedding_dequant_scale"
WEIGHTS = "SubGraph_0.weight"


class Draft:
    """A copy of a package with its manifest, in ``root``."""

    def __init__(self, built: Path, root: Path) -> None:
        shutil.copytree(built, root)
        self.root = root
        self.package = root / "package"

    def path(self, name: str) -> Path:
        """A file of the package, or the manifest."""
        return (self.root if name == "manifest.json" else self.package) / name

    def set(self, name: str, field: str, value: Any) -> None:
        """Give a dotted field of a JSON file a value."""
        data = json.loads(self.path(name).read_text(encoding="utf-8"))
        *sections, key = field.split(".")
        inner = data
        for section in sections:
            inner = inner[section]
        inner[key] = value
        self.write_json(name, data)

    def drop(self, name: str, field: str) -> None:
        """Take a dotted field out of a JSON file."""
        data = json.loads(self.path(name).read_text(encoding="utf-8"))
        *sections, key = field.split(".")
        inner = data
        for section in sections:
            inner = inner[section]
        del inner[key]
        self.write_json(name, data)

    def llm(self, **values: Any) -> None:
        """Settings of ``llm_config``."""
        for key, value in values.items():
            self.set("executor.json", f"llm_config.{key}", value)

    def write(self, name: str, data: bytes) -> None:
        """A file of the package."""
        self.path(name).write_bytes(data)

    def write_json(self, name: str, data: Any) -> None:
        """A JSON file of the package."""
        self.path(name).write_text(json.dumps(data), encoding="utf-8")

    def without_manifest(self) -> None:
        """As a package made elsewhere."""
        self.path("manifest.json").unlink()

    def compile(
        self,
        *,
        inputs: Callable[[list[TensorIO]], Sequence[TensorIO]] = list,
        outputs: Callable[[list[TensorIO]], Sequence[TensorIO]] = list,
        weight_size: int | None = None,
        graph: bytes | None = None,
        name: str = MODEL,
    ) -> None:
        """Write the simulated model again with another interface, weight size or graph."""
        size = self.path(WEIGHTS).stat().st_size if weight_size is None else weight_size
        write_simulated_omc(
            self.path(name),
            name=STEM,
            chip="KirinX90",
            build_version="6.1.1.0",
            inputs=inputs(list(INPUTS)),
            outputs=outputs(list(OUTPUTS)),
            weight_size=size,
            runtime_graph=read_simulated(self.path(MODEL)).runtime_graph if graph is None else graph,
        )

    def compile_for_real(
        self,
        *,
        inputs: Callable[[list[TensorIO]], Sequence[TensorIO]] = list,
        outputs: Callable[[list[TensorIO]], Sequence[TensorIO]] = list,
        **attrs: Any,
    ) -> None:
        """Write the model as a converter for real NPUs does: no mark, no graph of the simulator, and ``attrs``."""
        task = task_info_v2(7)  # a platform code of an unnamed chip
        size = self.path(WEIGHTS).stat().st_size
        definition = encode_model_def(
            name=STEM,
            inputs=inputs(list(INPUTS)),
            outputs=outputs(list(OUTPUTS)),
            attrs=attrs,
            weight_size=size,
            task_size=len(task),
        )
        write_container(
            self.path(MODEL),
            header=HeaderFields(layout="K", modeltype=KIRIN_COMPILED, name=name_field(STEM)),
            partitions=[Partition(MODEL_DEF, definition), Partition(WEIGHTS_DATA, b""), Partition(TASK_INFO, task)],
        )

    def header(self, **fields: Any) -> None:
        """Change fields of the model's header."""
        container = open_container(self.path(MODEL))
        partitions = [Partition(entry.type, container.read(entry)) for entry in container.partitions]
        write_container(self.path(MODEL), header=replace(container.header, **fields), partitions=partitions)

    def graph(self, change: Callable[[onnx.GraphProto], None]) -> None:
        """Change the graph that the simulator runs."""
        model = onnx.load_model_from_string(read_simulated(self.path(MODEL)).runtime_graph)
        change(model.graph)
        self.compile(graph=model.SerializeToString())

    def array(self, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change an array of the weight file in place; ``change`` gets and gives the stored numbers."""
        model = onnx.load_model_from_string(read_simulated(self.path(MODEL)).runtime_graph)
        tensor = next(one for one in model.graph.initializer if one.name == name)
        places = {entry.key: entry.value for entry in tensor.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        raw = bytearray(self.path(WEIGHTS).read_bytes())
        start, end = int(places["offset"]), int(places["offset"]) + int(places["length"])
        found = np.frombuffer(raw[start:end], dtype).reshape(tensor.dims).copy()
        raw[start:end] = change(found).astype(dtype).tobytes()
        self.write(WEIGHTS, bytes(raw))


def _interface() -> tuple[list[TensorIO], list[TensorIO]]:
    cache = (CONTEXT, KV_HEADS, 1, HEAD_DIM)
    caches = [f"past_{kind}{{}}{i}" for i in range(LAYERS) for kind in ("key", "value")]
    inputs = [
        TensorIO("input_embed", "int8", (1, -1, HIDDEN)),
        TensorIO("attention_mask", "float", (1, 1, -1, CONTEXT)),
        TensorIO("position_ids", "int32", (1, -1)),
        *(TensorIO(name.format("_in"), "float16", cache) for name in caches),
        TensorIO("new_kv_cache_pos", "int32", (-1,)),
        TensorIO("embed_scales", "float", (1, -1, 1)),
    ]
    outputs = [
        TensorIO("lm_logits", "float", (1, -1, VOCAB)),
        *(TensorIO(name.format(""), "float16", cache) for name in caches),
    ]
    return inputs, outputs


INPUTS, OUTPUTS = _interface()


def without(name: str) -> Callable[[list[TensorIO]], list[TensorIO]]:
    """Drop one tensor from an interface."""
    return lambda tensors: [tensor for tensor in tensors if tensor.name != name]


def like(name: str, *, shape: Sequence[int] | None = None, dtype: str | None = None) -> Any:
    """Give one tensor of an interface, or all whose name starts so, another shape or type."""

    def change(tensors: list[TensorIO]) -> list[TensorIO]:
        return [
            TensorIO(one.name, dtype or one.dtype, tuple(shape or one.shape)) if one.name.startswith(name) else one
            for one in tensors
        ]

    return change
