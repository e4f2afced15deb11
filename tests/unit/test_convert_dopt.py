"""The three stages of dopt, driven on its double."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tiny import tiny_copy, tiny_llama
from vendor_tools import CONTEXT, Said, kit, recipe, tiny_config

from pytest_cannlm.build import build, dopt, locate_package
from pytest_cannlm.build.believing import read_log
from pytest_cannlm.build.convert.quant_params import read_quant_params, setting_of
from pytest_cannlm.build.convert.toolchain import choose_toolkit
from pytest_cannlm.build.convert.torchfile import TorchFile
from pytest_cannlm.build.dopt import STAGES, DoptJob, quantize, settings_text, stage_command, with_strategies
from pytest_cannlm.build.dopt_inputs import check_group_size
from pytest_cannlm.build.engine_form import write_engine_form
from pytest_cannlm.errors import BadInputError, BuildError, EnvironmentFailure, UsageError
from pytest_cannlm.locking import locked
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.testing import fake_ddk

posix = pytest.mark.skipif(os.name != "posix", reason="the vendor's tools are for Linux, their doubles for POSIX")


def run(tmp_path, tools, progress=None, model=None, **fields):
    job = DoptJob(model or tiny_llama(), tmp_path / "q", **fields)
    return quantize(
        job,
        choose_toolkit("omg", folder=tools, environment={}),
        tiny_config(),
        python=sys.executable,
        environment=os.environ,
        progress=progress or Said(),
        time_limit_s=60.0,
    )


def spoiled(tools, text):
    """Put lines in front of dopt's program."""
    program = next(tools.rglob("opt_main.py"))
    program.write_text(f"{text}\n{program.read_text('utf-8')}", encoding="utf-8")
    return program


def done_already(said):
    """The stages that were not run."""
    return [line.split(": ")[1] for line in said.lines if line.endswith("was done already")]


def test_the_documented_command_line(tmp_path):
    job = DoptJob(tmp_path / "M", tmp_path / "OUT")
    assert stage_command("python", tmp_path / "opt_main.py", job, "stage2") == [
        "python", "-u", str(tmp_path / "opt_main.py"), "--model-path", str(tmp_path / "M"),
        "--optimize-config", str(tmp_path / "OUT/train_output/config.yaml"),
        "--dopt-config", str(tmp_path / "OUT/dopt_config.json"), "--quant-stage", "stage2",
        "--group-size", "128", "--w-bits", "4", "--act-bits", "16", "--block-size", "128",
        "--output-dir", str(tmp_path / "OUT/train_output"),
    ]  # fmt: skip


@pytest.mark.parametrize(("chip", "value"), [("KirinX90", "False"), ("Kirin9020", "True")])
def test_the_settings_are_the_chip_s(tmp_path, chip, value):
    file = tmp_path / "config.yaml"
    file.write_text(settings_text(DoptJob(tmp_path, tmp_path, chip=chip)), encoding="utf-8")
    expected = {"quant_param_2": value, "embedding_separate": "True", "enable": "False", "cutoff_len": "128"}
    assert {name: setting_of(file, name) for name in expected} == expected


def test_a_chip_whose_settings_nobody_knows(tmp_path):
    with pytest.raises(UsageError, match="quant_param_2"):
        settings_text(DoptJob(tmp_path, tmp_path, chip="Kirin9030"))


