"""The four steps: what a package consists of, what the cache keeps, what a damaged build does."""

import errno
import json
import multiprocessing
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, locate_package
from pytest_cannlm.build.cache import BuildCache
from pytest_cannlm.build.engine_form import write_engine_form
from pytest_cannlm.build.quantize import Formats, write_weights
from pytest_cannlm.build.reference import quantized_reference
from pytest_cannlm.build.weights import ALIGNMENT, Coefficients, WeightReader
from pytest_cannlm.container.kirin import read_simulated
from pytest_cannlm.errors import BuildError, EnvironmentFailure, PackageError, UsageError
from pytest_cannlm.models import hashing
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.progress import SilentProgress

QUIET = SilentProgress()
LLM_KEYS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "kv_cache_max_len", "sliding_window_len", "max_position_embeddings",
    "num_attention_heads", "num_attention_kv_heads", "num_attention_head_dims", "num_hidden_layers", "prefill_len",
    "decode_len", "vocab_size", "vocab_real_size", "use_output_pos", "max_io_tokens", "hidden_size",
    "intermediate_size", "rms_norm_eps", "rope_theta", "model_type", "architectures", "torch_dtype",
    "tie_word_embeddings", "embedding_weights", "embedding_dequant_scale", "embedding_input_type",
}  # fmt: skip


class Said(SilentProgress):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def recipe(**fields):
    return Recipe("tiny", tiny_llama(), **{"context": 256, **fields})


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16", "fp16"])
def test_package_has_exactly_the_engines_files_and_keys(tiny_packages, scheme):
    package = tiny_packages(scheme).package
    stem = f"tiny_{scheme}_64_256"
    assert {p.name for p in package.iterdir()} == {
        "executor.json", "context.json", "tokenizer.json", f"tiny_{scheme}.omc", "SubGraph_0.weight",
        f"{stem}.embedding_weights", f"{stem}.embedding_dequant_scale",
    }  # fmt: skip
    executor = json.loads((package / "executor.json").read_text("utf-8"))
    assert set(executor) == {"version", "engine_type", "llm_config", "tokenizer", "autoregressive"}
    assert set(executor["llm_config"]) == LLM_KEYS
    assert executor["autoregressive"] == {"model_path": f"tiny_{scheme}.omc", "weight_path": "./"}
    llm = executor["llm_config"]
    assert (package / llm["embedding_weights"]).stat().st_size == llm["vocab_size"] * llm["hidden_size"]
    assert (package / llm["embedding_dequant_scale"]).stat().st_size == llm["vocab_size"] * 4
    context = json.loads((package / "context.json").read_text("utf-8"))
    assert set(context) == {"version", "engine_type", "generate_options", "sampler"}
    assert set(context["sampler"]) == {"do_sample", "seed", "top-k", "top-p", "temperature", "repetition_penalty"}
    assert (
        context["generate_options"]["init_token_len"] + context["generate_options"]["max_gen_tokens"]
        <= llm["max_io_tokens"]
    )


def test_every_end_of_text_id_ends_a_generation_on_the_device(tiny_packages):
    """The engine has room for one id; the others go in as stop sequences."""
    package = tiny_packages()
    ids = package.data["tokenizer"]["eos_token_ids"]
    stops = json.loads((package.package / "context.json").read_text("utf-8"))["generate_options"]["stop_sequence"]
    assert len(ids) == len(stops) >= 2


def test_merges_are_written_in_the_form_that_the_engine_reads(tiny_packages):
    model = json.loads((tiny_packages().package / "tokenizer.json").read_text("utf-8"))["model"]
    assert model["merges"]
    assert all(isinstance(merge, str) for merge in model["merges"])
    assert "ignore_merges" not in model


def test_container_says_that_it_is_simulated_and_for_what(tiny_packages):
    made = read_simulated(next(tiny_packages(cann="6.0.1.0").package.glob("*.omc")))
    assert (made.chip, made.build_version) == ("KirinX90", "6.0.1.0")


def test_manifest_describes_every_file(tiny_packages):
    package = tiny_packages()
    assert package.data["simulated"] is True
    assert package.data["build"]["scheme"] == "w4a16"
    assert package.data["build"]["group_sizes"] == [128]
    for name, facts in package.data["files"].items():
        assert (package.package / name).stat().st_size == facts["bytes"]
    assert set(package.data["files"]) == {p.name for p in package.package.iterdir()}


