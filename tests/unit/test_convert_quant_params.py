"""What a dopt run left is looked at before omg takes it."""

import json
from array import array
from dataclasses import replace

import onnx
import pytest
from vendor_tools import Said, tiny_config

from pytest_cannlm.build.convert.quant_params import read_quant_params, setting_of
from pytest_cannlm.build.engine_form import interface
from pytest_cannlm.errors import BadInputError, BuildError
from pytest_cannlm.testing.pthfile import write_pth

USUAL = 124418
"""Bytes of quant_params_file that are usual for the tiny model at group size 128."""


def run_of(folder, *, size=USUAL, config="quant_param_2: False\n", layers=None, key="layer_strategy"):
    """A dopt run in the vendor's layout."""
    results = folder / "train_output"
    results.mkdir(parents=True)
    (results / "quant_params_file").write_bytes(bytes(size))
    write_pth(results / "fake_quant_weight.pth", {"a.weight": ((100, 100), array("f", [-1.0, 1.0] * 5000))})
    if config is not None:
        (results / "config.yaml").write_text(config, encoding="utf-8")
    if layers is None:
        layers = {"a": {"quant_strategy": "Quant_act_weight_eco", "weight": {"bit": 4, "group_size": 128}}}
    (folder / "dopt_config.json").write_text(json.dumps({key: layers}), encoding="utf-8")
    return folder


def read(folder, chip="KirinX90", context=64):
    return read_quant_params(folder, chip=chip, config=tiny_config(), context=context)


def test_a_good_run(tmp_path):
    params = read(run_of(tmp_path / "q"))
    assert params.doubts == ()
    assert (params.group_size, params.model) == (128, None)
    assert set(params.facts["files"]) == {"quant_params_file", "fake_quant_weight.pth"}
    assert params.facts["bytes"] == USUAL


def test_its_inner_folder_does_too(tmp_path):
    run_of(tmp_path / "q")
    assert read(tmp_path / "q" / "train_output").group_size == 128


def test_both_spellings_of_the_layers(tmp_path):
    assert read(run_of(tmp_path / "q", key="layer_stategy")).group_size == 128


@pytest.mark.parametrize(
    ("chip", "config"), [("KirinX90", "quant_param_2: True\n"), ("Kirin9020", "x: 1\nquant_param_2 : false # no\n")]
)
def test_the_setting_of_another_chip_is_refused(tmp_path, chip, config):
    with pytest.raises(BuildError, match="every negative weight becomes 0") as caught:
        read(run_of(tmp_path / "q", config=config), chip)
    assert caught.value.code == "QUANT_PARAM_2"


@pytest.mark.parametrize(
    ("facts", "chip", "doubt"),
    [
        ({"config": None}, "KirinX90", "no config.yaml"),
        ({"config": "x: 1\n"}, "KirinX90", "not set"),
        ({}, "Kirin9030", "no value is known for Kirin9030"),
        ({"size": round(1.24 * USUAL)}, "KirinX90", "are usual"),
    ],
)
def test_what_could_not_be_checked_is_said(tmp_path, facts, chip, doubt):
    assert any(doubt in one for one in read(run_of(tmp_path / "q", **facts), chip).doubts)


def test_without_its_layers_group_sizes_are_unknown(tmp_path):
    (run_of(tmp_path / "q") / "dopt_config.json").unlink()
    params = read(tmp_path / "q")
    assert params.group_size is None
    assert "group sizes are not known" in params.doubts[0]


def test_a_run_that_quantized_nothing(tmp_path):
    with pytest.raises(BuildError, match="every layer is float"):
        read(run_of(tmp_path / "q", layers={"a": {"quant_strategy": "float"}}))


