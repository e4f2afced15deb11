"""The doubles of the vendor's tools: they say, leave and refuse what the vendor's do."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pytest_cannlm.container.core import open_container
from pytest_cannlm.explain import explain_text
from pytest_cannlm.testing import DOUBLE_MARK, FAULTS, fake_ddk, fake_mobile_station
from pytest_cannlm.testing.onnxfile import read_onnx
from pytest_cannlm.toolkits import find_toolkits

posix = pytest.mark.skipif(os.name != "posix", reason="the doubles are scripts")


def write_onnx(folder: Path, *, opset=12, kind="Add", index=TensorProto.INT32, dtype=TensorProto.FLOAT) -> Path:
    """Two inputs, one node, a weight of 6 numbers outside."""
    weight = TensorProto(name="w", data_type=dtype, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="model.onnx.data")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "S"]),
        helper.make_tensor_value_info("position_ids", index, ["S"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "S"])]
    graph = helper.make_graph([helper.make_node(kind, ["x", "w"], ["y"], "node")], "g", inputs, outputs, [weight])
    opsets = [helper.make_opsetid("", opset)] if opset else [helper.make_opsetid("com.microsoft", 1)]
    (folder / "model.onnx.data").write_bytes(bytes(24))
    onnx.save(helper.make_model(graph, opset_imports=opsets), folder / "model.onnx")
    return folder / "model.onnx"


def omg(tools: Path, folder: Path, *more: str, program="omg", libraries=("tools_omg/master/lib64", None), **values):
    """Run omg with the documented flags; ``libraries`` go onto its path, None being the platform's."""
    given = {
        "model": "model.onnx", "framework": "5", "output": "out", "target": "omc", "platform": "kirinx90",
        "input_shape": "x:1,-1;position_ids:-1", "dynamic_dims": "1,1;64,64", **values,
    }  # fmt: skip
    paths = [tools / (library or f"platform/{given['platform']}/lib64") for library in libraries]
    command = [tools / "tools_omg" / program, *(f"--{name}={value}" for name, value in given.items()), *more]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def atc(root: Path, folder: Path, *more: str, shape="x:1,8;position_ids:8"):
    command = [
        root / "bin" / "atc", "--model=model.onnx", "--framework=5", "--output=out", "--soc_version=KirinX90",
        f"--input_shape={shape}", "--external_weight=1", *more,
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_room_starts_without_heavy_imports():
    code = (
        "import sys, pytest_cannlm.testing, pytest_cannlm.testing.omg, pytest_cannlm.testing.atc\n"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'pytest'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_installations_look_real(tmp_path):
    fake_ddk(tmp_path, version="6.0.1.0", platforms=["kirinx90", "kirin9020"])
    fake_mobile_station(tmp_path)
    ddk, cann = sorted(find_toolkits({}, roots=[tmp_path]), key=lambda one: one.kind)
    assert (ddk.kind, ddk.version.version.raw, [one.chip for one in ddk.platforms]) == (
        "ddk", "6.0.1.0", ["Kirin9020", "KirinX90"],
    )  # fmt: skip
    assert (cann.kind, cann.version.version.raw) == ("mobile-station", "9.0.0")
    assert ddk.problems == cann.problems == ()


def test_an_unknown_fault_is_named(tmp_path):
    with pytest.raises(ValueError, match="no fault breaks"):
        fake_ddk(tmp_path, faults=["breaks"])
    assert "fails" in FAULTS


def test_the_reader_sees_what_onnx_sees(tmp_path):
    model = read_onnx(write_onnx(tmp_path))
    assert model.opset == 12
    assert model.nodes == (("node", "Add"),)
    assert [(value.name, value.dtype, value.dims) for value in model.inputs] == [
        ("x", TensorProto.FLOAT, (1, -1)), ("position_ids", TensorProto.INT32, (-1,)),
    ]  # fmt: skip
    assert [value.name for value in model.outputs] == ["y"]
    assert [(one.name, one.count, one.location) for one in model.weights] == [("w", 6, "model.onnx.data")]


@posix
def test_omg_says_what_it_does_and_leaves_a_model_that_runs_nowhere(tmp_path):
    write_onnx(tmp_path)
    done = omg(fake_ddk(tmp_path), tmp_path, "--input_type=x:FP16")
    assert done.returncode == 0
    assert "OMG generate offline model success." in done.stdout
    assert "partition type NPU:1, CPU:0" in done.stdout
    model = open_container(tmp_path / "out.omc")
    assert (model.dialect, model.simulated, model.kirin_platform()[0]) == ("kirin", False, 10)
    assert model.header.userdefineinfo.startswith(DOUBLE_MARK)
    assert model.attributes() == {}
    assert model.external_weight_size() == 12
    assert (tmp_path / "SubGraph_0.weight").read_bytes() == DOUBLE_MARK[:12]


@posix
def test_atc_writes_its_versions_into_the_model(tmp_path):
    write_onnx(tmp_path)
    done = atc(fake_mobile_station(tmp_path), tmp_path)
    assert done.returncode == 0
    assert "ATC run success" in done.stdout
    attributes = open_container(tmp_path / "out.omc").attributes()
    assert (attributes["atc_version"], attributes["soc_version"]) == ("9.0.0", "KirinX90")


def refused(done, text, *, status=1):
    assert text in done.stdout
    assert done.returncode == status
    assert "success" not in done.stdout
    return explain_text(done.stdout.splitlines())


@posix
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"opset": 23}, "unsupported opset version 23, need to be in [7, 19)"),
        ({"opset": 0}, "unsupported opset version 0"),
        ({"kind": "MatMulInteger"}, "Node:node type:MatMulInteger don't support!"),
        ({"index": TensorProto.INT64}, "Verify failed, Input[1] DataType INT64 is wrong"),
        ({"dtype": TensorProto.FLOAT16}, "CheckMul0(222)::mul0 weight size invalid 0 != 1"),
    ],
)
def test_graphs_that_omg_refuses(tmp_path, model, text):
    write_onnx(tmp_path, **model)
    found = refused(omg(fake_ddk(tmp_path), tmp_path), text)
    assert found[0].known
    assert not (tmp_path / "out.omc").exists()