def test_weights_lie_at_page_boundaries_and_do_not_overlap(tiny_packages):
    package = tiny_packages()
    coefficients = Coefficients.load(package.coefficients)
    arrays = [a for m in coefficients.matrices.values() for a in m.arrays.values()]
    places = sorted((a.offset, a.nbytes) for a in [*arrays, *coefficients.vectors.values()])
    assert all(offset % ALIGNMENT == 0 for offset, _ in places)
    assert all(offset + size <= following for (offset, size), (following, _) in pairwise(places))
    assert places[-1][0] + places[-1][1] == (package.package / "SubGraph_0.weight").stat().st_size


def test_second_build_builds_nothing_and_says_so(tmp_path):
    first = build(recipe(), cache=tmp_path, progress=QUIET)
    said = Said()
    second = build(recipe(), cache=tmp_path, progress=said)
    assert [s.cached for s in first.steps] == [False] * 4
    assert second.cached
    assert second.package == first.package
    assert said.lines == ["tiny w4a16: all four steps cached, nothing to build"]


def test_only_the_steps_behind_a_change_run_again(tmp_path):
    build(recipe(), cache=tmp_path, progress=QUIET)
    other = build(recipe(cann="6.0.1.0"), cache=tmp_path, progress=QUIET)
    assert [(s.step, s.cached) for s in other.steps] == [
        ("quantize", True), ("export", True), ("convert", False), ("assemble", False),
    ]  # fmt: skip


def test_both_forms_are_exported_and_the_engine_form_is_laid_out_as_it_would_be_written(tmp_path):
    built = build(recipe(), cache=tmp_path, progress=QUIET)
    key = json.loads(built.manifest.read_text("utf-8"))["parents"]["export"]
    kept = onnx.load(tmp_path / "builds" / "export" / key / "engine.onnx", load_external_data=False)
    with open_checkpoint(tiny_llama()) as checkpoint:
        write_engine_form(checkpoint.config, 256, checkpoint.read, tmp_path / "engine.onnx")
    written = onnx.load(tmp_path / "engine.onnx", load_external_data=False)
    assert kept == written
    assert (tmp_path / "builds" / "export" / key / "runtime.onnx").is_file()


def test_equal_recipes_give_equal_bytes(tmp_path):
    one, two = (build(recipe(), cache=tmp_path / name, progress=QUIET) for name in "ab")
    for file in one.package.iterdir():
        assert file.read_bytes() == (two.package / file.name).read_bytes(), file.name


def test_damaged_cache_entry_is_repaired(tmp_path):
    first = build(recipe(), cache=tmp_path, progress=QUIET)
    (first.package / "executor.json").write_text("{}")
    said = Said()
    second = build(recipe(), cache=tmp_path, progress=said)
    assert "llm_config" in (second.package / "executor.json").read_text()
    assert any("damaged" in line for line in said.lines)


@pytest.mark.parametrize("step", ["assemble", "quantize"])
def test_an_edit_of_equal_size_is_not_taken_for_the_build(tmp_path, step):
    """The package's weight file is one with the quantize step's: an edit must not come back with the next build."""
    first = build(recipe(), cache=tmp_path, progress=QUIET)
    intact = (first.package / "SubGraph_0.weight").read_bytes()
    weights = first.package / "SubGraph_0.weight"
    before = weights.stat()
    with weights.open("r+b") as file:
        file.write(bytes(64))
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that keeps times leaves it
    if step == "quantize":
        shutil.rmtree(first.manifest.parent)
    second = build(recipe(), cache=tmp_path, progress=QUIET)
    assert not second.cached
    assert (second.package / "SubGraph_0.weight").read_bytes() == intact


def test_a_warm_cache_that_cannot_be_written_still_serves(tmp_path, monkeypatch):
    first = build(recipe(), cache=tmp_path, progress=QUIET)
    monkeypatch.setattr("pytest_cannlm.locking.FileLock", None)  # a lock file could not be made
    assert build(recipe(), cache=tmp_path, progress=QUIET).package == first.package


def test_a_full_disk_is_named_with_file_and_remedy(tmp_path):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "weights"))

    with pytest.raises(EnvironmentFailure, match=r"No space left on device; .* GB free") as caught:
        BuildCache(tmp_path).obtain("step", "key", full, QUIET)
    assert caught.value.file.endswith("weights")
    assert "CANNLM_CACHE" in caught.value.remedy


def test_quantized_reference_of_a_changed_package_is_refused(tmp_path):
    """Codes with swapped nibbles would be a reference that agrees with the damage."""
    package = locate_package(build(recipe(), cache=tmp_path, progress=QUIET, out=tmp_path / "out").package)
    weights = package.package / "SubGraph_0.weight"
    codes = Coefficients.load(package.coefficients).matrices["model.layers.0.mlp.down_proj"].arrays["codes"]
    data = bytearray(weights.read_bytes())
    place = slice(codes.offset, codes.offset + codes.nbytes)
    data[place] = bytes((byte >> 4) | ((byte & 15) << 4) for byte in data[place])
    weights.write_bytes(data)
    with pytest.raises(PackageError, match=r"SubGraph_0\.weight") as caught:
        quantized_reference(package, cache=tmp_path, progress=QUIET)
    assert caught.value.code == "PACKAGE_DAMAGED"