def test_strategies_go_to_the_decoder_and_the_embedding(tmp_path):
    linear = {"type": "<class 'torch.nn.modules.linear.Linear'>", "quant_strategy": "float"}
    layers = {
        "model.embed_tokens": {"type": "<class 'torch.nn.modules.sparse.Embedding'>", "quant_strategy": "float"},
        "model.layers.0.mlp.up_proj": linear,
        "model.norm": {"type": "<class 'Norm'>", "quant_strategy": "float"},
        "lm_head": linear,
        "odd": None,
    }
    made = with_strategies(layers, DoptJob(tmp_path, tmp_path, group_size=64))
    assert made["model.layers.0.mlp.up_proj"] == {
        **linear,
        "quant_strategy": "Quant_act_weight_eco",
        "weight": {"bit": 4, "group_size": 64},
        "input": {"bit": 16},
    }
    assert made["model.embed_tokens"]["quant_strategy"] == "Quant_Embed_MinMax"
    assert {made[name]["quant_strategy"] for name in ("model.norm", "lm_head")} == {"float"}
    assert made["odd"] is None
    assert with_strategies(made, DoptJob(tmp_path, tmp_path, group_size=64)) == made


@pytest.mark.parametrize("text", ["weight quant done!!!", "2026 quant done !!!"])
def test_texts_of_success_may_have_a_space(tmp_path, text):
    log = tmp_path / "log"
    log.write_text(text, encoding="utf-8")
    assert read_log(log, success=[STAGES["weight" not in text].success]).missing == ()


@posix
def test_three_stages_and_their_results(tmp_path):
    params = run(tmp_path, kit(tmp_path))
    assert params.group_size == 128
    assert params.doubts == ()
    strategies = json.loads((tmp_path / "q" / "dopt_config.json").read_text("utf-8"))["layer_strategy"]
    assert len(strategies) == 2 * 7 + 2
    assert {path.name for path in (tmp_path / "q").glob("*.log")} == {
        "stage1-list.log", "stage1.log", "stage2.log", "stage3.log",
    }  # fmt: skip


@posix
def test_what_is_done_is_not_done_again(tmp_path):
    tools, said = kit(tmp_path), Said()
    run(tmp_path, tools)
    (tmp_path / "q" / "train_output" / "fake_quant_weight.pth").unlink()
    run(tmp_path, tools, said)
    assert done_already(said) == ["stage1", "stage2"]


@posix
def test_a_stage_behind_one_that_ran_again_runs_again(tmp_path, monkeypatch):
    tools, said = kit(tmp_path), Said()
    spoiled(
        tools,
        "import atexit, os, pathlib, sys\n"
        "if os.environ.get('SPOILED') in sys.argv:\n"
        "    out = pathlib.Path(sys.argv[sys.argv.index('--output-dir') + 1])\n"
        "    atexit.register(lambda: (out / 'trained.pth').write_bytes(b'other'))",
    )
    run(tmp_path, tools)
    (tmp_path / "q" / "train_output" / "trained.pth").unlink()
    run(tmp_path, tools, said)
    assert done_already(said) == ["stage1", "stage3"], "stage 2 wrote the same again, and stage 3 is made from that"
    monkeypatch.setenv("SPOILED", "stage2")
    (tmp_path / "q" / "train_output" / "trained.pth").unlink()
    said = Said()
    run(tmp_path, tools, said)
    assert done_already(said) == ["stage1"]


@posix
def test_a_result_that_was_cut_since_is_made_again(tmp_path):
    tools, said = kit(tmp_path), Said()
    run(tmp_path, tools)
    file = tmp_path / "q" / "train_output" / "trained.pth"
    content = file.read_bytes()
    file.write_bytes(content[:10])
    run(tmp_path, tools, said)
    assert done_already(said) == ["stage1", "stage3"]
    assert file.read_bytes() == content


@posix
def test_other_strategies_quantize_again(tmp_path):
    tools, said = kit(tmp_path), Said()
    run(tmp_path, tools)
    file = tmp_path / "q" / "dopt_config.json"
    document = json.loads(file.read_text("utf-8"))
    document["layer_strategy"]["model.norm"] = {"type": "<class 'Norm'>", "quant_strategy": "float"}
    file.write_text(json.dumps(document), encoding="utf-8")
    run(tmp_path, tools, said)
    assert done_already(said) == []


