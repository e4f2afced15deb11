"""Files that the vendor's tools left, damaged in any way: a named error or a result, and nothing else."""

import json
import string
from array import array
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from vendor_tools import tiny_config

from pytest_cannlm.build.believing import disagreements, read_log
from pytest_cannlm.build.convert.commands import input_shape, omg_command
from pytest_cannlm.build.convert.judging import file_disagreements
from pytest_cannlm.build.convert.quant_params import read_quant_params
from pytest_cannlm.build.convert.torchfile import TorchFile
from pytest_cannlm.compat.versions import parse
from pytest_cannlm.errors import BadInputError, CannlmError
from pytest_cannlm.testing.arguments import Flags
from pytest_cannlm.testing.onnxfile import read_onnx
from pytest_cannlm.testing.pthfile import write_pth

NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=12)
DIMS = st.lists(st.integers(-1, 4096).filter(bool), min_size=1, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_weights(tmp_path_factory, patch, place):
    path = tmp_path_factory.mktemp("pth") / "a.pth"
    write_pth(path, {"a": ((3,), array("f", [1, 2, 3]))})
    data = bytearray(path.read_bytes())
    data[place : place + len(patch)] = patch
    path.write_bytes(data)
    with suppress(BadInputError):
        file = TorchFile(path)
        for name in file.tensors:
            file.read(name)
            file.negative(name)


@given(JSON, st.binary(max_size=80))
def test_what_dopt_left(tmp_path_factory, layer, settings):
    folder = tmp_path_factory.mktemp("dopt")
    (folder / "quant_params_file").write_bytes(b"1")
    (folder / "fake_quant_weight.pth").write_bytes(b"1")
    (folder / "dopt_config.json").write_text(json.dumps({"layer_strategy": {"a": layer, "b": {"weight": layer}}}))
    (folder / "config.yaml").write_bytes(b"quant_param_2: " + settings)
    with suppress(CannlmError):
        read_quant_params(folder, chip="KirinX90", config=tiny_config())


@given(st.binary(max_size=400))
def test_any_file_as_a_model(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("omc") / "m.omc"
    path.write_bytes(content)
    assert list(file_disagreements(path, began=0.0, chip="KirinX90", version=parse("6.1.1.0")))


@given(st.binary(max_size=400))
def test_any_file_as_a_log(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(content)
    assert disagreements(read_log(path, success=["the text of a success"]), None, [])


@given(st.binary(max_size=200))
def test_any_file_as_an_onnx_model(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    path.write_bytes(content)
    with suppress(ValueError):
        read_onnx(path)


@given(st.dictionaries(NAMES, DIMS, min_size=1, max_size=6), st.integers(2, 512))
def test_a_command_line_says_what_it_was_made_from(shapes, prefill):
    inputs = [(name, "float32", dims) for name, dims in shapes.items()]
    command = omg_command(
        Path("omg"), model=Path("m"), output=Path("o"), inputs=inputs, outputs=inputs, prefill=prefill, platform="p"
    )
    flags = Flags.parse(command[1:])
    assert {name: list(dims) for name, dims in flags.shapes()} == shapes
    varying = input_shape(inputs).replace(":", ",").replace(";", ",").split(",").count("-1")
    gears = [gear.split(",") for gear in flags.values["dynamic_dims"].split(";")]
    assert [gear for gear in gears if gear != [""]] == [[length] * varying for length in ("1", str(prefill)) if varying]
