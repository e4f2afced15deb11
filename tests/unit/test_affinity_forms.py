"""Our own exports under the rules, the build that asks for them, and graphs of real size and from elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest
from onnx_models import INT64, model_of, node, save, value
from samples import samples_dir
from tiny import tiny_llama

from pytest_cannlm.affinity import examine, examine_model
from pytest_cannlm.build import Recipe, build, pipeline
from pytest_cannlm.build.engine_form import engine_form, write_engine_form
from pytest_cannlm.errors import BuildError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.progress import SilentProgress

GEARS = {"S": (1, 64)}
CONTEXT = 256


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "model.onnx"
    with open_checkpoint(tiny_llama()) as checkpoint:
        write_engine_form(checkpoint.config, CONTEXT, checkpoint.read, path)
    return path


def test_the_engine_form_is_fine_and_the_patterns_are_seen(engine):
    report = examine(engine, chip="KirinX90", toolchain="omg", gears=GEARS)
    assert report.answer == "fine"
    assert {each.title for each in report.of("slow")} <= {"Div"}
    counts = {finding.rule: finding.count for finding in report.findings}
    assert counts["rope"] == 4  # q and k of two layers
    assert counts["attention"] == 2
    assert {finding.outcome for finding in report.findings} == {"note"}


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3", "tiny-glm"])
def test_the_engine_form_of_every_family_is_fine(tiny_checkpoint, name):
    with open_checkpoint(tiny_checkpoint(name)) as checkpoint:
        model = engine_form(checkpoint.config, CONTEXT, location="model.onnx.data")
    report = examine_model(model, chip="KirinX90", toolchain="omg", gears=GEARS)
    assert report.answer == "fine"
    assert {finding.rule: finding.count for finding in report.findings}["rope"] == 2 * checkpoint.config.layers


def test_its_gears_are_asked_for(engine):
    report = examine(engine, chip="KirinX90", toolchain="omg")
    assert report.answer == "unknown"
    (finding,) = report.of("unknown")
    assert finding.found == "dimension S"


def test_the_runtime_form_is_refused(tiny_packages):
    graphs = sorted((tiny_packages.cache / "builds").rglob("runtime.onnx")) if tiny_packages.built() else []
    report = examine(graphs[0], chip="KirinX90", toolchain="omg")
    assert report.answer == "refused"
    assert "com.microsoft::MatMulNBits" in {verdict.title for verdict in report.of("refused")}


def test_a_build_stops_before_the_converter_on_what_it_would_refuse(tmp_path, monkeypatch):
    bad = model_of(node("Unsqueeze", "x"), inputs=[value("x", INT64, ("S",))])
    monkeypatch.setattr(pipeline, "engine_form", lambda *_, **__: bad)
    recipe = Recipe("tiny", tiny_llama(), context=CONTEXT)
    with pytest.raises(BuildError, match="the converter would refuse the exported graph") as caught:
        build(recipe, cache=tmp_path, progress=SilentProgress())
    assert caught.value.remedy


def test_a_graph_of_thousands_of_nodes_without_its_weights():
    with open_checkpoint(tiny_llama()) as checkpoint:
        config = replace(checkpoint.config, layers=60)
    model = engine_form(config, CONTEXT, location="model.onnx.data")
    report = examine_model(model, chip="KirinX90", toolchain="omg", gears=GEARS)
    assert report.nodes > 3000
    assert report.answer == "fine"


SAMPLES = {
    "onnx_official/test_rms_normalization_2d_axis1/model.onnx": (
        "refused",
        {"opset", "ir-version", "RMSNormalization"},
    ),
    "onnx_official/test_attention_4d/model.onnx": ("refused", {"opset", "ir-version", "Attention"}),
    "onnx_official/test_softmax_axis_2/model.onnx": ("fine", set()),
    "onnx_official/test_if/model.onnx": ("unknown", set()),
    "onnx_official/_simple/test_gradient_of_add/model.onnx": ("refused", {"ai.onnx.preview.training::Gradient"}),
    "onnx_genai/tiny-qwen35-cuda/decoder.onnx": (
        "refused",
        {
            "opset",
            "ir-version",
            "int64-input",
            "com.microsoft::GroupQueryAttention",
            "com.microsoft::SkipLayerNormalization",
        },
    ),
    "onnx_genai/tiny-random-gpt2-fp32/past.onnx": (
        "refused",
        {
            f"com.microsoft::{name}"
            for name in ("Attention", "EmbedLayerNormalization", "FastGelu", "SkipLayerNormalization")
        },
    ),
    "onnx_ort/mul_1.onnx": ("fine", set()),
    "onnx_ort/logreg_iris.onnx": (
        "refused",
        {"no-tensor", "ai.onnx.ml::LinearClassifier", "ai.onnx.ml::Normalizer", "ai.onnx.ml::ZipMap"},
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_models_made_elsewhere(name):
    folder = samples_dir()
    if folder is None or not (folder / name).is_file():
        pytest.skip("no samples folder: set CANNLM_SAMPLES")
    answer, refused = SAMPLES[name]
    report = examine(folder / name, chip="KirinX90", toolchain="omg")
    assert report.answer == answer
    rules = {each.rule for each in report.findings if each.outcome == "refused"}
    operators = {each.operator for each in report.operators if each.outcome == "refused"}
    assert rules | operators == refused


def test_every_sample_is_judged_by_both_converters():
    folder = samples_dir()
    if folder is None:
        pytest.skip("no samples folder: set CANNLM_SAMPLES")
    for path in sorted(folder.glob("onnx_*/**/*.onnx")):
        for toolchain in ("omg", "atc"):
            assert examine(path, chip="KirinX90", toolchain=toolchain).nodes


def test_int64_ids_of_an_exported_decoder_are_refused_by_name(tmp_path):
    names = ("input_ids", "attention_mask")
    inputs = [value(name, INT64, ("batch", "seq")) for name in names]
    model = model_of(node("Gather", "x", "input_ids"), inputs=[value("x"), *inputs])
    report = examine(save(model, tmp_path / "decoder.onnx"), chip="KirinX90", toolchain="omg")
    (finding,) = (each for each in report.findings if each.rule == "int64-input")
    assert finding.where == names