@posix
@pytest.mark.parametrize(
    "ending",
    ["atexit.register(lambda: (sys.stdout.flush(), os._exit(7)))", "print('No module named dopt.dopt_llm')"],
    ids=["status", "known error"],
)
@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_a_stage_that_was_not_believed_is_not_believed_later(tmp_path, monkeypatch, stage, ending):
    tools, said = kit(tmp_path), Said()
    run_alone = "os.path.exists(sys.argv[sys.argv.index('--dopt-config') + 1])"
    condition = f"os.environ.get('SPOILED') in sys.argv and {run_alone}"
    spoiled(tools, f"import atexit, os, sys\nif {condition}: {ending}")
    monkeypatch.setenv("SPOILED", stage)
    for _ in range(2):
        with pytest.raises(BuildError, match=f"dopt {stage} failed"):
            run(tmp_path, tools, said)
    assert f"dopt: {stage}: was done already" not in said.lines
    monkeypatch.delenv("SPOILED")
    said.lines.clear()
    run(tmp_path, tools, said)
    assert done_already(said) == [one.name for one in STAGES if one.name < stage]


@posix
def test_a_list_of_layers_that_was_not_believed_is_made_again(tmp_path, monkeypatch):
    tools = kit(tmp_path)
    spoiled(tools, "import os\nif 'SPOILED' in os.environ: print('No module named dopt.dopt_llm')")
    monkeypatch.setenv("SPOILED", "yes")
    with pytest.raises(BuildError):
        run(tmp_path, tools)
    listed = tmp_path / "q" / "dopt_config.json"
    listed.write_text('{"layer_strategy": {}}', encoding="utf-8")
    monkeypatch.delenv("SPOILED")
    run(tmp_path, tools)
    assert len(json.loads(listed.read_text("utf-8"))["layer_strategy"]) == 2 * 7 + 2


@posix
@pytest.mark.parametrize("changed", ["model", "calibration", "toolkit"])
def test_results_of_other_inputs_under_the_same_names_are_not_used(tmp_path, changed):
    tools, texts = kit(tmp_path), tmp_path / "texts.json"
    texts.write_text('[{"text": "a"}]', encoding="utf-8")
    model = tiny_copy(tmp_path / "model")
    run(tmp_path, tools, model=model, calibration=texts)
    if changed == "model":
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    elif changed == "calibration":
        texts.write_text('[{"text": "b"}]', encoding="utf-8")
    else:
        tools = fake_ddk(tmp_path / "other", version="6.2.0.0")
    with pytest.raises(UsageError, match="another run") as caught:
        run(tmp_path, tools, model=model, calibration=texts)
    assert caught.value.field == changed


@posix
def test_one_run_at_a_time_in_a_folder(tmp_path):
    tools, said, out = kit(tmp_path), Said(), tmp_path / "q"
    out.mkdir()
    with ThreadPoolExecutor(1) as other:
        with locked(out / ".lock", "", said):
            waits = other.submit(run, tmp_path, tools, said)
            deadline = time.monotonic() + 20
            while not said.lines and time.monotonic() < deadline:
                time.sleep(0.01)
            assert said.lines == [f"dopt: waiting for another process that works in {out}"]
            assert not (out / "dopt_config.json").exists()
        assert waits.result(60).file.is_file()


@pytest.mark.parametrize("size", [7, -5, 0, 256])
def test_group_sizes_that_no_tool_knows(tmp_path, size):
    with pytest.raises(UsageError, match="not supported") as caught:
        run(tmp_path, kit(tmp_path), group_size=size)
    assert caught.value.field == "group_size"
    assert not (tmp_path / "q").exists()


