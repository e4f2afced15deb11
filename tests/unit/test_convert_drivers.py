"""``omg`` and ``atc``, driven on their doubles: a success is believed only if every sign of it agrees."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import installations
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tiny import tiny_llama
from vendor_tools import Job, Said, kit, recipe

from pytest_cannlm.build import build, locate_package
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.container.core import open_container
from pytest_cannlm.errors import BuildError, EnvironmentFailure, PackageError
from pytest_cannlm.lint import lint
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.testing import DOUBLE_MARK

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the vendor's tools are for Linux, their doubles for POSIX")


def converted(tmp_path, converter="omg", faults=(), **more):
    job = Job(tmp_path, **more)
    return job, job.run(recipe(converter, kit(tmp_path, converter, faults)))


def refused(tmp_path, converter="omg", faults=(), change=None, error=BuildError, **more):
    job = Job(tmp_path, **more)
    with pytest.raises(error) as caught:
        job.run(recipe(converter, kit(tmp_path, converter, faults)), change)
    assert list(job.target.parent.iterdir()) == [], "nothing of a failed run is left where results go"
    return caught.value


@pytest.mark.parametrize("converter", ["omg", "atc"])
def test_a_build_ends_in_a_package_that_lints(tmp_path, converter):
    built = build(recipe(converter, kit(tmp_path, converter)), cache=tmp_path / "cache", progress=Said())
    report = lint(built.package)
    assert report.of("error") == ()
    package = locate_package(built.package)
    assert package.data["simulated"] is False
    assert package.coefficients is None, "our codes are not what is in the package"
    assert "success" in (built.package.parent / "convert.log").read_text("utf-8")
    model = open_container(package.model)
    assert model.header.userdefineinfo.startswith(DOUBLE_MARK)
    assert model.external_weight_size() == package.weights.stat().st_size
    assert package.weights.read_bytes().startswith(DOUBLE_MARK)


def test_the_second_build_converts_nothing(tmp_path):
    wanted = recipe("omg", kit(tmp_path))
    build(wanted, cache=tmp_path / "cache", progress=Said())
    assert build(wanted, cache=tmp_path / "cache", progress=Said()).cached


def test_another_toolkit_of_the_same_version_converts_again(tmp_path):
    build(recipe("omg", kit(tmp_path / "a")), cache=tmp_path / "cache", progress=Said())
    again = build(recipe("omg", kit(tmp_path / "b")), cache=tmp_path / "cache", progress=Said())
    assert [(step.step, step.cached) for step in again.steps][2:] == [("convert", False), ("assemble", False)]


@pytest.mark.parametrize(
    ("converter", "library"),
    [
        ("omg", "tools_omg/master/lib64/libomg.so"),
        ("omg", "platform/kirinx90/lib64/libai.so"),
        ("atc", "lib64/plugin/nnengine/libge.so"),
    ],
)
def test_a_changed_compiler_converts_again(tmp_path, converter, library):
    tools = kit(tmp_path, converter)
    wanted = recipe(converter, tools)
    build(wanted, cache=tmp_path / "cache", progress=Said())
    installations.write(tools / library, b"another compiler")
    again = build(wanted, cache=tmp_path / "cache", progress=Said())
    assert [(step.step, step.cached) for step in again.steps][1:3] == [("export", True), ("convert", False)]
    assert build(wanted, cache=tmp_path / "cache", progress=Said()).cached


def test_the_gate_knows_the_version_of_the_toolkit(tmp_path):
    built = build(recipe("omg", kit(tmp_path)), cache=tmp_path / "cache", progress=Said())
    build_section = locate_package(built.package).data["build"]
    assert build_section["cann"] == "6.1.1.0"
    assert build_section["tool"]["toolkit"]["version"] == "6.1.1.0"
    assert "quantizer" not in build_section
    for cann, answer in (("6.1.1.0", "load"), ("6.0.1.0", "refuse")):
        assert decide(built.package, Target("KirinX90", cann), manifest=built.manifest).answer == answer


def test_atc_says_that_the_engine_may_not_load_it(tmp_path):
    job, model = converted(tmp_path, "atc")
    assert any("not known to load in the LM Engine" in line for line in job.progress.lines)
    assert open_container(model).attributes()["atc_version"] == "9.0.0"


def test_atc_builds_of_a_version_that_cannot_be_compared_say_so(tmp_path):
    wanted = recipe("atc", kit(tmp_path, "atc"), cann="6.1.1.0")
    said = Said()
    built = build(wanted, cache=tmp_path / "cache", progress=said)
    assert locate_package(built.package).data["build"]["cann"] == "9.0.0"
    assert any("is not known" in line for line in said.lines)


def test_the_simulator_does_not_take_it(tmp_path):
    from pytest_cannlm.container.kirin import read_simulated

    _, model = converted(tmp_path)
    with pytest.raises(PackageError, match="compiled for a real one"):
        read_simulated(model)


@pytest.mark.parametrize("converter", ["omg", "atc"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fails", "status 1"),
        ("leaves-old-file-and-fails", "older than this run"),
        ("fails-silently", "wrote no"),
        ("writes-nothing", "wrote no"),
        ("writes-empty", "is empty"),
        ("leaves-old-file", "older than this run"),
        ("cuts-weights", "SubGraph_0.weight has"),
        ("loses-weights", "wrote no SubGraph_0.weight"),
        ("other-chip", "compiled for Kirin9030"),
        ("not-compiled", "is not compiled"),
    ],
)
def test_one_sign_that_disagrees_is_enough(tmp_path, converter, fault, reason):
    error = refused(tmp_path, converter, [fault])
    assert reason in str(error)
    assert error.code == "CONVERSION_FAILED"


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("runs-on-cpu", "runs on the CPU", "Replace the operators"),
        ("breaks-rope", "broke the fusion of RoPE", "FP32"),
        ("loses-node", "does not have any more", "Keep node names"),
        ("rejects-quantization", "do not fit the graph", "Quantize again"),
        ("loses-libraries", "cannot find its operator libraries", "LD_LIBRARY_PATH"),
    ],
)
def test_a_success_beside_a_known_error_is_none(tmp_path, fault, cause, remedy):
    error = refused(tmp_path, "omg", [fault])
    assert cause in error.message
    assert remedy in error.remedy


def test_a_model_of_another_toolkit_version_is_none(tmp_path):
    assert "8.5.0 built it" in str(refused(tmp_path, "atc", ["other-version"]))


def test_lines_that_nobody_knows_are_shown_and_decide_nothing(tmp_path):
    job, _ = converted(tmp_path, faults=["unknown-noise"])
    assert any("a line that no table knows" in line for line in job.progress.lines)


def test_the_log_of_a_failure_is_kept_and_its_end_is_told(tmp_path):
    error = refused(tmp_path, "omg", ["fails"])
    assert "offline model failed" in Path(error.file).read_text("utf-8")
    assert "offline model failed" in error.with_notes()


def test_every_refused_operator_is_named_once(tmp_path):
    def change(model):
        for name in ("a", "b"):
            model.graph.node.append(onnx.helper.make_node("MatMulInteger", ["x", "y"], [name], name))

    error = refused(tmp_path, change=change)
    assert "refuses operators" in error.message
    assert "a (MatMulInteger), b (MatMulInteger)" in error.with_notes()


@pytest.mark.parametrize(
    ("converter", "opset", "cause"),
    [("omg", 23, "outside what the converter reads"), ("omg", 6, "7 to 18"), ("atc", 23, "E19010")],
)
def test_an_opset_that_the_converter_does_not_read(tmp_path, converter, opset, cause):
    def change(model):
        model.opset_import[0].version = opset

    assert cause in refused(tmp_path, converter, change=change).with_notes()


def test_int64_indices(tmp_path):
    def change(model):
        positions = next(one for one in model.graph.input if one.name == "position_ids")
        positions.type.tensor_type.elem_type = onnx.TensorProto.INT64

    assert "int64" in refused(tmp_path, change=change).message


def test_a_report_of_the_converter_is_shown(tmp_path):
    tools = kit(tmp_path, faults=["fails"])
    omg = tools / "tools_omg" / "omg"
    omg.write_text('#!/bin/sh\necho \'{"node": "bad one"}\' > check_result.json\nexit 1\n', encoding="utf-8")
    job = Job(tmp_path)
    with pytest.raises(BuildError) as caught:
        job.run(recipe("omg", tools))
    assert "bad one" in caught.value.with_notes()


def test_a_report_of_an_earlier_run_is_not(tmp_path, monkeypatch):
    (tmp_path / "check_result.json").write_text(json.dumps({"node": "an old one"}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "an old one" not in refused(tmp_path, "omg", ["fails"]).with_notes()


def test_paths_that_omg_refuses_are_hidden_behind_a_link(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="safe_", dir="/tmp") as safe:
        monkeypatch.setattr(tempfile, "tempdir", safe)
        folder = tmp_path / "modèle v1.0 (final)"
        folder.mkdir()
        _, model = converted(folder)
        assert model.is_file()
        assert list(Path(safe).iterdir()) == [], "the link goes with the run"


def test_a_hanging_tool_is_ended(tmp_path):
    began = time.monotonic()
    error = refused(tmp_path, faults=["hangs"], error=EnvironmentFailure, time_limit_s=0.5)
    assert error.code == "TOOL_TIMEOUT"
    assert time.monotonic() - began < 20
    assert Path(error.file).is_file()


def test_an_interrupt_ends_the_tool_and_what_it_started(tmp_path):
    tools = kit(tmp_path)
    omg = tools / "tools_omg" / "omg"
    omg.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/child\nwait\n", encoding="utf-8")
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parents[1])]!r}\n"
        "from pathlib import Path\nfrom vendor_tools import Job, recipe\n"
        f"Job(Path({str(tmp_path)!r})).run(recipe('omg', Path({str(tools)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    child = tmp_path / "child"
    deadline = time.monotonic() + 30
    while not (child.is_file() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(2)
    _, said = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said
    assert _gone(int(child.read_text()))


def test_a_wrapper_without_its_execute_bit_is_named_before_anything_is_built(tmp_path):
    tools = kit(tmp_path)
    omg = tools / "tools_omg" / "omg"
    omg.chmod(omg.stat().st_mode & ~(stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
    if os.access(omg, os.X_OK):
        pytest.skip("this user may run anything")
    with pytest.raises(EnvironmentFailure, match="chmod"):
        build(recipe("omg", tools), cache=tmp_path / "cache", progress=Said())
    assert not (tmp_path / "cache" / "builds").exists()


def test_the_engine_form_with_the_checkpoint_s_weights_goes_in(tmp_path):
    tools = kit(tmp_path)
    (tmp_path / "seen").mkdir()
    omg = tools / "tools_omg" / "omg"
    omg.write_text(f"#!/bin/sh\ncp model.onnx* {tmp_path}/seen\nexit 1\n", encoding="utf-8")
    with pytest.raises(BuildError):
        build(recipe("omg", tools), cache=tmp_path / "cache", progress=Said())
    model = onnx.load(tmp_path / "seen" / "model.onnx")
    assert model.opset_import[0].version == 12
    given = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    name = "model.layers.0.mlp.up_proj"
    with open_checkpoint(tiny_llama()) as checkpoint:
        np.testing.assert_array_equal(given[f"{name}.transposed"].T, checkpoint.read(f"{name}.weight"))


def _gone(pid):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").is_file() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False
