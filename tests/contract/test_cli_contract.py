"""The command line's JSON documents and exit codes, as others rely on them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packages import write_package
from samples import samples_dir
from tiny import tiny_llama

from pytest_cannlm.cli.app import run
from pytest_cannlm.settings import OPTIONS


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path, tiny_packages):
    """``cli(*arguments)`` -> (exit code, JSON document or text, standard error)."""
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    monkeypatch.setenv("CANNLM_CACHE", str(tiny_packages.cache))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in arguments else out, err

    return call


@pytest.fixture(scope="module")
def package(tiny_packages):
    return tiny_packages()


def test_build_says_where_the_package_is_and_what_each_step_did(cli, tmp_path):
    out = tmp_path / "out"
    code, answer, progress = cli("build", tiny_llama(), "--context", 256, "--out", out, "--json")
    assert code == 0
    assert set(answer) == {"package", "steps", "manifest", "notes"}
    assert answer["notes"] == []
    assert [step["step"] for step in answer["steps"]] == ["quantize", "export", "convert", "assemble"]
    assert all(set(step) == {"step", "cached", "seconds"} for step in answer["steps"])
    assert Path(answer["package"]) == out / "package"
    assert Path(answer["manifest"]).is_file()
    assert "tiny-llama" in progress
    code, again, _ = cli("build", tiny_llama(), "--context", 256, "--json")
    assert code == 0
    assert all(step["cached"] for step in again["steps"])


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [(["--chip", "Kirin9020"], "sim:kirin9020?cann=6.1.1.0"), (["--cann", "6.0.1.0"], "sim:kirinx90?cann=6.0.1.0")],
)
def test_build_says_that_the_default_device_refuses_it_and_which_does_not(cli, arguments, spec):
    _, text, _ = cli("build", tiny_llama(), "--context", 256, *arguments)
    (note,) = [line for line in text.splitlines() if line.startswith("note: ")]
    assert "the default device, a KirinX90 with CANN 6.1.1.0, refuses this package" in note
    assert spec in note
    assert ('npu(chips=["Kirin9020"])' in note) == ("--chip" in arguments)
    assert cli("run", text.splitlines()[-1], "--prompt", "x", "--raw", "--max-new-tokens", 1, "--npu", spec)[0] == 0


def test_build_for_a_chip_that_nothing_simulates_says_so(cli):
    _, answer, _ = cli("build", tiny_llama(), "--context", 256, "--chip", "Kirin9030", "--json")
    (note,) = answer["notes"]
    assert "nothing simulates a Kirin9030: only kirin9020, kirinx90" in note


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--scheme", "w4a61"], 2, "w4a61"),
        (["--context", "100"], 2, "context"),
        (["--converter", "omg"], 3, "omg"),
        (["--converter", "omgg"], 2, "omgg"),
        (["--quantizer", "qptq"], 2, "awq+gptq"),
        (["--quantizer", "gptq", "--calibration", "none.txt"], 2, "none.txt"),
        (["--calibration", "texts.txt"], 2, "calibration"),
        (["--keep-8bit", "25", "--scheme", "int8"], 2, "keep_8bit"),
        (["--keep-8bit", "some"], 2, "--keep-8bit"),
        (["--coefficients", "c.safetensors", "--converter", "omg", "--scheme", "fp16"], 2, "--coefficients"),
        (["--contxt", "256"], 2, "contxt"),
    ],
)
def test_wrong_builds_are_told_apart(cli, arguments, code, named):
    found, answer, _ = cli("build", tiny_llama(), *arguments, "--json")
    assert found == code
    assert set(answer) >= {"error", "message"}
    assert named in answer["message"]


def test_build_takes_quantizer_text_and_share_and_writes_the_coefficients(cli, tmp_path):
    text, coefficients = tmp_path / "mine.txt", tmp_path / "c.safetensors"
    text.write_text("words that somebody chose; " * 200)
    options = ["--quantizer", "awq+gptq", "--calibration", text, "--group-size", 32, "--keep-8bit", 20]
    code, answer, progress = cli(
        "build", tiny_llama(), "--context", 256, *options, "--coefficients", coefficients, "--json"
    )
    assert code == 0
    made = json.loads(Path(answer["manifest"]).read_text("utf-8"))["build"]
    assert (made["quantizer"], made["keep_8bit"], made["group_sizes"]) == ("awq+gptq", 20, [32])
    assert made["eight_bit"]
    assert "which matrices need 8 bits" in progress
    length = int.from_bytes(coefficients.read_bytes()[:8], "little")
    assert "lm_head" not in json.loads(coefficients.read_bytes()[8 : 8 + length])["__metadata__"]
    assert "model.norm.weight" in json.loads(coefficients.read_bytes()[8 : 8 + length])


def test_run_answers_with_text_times_and_who_computed_it(cli, package):
    code, answer, _ = cli("run", package.manifest.parent, "--prompt", "Hi", "--max-new-tokens", 4, "--greedy", "--json")
    assert code == 0
    assert set(answer) == {"text", "tokens", "finish", "ttft_ms", "tpot_ms", "kind", "served_by"}
    assert len(answer["tokens"]) == 4
    assert answer["kind"] == "modelled"
    assert answer["ttft_ms"] > 0
    assert answer["tpot_ms"] > 0
    assert answer["served_by"] == "simulated KirinX90 (faithful)"


def test_run_raw_leaves_the_prompt_alone(cli, package):
    prompt = "word " * 60
    _, chat, _ = cli("run", package.package, "--prompt", prompt, "--max-new-tokens", 1, "--json")
    code, raw, _ = cli("run", package.package, "--prompt", prompt, "--max-new-tokens", 1, "--raw", "--json")
    assert code == 0
    assert raw["tokens"] != chat["tokens"]


def test_run_text_names_kind_and_server(cli, package):
    code, text, _ = cli("run", package.package, "--prompt", "Hi", "--max-new-tokens", 2)
    assert code == 0
    assert "(modelled)" in text
    assert "served by simulated KirinX90" in text


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--npu", "sim?cann=6.0.1.0"], 1, "CANN_VERSION_MISMATCH"),
        (["--npu", "sim:kirin9020"], 1, "CHIP_MISMATCH"),
        (["--npu", "hdc"], 3, "DeviceError"),
        (["--npu", "simm"], 2, "UsageError"),
        (["--max-new-tokens", "0"], 2, "UsageError"),
        (["--prompt", "<|im_end|>"], 2, "UsageError"),
    ],
)
def test_run_tells_refusal_device_and_wrong_use_apart(cli, package, arguments, code, named):
    found, answer, _ = cli("run", package.package, "--prompt", "Hi", *arguments, "--json")
    assert (found, answer["error"]) == (code, named)


def test_run_of_what_is_no_package(cli, tmp_path):
    code, answer, _ = cli("run", tmp_path, "--prompt", "Hi", "--json")
    assert (code, answer["error"]) == (1, "PACKAGE_INCOMPLETE")


@pytest.mark.parametrize(
    ("arguments", "answer", "code"),
    [
        (["--chip", "KirinX90", "--cann", "6.1.1.0"], "load", 0),
        (["--chip", "kirin x90", "--cann", "6.1.1.0"], "load", 0),
        (["--chip", "KirinX90", "--cann", "6.0.1.0"], "refuse", 1),
        (["--chip", "KirinX90", "--cann", "6.0.1.0", "--policy", "off"], "load", 0),
        (["--chip", "Kirin9020", "--cann", "6.1.1.0"], "refuse", 1),
        (["--chip", "KirinX90", "--cann", "6.1.1.0", "--real"], "refuse", 1),
    ],
)
def test_check_answers_with_reasons_and_bytes(cli, package, arguments, answer, code):
    found, document, _ = cli("check", package.package, *arguments, "--json")
    assert (found, document["answer"]) == (code, answer)
    assert set(document) >= {"answer", "reasons", "bytes_read"}
    assert 0 < document["bytes_read"] <= 64 * 1024
    if code:
        assert document["reasons"]


def test_check_says_that_the_version_is_the_command_lines(cli, package):
    _, text, _ = cli("check", package.package, "--chip", "KirinX90", "--cann", "6.0.1.0")
    assert "expected: 6.0.1.0 (--cann on the command line)" in text


def test_check_takes_the_user_s_version_pairs(cli, package, tmp_path):
    arguments = ["check", package.package, "--chip", "KirinX90", "--cann", "108.631.120.010"]
    code, answer, _ = cli(*arguments, "--json")
    assert (code, answer["code"]) == (1, "CANN_VERSION_UNKNOWN")
    pairs = tmp_path / "pairs.json"
    pairs.write_text('{"pairs": [{"versions": ["6.1.1.0", "108.631.120.010"], "source": "the bench"}]}')
    code, text, _ = cli(*arguments, "--version-pairs", pairs)
    assert code == 0
    assert "6.1.1.0 = 108.631.120.010 by pairs.json: the bench" in text
    pairs = tmp_path / "wrong.json"
    pairs.write_text("{}")
    code, answer, _ = cli(*arguments, "--version-pairs", pairs, "--json")
    assert (code, answer["error"], answer["file"]) == (2, "UsageError", str(pairs))


def test_check_without_a_version_needs_policy_off(cli, package):
    arguments = ["check", package.package, "--chip", "KirinX90", "--json"]
    code, document, _ = cli(*arguments, "--policy", "off")
    assert (code, document["answer"]) == (0, "load")
    assert "no --cann on the command line" in " ".join(document["reasons"])
    for policy in ([], ["--policy", "window"]):
        code, document, _ = cli(*arguments, *policy)
        assert (code, document["error"], document["field"]) == (2, "UsageError", "--cann")


@pytest.mark.parametrize(
    ("chip", "cann", "said"),
    [
        ("Toaster", "6.1.1.0", "KirinX90, Kirin9030"),
        ("Kirin", "6.1.1.0", "unknown chip"),
        ("Ascend", "6.1.1.0", "unknown chip"),
        ("KirinX90", "banana", "'banana' is no version"),
        ("KirinX90", "24", "looks like an API level"),
        ("KirinX90", "", "is no version"),
        ("KirinX90", "0.0.0", "is no version"),
    ],
)
def test_check_of_a_target_that_cannot_exist_is_wrong_use(cli, package, chip, cann, said):
    code, document, _ = cli("check", package.package, "--chip", chip, "--cann", cann, "--json")
    assert (code, document["error"]) == (2, "UsageError")
    assert said in document["message"]


def test_check_takes_an_ascend_chip_by_its_full_name(cli, package):
    code, document, _ = cli("check", package.package, "--chip", "Ascend310B4", "--cann", "8.0.0", "--json")
    assert (code, document["code"]) == (1, "CHIP_MISMATCH")


def test_check_names_a_damaged_package(cli, tmp_path):
    folder = write_package(tmp_path / "package")
    folder.joinpath("SubGraph_0.weight").unlink()
    code, document, _ = cli("check", folder, "--chip", "KirinX90", "--cann", "6.1.1.0", "--json")
    assert (code, document["code"]) == (1, "PACKAGE_INCOMPLETE")
    assert "SubGraph_0.weight" in document["reasons"][0]


def test_inspect_takes_a_package_folder(cli, package):
    code, document, _ = cli("inspect", package.manifest.parent, "--json")
    assert code == 0
    assert (document["error"], document["dialect"], document["simulated"]) == (None, "kirin", True)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(500), b"x" * 1000])
def test_inspect_rejects_what_is_no_container(cli, tmp_path, content):
    file = tmp_path / "model.om"
    file.write_bytes(content)
    code, document, _ = cli("inspect", file, "--json")
    assert code == 1
    assert document["error"].startswith("OM")
    assert document["message"]


def sample_files():
    folder = samples_dir()
    if folder is None or not (folder / "om" / "expected.json").is_file():
        return [pytest.param(None, {}, marks=pytest.mark.skip(reason="no samples folder: set CANNLM_SAMPLES"))]
    files = json.loads((folder / "om" / "expected.json").read_text(encoding="utf-8"))["files"]
    return [pytest.param(folder / "om" / name, facts, id=name) for name, facts in files.items()]


@pytest.mark.parametrize(("file", "facts"), sample_files())
def test_inspect_of_real_files(cli, file, facts):
    code, document, _ = cli("inspect", file, "--json")
    assert (code, document["error"]) == (1 if facts["error"] else 0, facts["error"])


def test_fetch_of_an_unknown_model_names_the_nearest(cli):
    code, answer, _ = cli("fetch", "smollm2-136m", "--json")
    assert (code, answer["error"]) == (2, "UsageError")
    assert "did you mean 'smollm2-135m'" in answer["message"]


def test_fetch_offline_says_what_to_put_where(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "empty"))
    code, answer, _ = cli("fetch", "smollm2-135m", "--offline", "--json")
    assert code == 3
    assert str(tmp_path / "empty") in answer["message"]


def test_doctor_names_state_and_fix_of_everything(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "cache"))
    code, answer, _ = cli("doctor", "--json")
    assert (code, answer["ok"]) == (0, True)
    checks = {check["name"]: check for check in answer["checks"]}
    assert {"Python", "onnxruntime", "pip", "cache folder", "disk space", "hdc", "adb"} <= set(checks)
    assert checks["hdc"]["state"] == "optional"
    assert all(check["fix"] for check in answer["checks"] if check["state"] == "missing")
    assert checks["hdc"]["found"] == "not on PATH"


def test_doctor_fails_where_the_cache_cannot_be_written(cli, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "file" / "cache"))
    code, text, _ = cli("doctor")
    assert code == 3
    assert "MISSING   cache folder" in text
    assert "fix: set CANNLM_CACHE" in text


@pytest.mark.parametrize("arguments", [[], ["bild"], ["check", "x"], ["build", "x", "--nonsense"]])
def test_wrong_use_has_its_own_code_and_no_traceback(cli, arguments):
    code, _, error = cli(*arguments)
    assert code == 2
    assert "Traceback" not in error


def test_settings_of_the_folder_are_read(cli, tmp_path):
    (tmp_path / "cannlm.toml").write_text("cach = 'x'\n")
    code, answer, _ = cli("doctor", "--json")
    assert code == 2
    assert "did you mean 'cache'" in answer["message"]


def test_the_installed_command_starts_without_heavy_imports(tmp_path):
    heavy = ["numpy", "onnx", "onnxruntime", "httpx", "rich", "pytest"]
    code = (
        f"import sys; from pytest_cannlm.cli.app import run; run(['--version']); print(set({heavy}) & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "set()"