def test_a_group_size_that_does_not_divide_the_model():
    config = replace(tiny_config(), intermediate_size=96)
    with pytest.raises(UsageError, match="does not divide") as caught:
        check_group_size(64, config)
    assert "96 columns" in caught.value.found
    check_group_size(32, config)


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "[]", "[1]", '[{"text": 1}]', '[{"text": "a"}, {"messages": []}]', "[" * 100_000, "\udcff"],
    ids=["empty", "half", "object", "no entry", "number", "no text", "other", "deep", "bytes"],
)
def test_calibration_texts_that_dopt_cannot_read(tmp_path, text):
    file = tmp_path / "texts.json"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(BadInputError, match="calibration") as caught:
        run(tmp_path, kit(tmp_path), calibration=file)
    assert caught.value.file == str(file)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_calibration_text_that_is_not_there(tmp_path, name):
    with pytest.raises(UsageError, match="cannot read"):
        run(tmp_path, kit(tmp_path), calibration=tmp_path / name)


@posix
@pytest.mark.parametrize("version", ["5.1.1.1", "6.0.1.0", "6.1.1.0"])
def test_the_module_is_the_installed_version_s(tmp_path, version):
    tools = fake_ddk(tmp_path, version=version)
    assert run(tmp_path, tools).file.is_file()


@posix
def test_another_run_in_the_folder_stays(tmp_path):
    tools = kit(tmp_path)
    run(tmp_path, tools)
    with pytest.raises(UsageError, match="another run") as caught:
        run(tmp_path, tools, group_size=64)
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("group_size", "128", "64")


@posix
def test_a_folder_that_the_vendor_s_script_used_stays(tmp_path):
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "dopt_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="another run"):
        run(tmp_path, kit(tmp_path))


@posix
def test_a_stage_that_fails_keeps_its_log_and_the_stages_before_it(tmp_path, monkeypatch):
    tools, said = kit(tmp_path), Said()
    spoiled(tools, "import os, sys\nif os.environ.get('SPOILED') in sys.argv: sys.exit('no kernel image for this GPU')")
    monkeypatch.setenv("SPOILED", "stage2")
    with pytest.raises(BuildError, match="dopt stage2 failed") as caught:
        run(tmp_path, tools)
    assert caught.value.code == "QUANTIZATION_FAILED"
    assert "no kernel image" in caught.value.with_notes()
    monkeypatch.delenv("SPOILED")
    run(tmp_path, tools, said)
    assert done_already(said) == ["stage1"]


@posix
def test_a_stage_that_writes_nothing(tmp_path):
    tools = kit(tmp_path)
    spoiled(tools, "import sys\nif 'stage2' in sys.argv: sys.exit(print('quant done!!!'))")
    with pytest.raises(BuildError, match=r"wrote no trained\.pth"):
        run(tmp_path, tools)


@posix
def test_a_known_error_is_explained(tmp_path):
    tools = kit(tmp_path)
    spoiled(tools, "import sys\nsys.exit('No module named dopt.dopt_llm')")
    with pytest.raises(BuildError, match="older DDK") as caught:
        run(tmp_path, tools)
    assert "scripts that came with the installed DDK" in caught.value.remedy


def test_a_ddk_without_dopt(tmp_path):
    tools = kit(tmp_path)
    next(tools.rglob("opt_main.py")).unlink()
    with pytest.raises(EnvironmentFailure, match="no dopt"):
        run(tmp_path, tools)
    assert not (tmp_path / "q").exists()


@posix
def test_omg_takes_what_dopt_left(tmp_path):
    tools = kit(tmp_path)
    run(tmp_path, tools)
    wanted = recipe("omg", tools, scheme="w4a16", quant_params=tmp_path / "q")
    said = Said()
    built = build(wanted, cache=tmp_path / "cache", progress=said)
    section = locate_package(built.package).data["build"]
    assert section["scheme"] == "w4a16"
    assert section["tool"]["quant_params"]["group_size"] == 128
    assert "MatMuls16s4Gen" in (built.package.parent / "convert.log").read_text("utf-8")
    assert not any("4-bit weights" in line for line in said.lines)
    with pytest.raises(UsageError, match="4-bit"):
        build(recipe("omg", tools, quant_params=tmp_path / "q"), cache=tmp_path / "cache", progress=Said())