def test_failed_step_leaves_nothing_behind(tmp_path):
    cache = BuildCache(tmp_path)

    def broken(folder):
        (folder / "half").write_text("half")
        raise BuildError("broke in the middle")

    with pytest.raises(BuildError):
        cache.obtain("step", "key", broken, QUIET)
    assert not [p for p in (tmp_path / "step").iterdir() if p.is_dir()]


def test_two_processes_build_once_and_the_waiting_one_says_so(tmp_path):
    context = multiprocessing.get_context("spawn")
    counts = tmp_path / "made"
    counts.mkdir()
    workers = [context.Process(target=_obtain_slowly, args=(tmp_path, counts, n)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert len([p for p in counts.iterdir() if p.name.startswith("made")]) == 1
    assert len([p for p in counts.iterdir() if p.name.startswith("waited")]) == 1


def _obtain_slowly(root: Path, counts: Path, number: int) -> None:
    import time

    def make(folder: Path) -> None:
        (counts / f"made{number}").touch()
        time.sleep(2)
        (folder / "file").write_text("x")

    said = Said()
    BuildCache(root).obtain("step", "key", make, said)
    if any("waiting for another process" in line for line in said.lines):
        (counts / f"waited{number}").touch()


def test_output_folder_gets_copies_and_must_be_empty(tmp_path):
    out = tmp_path / "out"
    built = build(recipe(), cache=tmp_path / "cache", progress=QUIET, out=out)
    assert built.package == out / "package"
    assert (out / "coefficients.json").is_file()
    assert (out / "package" / "SubGraph_0.weight").stat().st_nlink == 1
    (tmp_path / "file").write_text("")
    for taken in (out, tmp_path / "file"):
        with pytest.raises(UsageError, match="empty folder"):
            build(recipe(), cache=tmp_path / "cache", progress=QUIET, out=taken)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("scheme", "w4a8", UsageError),
        ("quantizer", "magic", UsageError),
        ("group_size", 48, UsageError),
        ("context", 100, UsageError),
        ("context", 0, UsageError),
        ("context", 1 << 20, UsageError),
        ("cann", "banana", UsageError),
        ("cann", "108.631.120.010", UsageError),
        ("chip", "KirinX91", UsageError),
        ("converter", "omgg", UsageError),
        ("converter", "omg", EnvironmentFailure),
    ],
)
def test_impossible_recipes_are_refused_before_work(tmp_path, field, value, error):
    with pytest.raises(error) as caught:
        build(recipe(**{field: value}), cache=tmp_path, progress=QUIET)
    assert str(value) in str(caught.value)
    assert not list(tmp_path.glob("builds/assemble/*/"))


class Corrupt:
    """A checkpoint whose named tensor is changed on the way."""

    def __init__(self, checkpoint, tensor, change):
        self.checkpoint, self.tensor, self.change = checkpoint, tensor, change

    def __call__(self, name, rows=None):
        values = self.checkpoint.read(name, rows)
        return self.change(values.copy()) if name == self.tensor else values


def quantize(tmp_path, read, checkpoint, formats=None):
    return write_weights(
        config=checkpoint.config,
        read=read,
        rows_of=lambda name: checkpoint.tensors[name].shape[0],
        formats=formats or Formats("w4", "w8"),
        scheme="w4a16",
        positions=64,
        path=tmp_path / "weights",
        label="weights",
        progress=QUIET,
    )


def test_not_finite_weights_stop_the_build_with_their_name(tmp_path):
    tensor = "model.layers.1.mlp.up_proj.weight"

    def poison(values):
        values[0, 0] = np.nan
        return values

    with open_checkpoint(tiny_llama()) as checkpoint, pytest.raises(BuildError, match="NaN") as caught:
        quantize(tmp_path, Corrupt(checkpoint, tensor, poison), checkpoint)
    assert caught.value.field == tensor


def test_a_vector_that_is_not_finite_stops_the_build_before_any_matrix_is_worked_on(tmp_path):
    worked = []

    def read(name, rows=None):
        if rows is not None:
            worked.append(name)
        return poisoned(name, rows)

    with open_checkpoint(tiny_llama()) as checkpoint:
        poisoned = Corrupt(checkpoint, "model.norm.weight", lambda values: values * np.nan)
        with pytest.raises(BuildError, match="NaN") as caught:
            quantize(tmp_path, read, checkpoint)
    assert caught.value.field == "model.norm.weight"
    assert not worked


