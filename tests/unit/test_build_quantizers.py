"""Quantizers in a build: closer to float on unseen text, the same bytes each time, checked like any other."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, locate_package
from pytest_cannlm.build.gptq import FeedbackRounding
from pytest_cannlm.build.quantizers import quantize_checkpoint
from pytest_cannlm.build.reference import float_reference, quantized_reference
from pytest_cannlm.build.schemes import quantize_w4, quantize_w8
from pytest_cannlm.build.unfinished import UnfinishedWork
from pytest_cannlm.build.weights import Coefficients, WeightReader
from pytest_cannlm.errors import BuildError, UsageError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.parity.metrics import kl_divergence
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.parity.text import standard_text
from pytest_cannlm.progress import SilentProgress

QUIET = SilentProgress()
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def divergence(tiny_packages):
    """Gives the mean KL from float of a package of the tiny model, on the text that parity is judged on."""
    exact = OnnxReference(float_reference(tiny_llama(), context=256, cache=tiny_packages.cache, progress=QUIET))
    ids = exact.tokenizer.encode(standard_text())[:192]
    expected = np.concatenate(list(exact.logits(ids)))

    def measure(scheme="w4a16", **recipe):
        folder = quantized_reference(tiny_packages(scheme, **recipe), cache=tiny_packages.cache, progress=QUIET)
        return float(kl_divergence(expected, np.concatenate(list(OnnxReference(folder).logits(ids)))).mean())

    return measure


def test_gptq_beats_rounding_to_nearest_on_text_it_has_not_seen(divergence):
    assert divergence(group_size=64, quantizer="gptq") < 0.75 * divergence(group_size=64)
    assert divergence("w8a16", quantizer="gptq") < 0.75 * divergence("w8a16")


def test_scaling_before_gptq_does_not_harm(divergence):
    assert divergence(group_size=64, quantizer="awq+gptq") < 0.75 * divergence(group_size=64)


def test_eight_bits_for_a_part_of_the_weights_help(divergence):
    assert divergence(group_size=64, keep_8bit=30) < 0.75 * divergence(group_size=64)


def test_what_keeps_eight_bits_is_recorded(tiny_packages):
    package = tiny_packages(keep_8bit=30)
    coefficients = Coefficients.load(package.coefficients)
    wide = [name for name in coefficients.sensitivity if coefficients.matrices[name].format == "w8"]
    sizes = {name: m.rows * m.columns for name, m in coefficients.matrices.items() if name != "lm_head"}
    assert 0 < sum(sizes[name] for name in wide) <= 0.3 * sum(sizes.values())
    assert set(coefficients.sensitivity) == set(sizes)
    assert all(loss > 0 for loss in coefficients.sensitivity.values())
    assert package.data["build"]["eight_bit"] == wide
    assert package.data["build"]["keep_8bit"] == 30


@pytest.mark.parametrize("quantizer", ["gptq", "awq", "awq+gptq"])
def test_a_package_of_each_quantizer_runs_and_says_how_it_was_made(tiny_packages, quantizer, tmp_path):
    from pytest_cannlm.simulator.engine import SimulatedEngine

    package = tiny_packages(quantizer=quantizer)
    made = package.data["build"]
    assert made["quantizer"] == quantizer
    assert len(made["calibration"]) == 64
    engine = SimulatedEngine()
    engine.load(str(package.package), {})
    assert np.isfinite(engine.session.feed([5, 6, 7])).all()
    engine.unload()


def test_round_to_nearest_knows_nothing_of_calibration(tiny_packages):
    assert {"calibration", "keep_8bit", "eight_bit"}.isdisjoint(tiny_packages().data["build"])
    assert "sensitivity" not in json.loads(tiny_packages().coefficients.read_text("utf-8"))


def test_codes_of_round_to_nearest_are_what_they_always_were():
    rows = (np.random.default_rng(7).integers(-4000, 4000, (16, 128)) / 4096).astype(np.float32)
    digests = [
        hashlib.sha256(b"".join(array.tobytes() for array in made)).hexdigest()[:16]
        for made in (quantize_w4(rows, 32), quantize_w8(rows))
    ]
    assert digests == ["686491a53692c9ce", "a563f417351e4530"]


def test_bytes_are_the_same_for_every_number_of_threads(tmp_path):
    """In processes of their own: the linear algebra library reads its number of threads once."""
    script = (
        "import hashlib, sys; from pathlib import Path\n"
        "from pytest_cannlm.build import Recipe, build\n"
        "from pytest_cannlm.progress import SilentProgress\n"
        "recipe = Recipe('tiny', Path(sys.argv[1]), context=256, group_size=32, quantizer='awq+gptq', keep_8bit=20)\n"
        "built = build(recipe, cache=Path(sys.argv[2]), progress=SilentProgress())\n"
        "print(hashlib.sha256((built.package / 'SubGraph_0.weight').read_bytes()).hexdigest())\n"
    )
    digests = set()
    for threads in ("1", "2", "3"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        command = [sys.executable, "-c", script, str(tiny_llama()), str(tmp_path / threads)]
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        digests.add(made.stdout)
    assert len(digests) == 1


def test_another_text_is_another_build(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("some words that are quite unlike the others; " * 200)
    given = {"context": 256, "quantizer": "gptq"}
    bundled = build(Recipe("tiny", tiny_llama(), **given), cache=tmp_path, progress=QUIET)
    mine = build(Recipe("tiny", tiny_llama(), calibration=text, **given), cache=tmp_path, progress=QUIET)
    again = build(Recipe("tiny", tiny_llama(), calibration=text, **given), cache=tmp_path, progress=QUIET)
    assert not mine.cached
    assert again.cached
    facts = [json.loads(built.manifest.read_text("utf-8"))["build"]["calibration"] for built in (bundled, mine)]
    assert facts[0] != facts[1]


class Changed:
    """A checkpoint whose every matrix is changed on its way to the quantizer."""

    def __init__(self, checkpoint, change):
        self.config, self.tensors, self.tokenizer = checkpoint.config, checkpoint.tensors, checkpoint.tokenizer
        self._read, self._change = checkpoint.read, change

    def read(self, name, rows=None):
        return self._change(name, self._read(name, rows).copy())


def quantized(tmp_path, change=lambda name, values: values, quantizer="gptq", **fields):
    with open_checkpoint(tiny_llama()) as checkpoint:
        recipe = Recipe("tiny", tiny_llama(), context=256, quantizer=quantizer, **fields)
        changed = Changed(checkpoint, change)
        unfinished = UnfinishedWork(tmp_path / "unfinished")
        return quantize_checkpoint(recipe, changed, path=tmp_path / "weights", unfinished=unfinished, progress=QUIET)


@pytest.mark.parametrize("quantizer", ["gptq", "awq", "awq+gptq"])
def test_not_finite_weights_stop_each_quantizer_with_their_name(tmp_path, quantizer):
    tensor = "model.layers.1.mlp.up_proj.weight"

    def poison(name, values):
        if name == tensor:
            values[0, 0] = np.inf
        return values

    with pytest.raises(BuildError, match="infinity") as caught:
        quantized(tmp_path, poison, quantizer)
    assert caught.value.field == tensor


@pytest.mark.parametrize("asked", [{"quantizer": "gptq"}, {"quantizer": "rtn", "keep_8bit": 20}], ids=str)
def test_a_norm_that_is_not_finite_is_named_and_no_quantizer_blamed(tmp_path, asked):
    def poison(name, values):
        return values * np.nan if name == "model.norm.weight" else values

    with pytest.raises(BuildError, match="NaN") as caught:
        quantized(tmp_path, poison, **asked)
    assert caught.value.field == "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda codes: np.maximum(codes, 8), "lost its negative weights"),
        (lambda codes: 15 - codes, "does not resemble"),
    ],
    ids=["clamped", "signs swapped"],
)
def test_damaged_codes_of_gptq_stop_the_build(tmp_path, monkeypatch, damage, words):
    original = FeedbackRounding._codes
    monkeypatch.setattr(FeedbackRounding, "_codes", lambda *args, **kwargs: damage(original(*args, **kwargs)))
    with pytest.raises(BuildError, match=words) as caught:
        quantized(tmp_path)
    assert caught.value.field.startswith("model.layers.0.self_attn.")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda values: np.maximum(values, 0), "lost its negative weights"),
        (lambda values: -values, "does not resemble"),
    ],
    ids=["clamped", "signs swapped"],
)
def test_damaged_weights_of_awq_stop_the_build(tmp_path, monkeypatch, damage, words):
    from pytest_cannlm.build import quantize as step

    original = step.dequantize_w4
    monkeypatch.setattr(step, "dequantize_w4", lambda codes, scales: damage(original(codes, scales)))
    with pytest.raises(BuildError, match=words):
        quantized(tmp_path, quantizer="awq")


def test_weights_whose_squares_overflow_are_not_taken_for_intact(tmp_path):
    with pytest.raises(BuildError, match="does not resemble") as caught:
        quantized(tmp_path, lambda name, values: values * np.float32(1e25), "rtn", scheme="w8a16")
    assert caught.value.found == "SQNR nan dB"


def test_norms_carry_what_scaling_took_from_the_matrices(tmp_path):
    coefficients = quantized(tmp_path, quantizer="awq")
    stored = WeightReader(tmp_path / "weights", coefficients)
    with open_checkpoint(tiny_llama()) as checkpoint:
        name = "model.layers.0.input_layernorm.weight"
        ratio = stored.array(coefficients.vectors[name]) / checkpoint.read(name)
        plain = stored.array(coefficients.vectors["model.norm.weight"])
        np.testing.assert_array_equal(plain, checkpoint.read("model.norm.weight"))
    assert np.ptp(ratio) > 0.05


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quantizer": "gptq", "scheme": "fp16"}, "rounds no weights"),
        ({"keep_8bit": 25, "scheme": "w8a16"}, "only a part of 4-bit weights"),
        ({"keep_8bit": 0}, "only a part of 4-bit weights"),
        ({"keep_8bit": 100}, "only a part of 4-bit weights"),
        ({"calibration": tiny_llama() / "config.json"}, "nothing in this build"),
        ({"calibration": Path("none.txt"), "quantizer": "gptq"}, "cannot read the calibration text"),
        ({"quantizer": "awq", "converter": "omg", "scheme": "fp16"}, "quantize by themselves"),
        ({"keep_8bit": 25, "converter": "omg", "scheme": "fp16"}, "quantize by themselves"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, fields, words):
    with pytest.raises(UsageError, match=words):
        build(Recipe("tiny", tiny_llama(), context=256, **fields), cache=tmp_path, progress=QUIET)


def test_packages_of_each_quantizer_are_found_again(tiny_packages):
    built = tiny_packages.built(quantizer="awq+gptq", keep_8bit=30)
    assert tiny_packages.built(quantizer="awq+gptq", keep_8bit=30).cached
    assert locate_package(built.package).data["build"]["quantizer"] == "awq+gptq"