@posix
def test_a_log_that_says_nothing_of_4_bit_weights_is_told(tmp_path):
    tools, said = kit(tmp_path), Said()
    run(tmp_path, tools)
    omg = tools / "tools_omg" / "omg"
    lines = omg.read_text("utf-8").replace("exec ", "").rstrip() + " | sed s/s16s4/other/g\n"
    omg.write_text(lines, encoding="utf-8")
    wanted = recipe("omg", tools, scheme="w4a16", quant_params=tmp_path / "q")
    build(wanted, cache=tmp_path / "cache", progress=said)
    assert any("does not say that it took 4-bit weights" in line for line in said.lines)


@posix
def test_the_weights_that_dopt_adjusted_go_in(tmp_path):
    tools = kit(tmp_path)
    params = run(tmp_path, tools)
    (tmp_path / "seen").mkdir()
    omg = tools / "tools_omg" / "omg"
    omg.write_text(f"#!/bin/sh\ncp model.onnx* quant_params_file {tmp_path}/seen\nexit 1\n", encoding="utf-8")
    wanted = recipe("omg", tools, scheme="w4a16", quant_params=tmp_path / "q")
    with pytest.raises(BuildError):
        build(wanted, cache=tmp_path / "cache", progress=Said())
    model = onnx.load(tmp_path / "seen" / "model.onnx")
    given = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    adjusted = TorchFile(params.weights)
    for name in ("model.layers.1.mlp.up_proj", "lm_head"):
        np.testing.assert_array_equal(given[f"{name}.transposed"].T, adjusted.read(f"{name}.weight"))
    assert (tmp_path / "seen" / "quant_params_file").read_bytes() == params.file.read_bytes()


@posix
def test_a_setting_that_loses_the_signs_is_noticed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dopt, "QUANT_PARAM_2", {"KirinX90": True})
    with pytest.raises(BuildError, match="every negative weight becomes 0"):
        run(tmp_path, kit(tmp_path))
    (tmp_path / "q" / "train_output" / "config.yaml").write_text("quant_param_2: False", encoding="utf-8")
    with pytest.raises(BuildError, match="lost their negative half"):
        read_quant_params(tmp_path / "q", chip="KirinX90", config=tiny_config()).check_weights(Said())


@posix
def test_other_parameters_convert_again(tmp_path):
    tools = kit(tmp_path)
    run(tmp_path, tools)
    wanted = recipe("omg", tools, scheme="w4a16", quant_params=tmp_path / "q")
    build(wanted, cache=tmp_path / "cache", progress=Said())
    file = tmp_path / "q" / "train_output" / "quant_params_file"
    file.write_bytes(file.read_bytes() + b"!")
    again = build(wanted, cache=tmp_path / "cache", progress=Said())
    assert [(step.step, step.cached) for step in again.steps][1:3] == [("export", True), ("convert", False)]


@posix
def test_the_vendor_s_export_is_converted_where_it_lies_beside_the_parameters(tmp_path):
    tools = kit(tmp_path)
    run(tmp_path, tools)
    with open_checkpoint(tiny_llama()) as checkpoint:
        write_engine_form(checkpoint.config, CONTEXT, checkpoint.read, tmp_path / "q" / "exported.onnx")
    (tmp_path / "seen").mkdir()
    omg = tools / "tools_omg" / "omg"
    real = omg.read_text("utf-8")
    omg.write_text(real.replace("exec ", f"cp * {tmp_path}/seen 2>/dev/null\nexec "), encoding="utf-8")
    build(recipe("omg", tools, scheme="w4a16", quant_params=tmp_path / "q"), cache=tmp_path / "cache", progress=Said())
    assert (tmp_path / "seen" / "model.onnx").read_bytes() == (tmp_path / "q" / "exported.onnx").read_bytes()
    assert (tmp_path / "seen" / "exported.onnx.data").is_file()