def test_weights_beyond_fp16_are_not_written_as_infinity(tmp_path):
    tensor = "model.layers.0.mlp.down_proj.weight"
    with open_checkpoint(tiny_llama()) as checkpoint, pytest.raises(BuildError, match="65504") as caught:
        quantize(tmp_path, Corrupt(checkpoint, tensor, lambda v: v * 1e7), checkpoint, Formats("fp16", "fp16"))
    assert caught.value.field == tensor


def test_clamped_tensor_stops_the_build_with_its_name(tmp_path, monkeypatch):
    """Negative weights set to 0 on the way, as a wrong quantizer setting does: the model would still run."""
    from pytest_cannlm.build import quantize as step

    def clamping(codes, scales):
        return np.maximum(original(codes, scales), 0)

    original = step.dequantize_w4
    monkeypatch.setattr(step, "dequantize_w4", clamping)
    with open_checkpoint(tiny_llama()) as checkpoint, pytest.raises(BuildError, match="negative") as caught:
        quantize(tmp_path, checkpoint.read, checkpoint)
    assert caught.value.field == "model.layers.0.self_attn.q_proj.weight"


def test_unrecognizable_tensor_stops_the_build(tmp_path, monkeypatch):
    from pytest_cannlm.build import quantize as step

    original = step.dequantize_w4
    monkeypatch.setattr(step, "dequantize_w4", lambda codes, scales: -original(codes, scales))
    with open_checkpoint(tiny_llama()) as checkpoint, pytest.raises(BuildError, match="SQNR"):
        quantize(tmp_path, checkpoint.read, checkpoint)


def test_stored_matrices_read_back_as_what_was_quantized(tmp_path):
    with open_checkpoint(tiny_llama()) as checkpoint:
        coefficients = quantize(tmp_path, checkpoint.read, checkpoint)
        reader = WeightReader(tmp_path / "weights", coefficients)
        stacked = np.concatenate(
            [checkpoint.read(f"model.layers.0.self_attn.{p}_proj.weight") for p in ("q", "k", "v")]
        )
        got = reader.dequantized("model.layers.0.self_attn.qkv")
        assert np.abs(got - stacked).max() < 0.2 * np.abs(stacked).max()
        np.testing.assert_array_equal(reader.dequantized("model.layers.0.self_attn.qkv", slice(3, 9)), got[3:9])
        head = reader.dequantized("lm_head")
        assert np.abs(head - checkpoint.read("model.embed_tokens.weight")).max() < 0.01 * np.abs(head).max()


def test_coefficients_survive_their_file(tiny_packages):
    loaded = Coefficients.load(tiny_packages().coefficients)
    quality = [part for matrix in loaded.matrices.values() for part in matrix.parts]
    assert min(part.sqnr_db for part in quality) > 15
    assert {m.format for m in loaded.matrices.values()} == {"w4", "w8"}


def test_coefficient_file_of_another_schema_is_refused(tmp_path):
    (tmp_path / "c.json").write_text('{"schema": 99}')
    with pytest.raises(BuildError, match="99"):
        Coefficients.load(tmp_path / "c.json")


def test_locate_package_takes_both_folders_and_says_what_is_missing(tiny_packages, tmp_path):
    package = tiny_packages()
    assert locate_package(package.package) == locate_package(package.package.parent)
    with pytest.raises(PackageError, match=r"no executor\.json"):
        locate_package(tmp_path)


def test_package_without_manifest_is_still_a_package(tiny_packages, tmp_path):
    shutil.copytree(tiny_packages().package, tmp_path / "elsewhere")
    found = locate_package(tmp_path / "elsewhere")
    assert found.manifest is None
    assert found.data == {}


def test_recipe_names_are_normalized():
    assert replace(recipe(), scheme="int8", chip="kirin x90").validated() == recipe(scheme="w8a16")


def test_every_weight_file_is_hashed_once_and_never_by_the_next_run(tmp_path, monkeypatch):
    hashed = []
    original = hashing._hash
    monkeypatch.setattr(hashing, "_hash", lambda file: hashed.append(Path(file).name) or original(file))
    build(recipe(), cache=tmp_path, progress=QUIET)
    weights = [name for name in hashed if name.endswith((".weight", ".embedding_weights", "embedding.int8", ".omc"))]
    assert sorted(weights) == ["SubGraph_0.weight", "embedding.int8", "tiny_w4a16.omc"]
    hashed.clear()
    hashing._remembered.cache_clear()  # as in a new process
    assert build(recipe(), cache=tmp_path, progress=QUIET).cached
    assert not hashed