@posix
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"platform": "kirin9020"}, "platform/kirin9020 not exists! Please install platform plugin first!"),
        ({"model": "a-b.onnx"}, "a-b.onnx"),
        ({"model": "missing.onnx"}, "cannot read the model"),
        ({"input_shape": "x:1,-1"}, "lacks position_ids"),
        ({"dynamic_dims": "1;64"}, "does not fit"),
        ({"dynamic_dims": ";".join(["1,1"] * 17)}, "does not fit"),
        ({"target": "om"}, "--target=omc only"),
    ],
)
def test_calls_that_omg_refuses(tmp_path, flags, text):
    write_onnx(tmp_path)
    refused(omg(fake_ddk(tmp_path), tmp_path, **flags), text)


@posix
@pytest.mark.parametrize(
    ("libraries", "text"),
    [((None,), "libomg.so: cannot open shared object file"), (("tools_omg/master/lib64",), "infershape func failed")],
)
def test_libraries_that_omg_does_not_find(tmp_path, libraries, text):
    write_onnx(tmp_path)
    assert refused(omg(fake_ddk(tmp_path), tmp_path, libraries=libraries), text)[0].known


@posix
def test_an_unknown_flag_ends_with_0_and_no_file(tmp_path):
    write_onnx(tmp_path)
    refused(omg(fake_ddk(tmp_path), tmp_path, "--colour=red"), "unknown command line flag", status=0)
    assert not (tmp_path / "out.omc").exists()


@posix
def test_behind_the_wrapper_plugins_are_missing(tmp_path):
    write_onnx(tmp_path)
    done = omg(fake_ddk(tmp_path), tmp_path, program="master/omg")
    assert "libai_npucore_ascendc.so Initialize failed" in done.stdout
    assert "offline model success" in done.stdout
    assert "wrapper" in explain_text(done.stdout.splitlines())[0].next


@posix
@pytest.mark.parametrize(
    ("model", "more", "text"),
    [
        ({"opset": 23}, {}, "E19010"),
        ({"kind": "MatMulNBits"}, {}, "E19010"),
        ({}, {"shape": "x:1,-1;position_ids:-1"}, "mobile is not support unknown shape model to om!!!"),
    ],
)
def test_what_atc_refuses(tmp_path, model, more, text):
    write_onnx(tmp_path, **model)
    assert refused(atc(fake_mobile_station(tmp_path), tmp_path, **more), text)[0].known


@posix
def test_atc_refuses_what_only_omg_knows(tmp_path):
    write_onnx(tmp_path)
    refused(atc(fake_mobile_station(tmp_path), tmp_path, "--platform=kirinx90"), "unknown command line flag")
