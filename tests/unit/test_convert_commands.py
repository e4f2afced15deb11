"""The vendor's command lines, word by word, and the environment that their tools are started in."""

import os
from pathlib import Path

import pytest
from vendor_tools import tiny_config

from pytest_cannlm.build.convert.commands import (
    atc_command,
    atc_environment,
    input_shape,
    omg_command,
    omg_environment,
    taken_by_omg,
)
from pytest_cannlm.build.engine_form import interface

LAYERS = 28
CACHE = "2048,2,1,128"


def qwen2_5_1_5b():
    """Inputs and outputs of the engine form, from the shapes of Qwen2.5-1.5B."""
    names = [f"past_{kind}" for _ in range(LAYERS) for kind in ("key", "value")]
    caches = [(name, index // 2) for index, name in enumerate(names)]
    inputs = [
        ("input_embed", "int8", [1, -1, 1536]),
        ("attention_mask", "float32", [1, 1, -1, 2048]),
        ("position_ids", "int32", [1, -1]),
        *((f"{name}_in{layer}", "float32", [2048, 2, 1, 128]) for name, layer in caches),
        ("new_kv_cache_pos", "int32", [-1]),
        ("embed_scales", "float32", [1, -1, 1]),
    ]
    outputs = [
        ("lm_logits", "float32", [1, -1, 151936]),
        *((f"{name}{layer}", "float32", [2048, 2, 1, 128]) for name, layer in caches),
    ]
    return inputs, outputs


def omg(**given):
    inputs, outputs = qwen2_5_1_5b()
    arguments = {"model": Path("model.onnx"), "output": Path("OUT"), "prefill": 64, "platform": "kirinx90", **given}
    return omg_command(Path("omg"), inputs=inputs, outputs=outputs, **arguments)


def per_layer(text):
    return ";".join(text.format(i=i) for i in range(LAYERS))


def test_omg_gets_the_documented_command_line():
    shapes = per_layer(f"past_key_in{{i}}:{CACHE};past_value_in{{i}}:{CACHE}")
    assert omg(quant_params=Path("quant_params_file")) == [
        "omg", "--model", "model.onnx", "--framework", "5", "--output", "OUT",
        "--input_shape=input_embed:1,-1,1536;attention_mask:1,1,-1,2048;position_ids:1,-1;"
        f"{shapes};new_kv_cache_pos:-1;embed_scales:1,-1,1",
        "--dynamic_dims=1,1,1,1,1;64,64,64,64,64",
        "--input_type=" + per_layer("past_key_in{i}:FP16;past_value_in{i}:FP16"),
        "--output_type=lm_logits:FP32;" + per_layer("past_key{i}:FP16;past_value{i}:FP16"),
        "--compress_conf", "quant_params_file",
        "--save_weights_as_external_data=true", "--platform=kirinx90", "--target=omc",
    ]  # fmt: skip


def test_without_parameters_weights_become_fp16():
    command = omg()
    assert command[command.index("--weight_data_type") + 1] == "FP16"
    assert "--compress_conf" not in command


def test_the_engine_form_has_the_documented_interface():
    inputs, _ = interface(tiny_config(), 2048)
    assert [name for name, _, _ in inputs[:3]] == ["input_embed", "attention_mask", "position_ids"]
    assert [name for name, _, _ in inputs[-2:]] == ["new_kv_cache_pos", "embed_scales"]
    assert sum(dims.count(-1) for _, _, dims in inputs) == 5


def test_atc_gets_fixed_shapes_only():
    inputs, _ = qwen2_5_1_5b()
    command = atc_command(
        Path("atc"), model=Path("m.onnx"), output=Path("out/m"), inputs=inputs, step=1, soc="KirinX90"
    )
    assert command[:5] == ["atc", "--model=m.onnx", "--framework=5", "--output=out/m", "--soc_version=KirinX90"]
    assert command[5].startswith("--input_shape=input_embed:1,1,1536;attention_mask:1,1,1,2048;position_ids:1,1;")
    assert command[6:] == ["--external_weight=1"]
    assert not any("-1" in word for word in command)


def test_input_shape_names_every_input():
    assert input_shape([("a", "int8", [1, -1]), ("b", "int8", [2])]) == "a:1,-1;b:2"


def test_omg_finds_its_libraries_first():
    tools = Path("/ddk/tools")
    made = omg_environment(
        {"LD_LIBRARY_PATH": "/mine", "HOME": "/h"}, tools, platform="kirinx90", scratch=Path("/scratch")
    )
    assert made["LD_LIBRARY_PATH"].split(os.pathsep) == [
        str(tools / "tools_omg" / "master" / "lib64"), str(tools / "platform" / "kirinx90" / "lib64"), "/mine",
    ]  # fmt: skip
    assert made["PYTHONPATH"] == str(tools / "platform" / "kirinx90" / "ops" / "impl")
    assert (made["SOC_VERSION"], made["TMPDIR"], made["HOME"]) == ("kirinx90", str(Path("/scratch")), "/h")


def test_atc_gets_what_its_script_would_set():
    made = atc_environment({"PATH": "/bin"}, Path("/cann"), scratch=Path("/scratch"))
    assert made["ASCEND_OPP_PATH"] == str(Path("/cann/opp"))
    assert made["PATH"].split(os.pathsep)[0] == str(Path("/cann/bin"))
    assert made["PATH"].endswith("/bin")
    assert str(Path("/cann/lib64")) in made["LD_LIBRARY_PATH"].split(os.pathsep)


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("/tmp/cannlm_1/model.onnx", True),
        ("model.onnx", True),
        ("/tmp/pytest-of-me/model.onnx", False),
        ("/tmp/v1.0/model.onnx", False),
        ("/tmp/a b/model.onnx", False),
        ("/tmp/modèle/model.onnx", False),
        ("/tmp/a/model-1.onnx", False),
    ],
)
def test_paths_that_omg_takes(path, taken):
    assert taken_by_omg(Path(path)) == taken