@pytest.mark.parametrize("text", ["{", "[]", '{"layers": {}}'])
def test_layers_that_cannot_be_read(tmp_path, text):
    (run_of(tmp_path / "q") / "dopt_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match="does not list the layers"):
        read(tmp_path / "q")


@pytest.mark.parametrize("size", [None, 0])
def test_no_parameters(tmp_path, size):
    folder = run_of(tmp_path / "q", size=size or 0)
    if size is None:
        (folder / "train_output" / "quant_params_file").unlink()
    with pytest.raises(BadInputError, match="no quantization parameters"):
        read(folder)


def test_settings_are_found_wherever_they_are_nested(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("dataset:\n  quant_param_2: 'True'\n  quant_param_20: 3\n", encoding="utf-8")
    assert setting_of(file, "quant_param_2") == "True"
    assert setting_of(file, "quant_param") is None


def model_in(folder, location="m.pb", *, context=64, layers=None, without=None):
    """A model as the vendor's script would export it, as far as anybody looks."""
    config = tiny_config() if layers is None else replace(tiny_config(), layers=layers)
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    inputs, outputs = (
        [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [str(d) if d == -1 else d for d in dims])
            for name, _, dims in side
            if name != without
        ]
        for side in interface(config, context)
    )
    graph = onnx.helper.make_graph([], "g", inputs, outputs, initializer=[tensor])
    onnx.save(onnx.helper.make_model(graph), folder / "m.onnx")


def test_a_model_that_was_exported_with_the_parameters_is_taken(tmp_path):
    folder = run_of(tmp_path / "q")
    (folder / "m.pb").write_bytes(b"1234")
    model_in(folder)
    params = read(folder)
    assert params.model == folder / "m.onnx"
    assert set(params.facts["files"]) == {"quant_params_file", "m.onnx", "m.pb"}


@pytest.mark.parametrize("location", ["../m.pb", "missing.pb"])
def test_weights_that_do_not_lie_beside_the_model(tmp_path, location):
    (tmp_path / "m.pb").write_bytes(b"1234")
    model_in(run_of(tmp_path / "q"), location)
    with pytest.raises(BadInputError, match="beside it"):
        read(tmp_path / "q")


def test_two_models_are_one_too_many(tmp_path):
    folder = run_of(tmp_path / "q")
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_bytes(b"")
    with pytest.raises(BadInputError, match="several ONNX models"):
        read(folder)


def test_parameters_without_the_weights_that_they_are_for(tmp_path):
    (run_of(tmp_path / "q") / "train_output" / "fake_quant_weight.pth").unlink()
    with pytest.raises(BadInputError, match="without the weights") as caught:
        read(tmp_path / "q")
    assert "vendor's script" in caught.value.remedy


def test_what_is_no_onnx_model(tmp_path):
    (run_of(tmp_path / "q") / "m.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(BadInputError, match="not an ONNX model"):
        read(tmp_path / "q")


def test_intact_weights_and_doubts_are_told(tmp_path):
    said = Said()
    read(run_of(tmp_path / "q", config=None)).check_weights(said)
    assert ["no config.yaml" in line for line in said.lines] == [True]


def test_weights_that_lost_their_signs_are_refused(tmp_path):
    folder = run_of(tmp_path / "q")
    values = array("f", [0.0, 1.0] * 5000)
    write_pth(folder / "train_output" / "fake_quant_weight.pth", {"a.weight": ((100, 100), values)})
    with pytest.raises(BuildError, match="1 of 1 large tensors have none"):
        read(folder).check_weights(Said())


def test_with_an_exported_model_a_missing_weight_file_is_said(tmp_path):
    folder = run_of(tmp_path / "q")
    (folder / "m.pb").write_bytes(b"1234")
    model_in(folder)
    (folder / "train_output" / "fake_quant_weight.pth").unlink()
    said = Said()
    params = read(folder)
    params.check_weights(said)
    assert "were not looked at" in said.lines[0]
    assert params.tensors(tiny_config()) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"layers": 3}, "inputs"), ({"without": "embed_scales"}, "inputs"), ({"without": "lm_logits"}, "outputs")],
)
def test_an_exported_model_of_something_else(tmp_path, fields, field):
    folder = run_of(tmp_path / "q")
    (folder / "m.pb").write_bytes(b"1234")
    model_in(folder, **fields)
    with pytest.raises(BadInputError, match="not this one's") as caught:
        read(folder)
    assert caught.value.field == field


def test_an_exported_model_with_another_kv_cache(tmp_path):
    folder = run_of(tmp_path / "q")
    (folder / "m.pb").write_bytes(b"1234")
    model_in(folder, context=128)
    with pytest.raises(BadInputError, match="another length") as caught:
        read(folder)
    assert (caught.value.found, caught.value.expected) == (128, 64)
    assert read(folder, context=128).model
    assert read(folder, context=None).model
