"""Packages that do not fit the engine: it fails or dies as the real one was seen to, and says the same words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cannlm.build import relabel
from pytest_cannlm.errors import EngineCrash, EngineError, PackageError
from pytest_cannlm.simulator.package import read_package

LOAD = """
import sys
from pytest_cannlm.simulator.engine import SimulatedEngine
SimulatedEngine().load(sys.argv[1], {"on_mismatch": sys.argv[2]})
print("loaded")
"""
NOT_COMPATIBLE = [
    "CheckCompatibility failed",
    "HcsCompiledModelPreLoadProcess",
    "modelRecompiler Recompile failed!",
    "no runtime support the Model.",
]


def load(package: Path, on_mismatch: str = "crash", *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Load in a process of its own, which may die."""
    command = [sys.executable, "-c", LOAD, str(package), on_mismatch]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def edit(folder: Path, file: str, change) -> None:
    """Change a JSON file of a copy, whose files are links."""
    path = folder / file
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.unlink()
    path.write_text(json.dumps(data), "utf-8")


@pytest.fixture
def copy(tiny_packages, tmp_path):
    return relabel(tiny_packages(), tmp_path / "copy").package


@pytest.mark.parametrize("wrong", [{"cann": "6.0.1.0"}, {"chip": "Kirin9020"}])
def test_a_package_of_another_cann_or_chip_kills_the_process(tiny_packages, tmp_path, wrong):
    done = load(relabel(tiny_packages(), tmp_path / "other", **wrong).package)
    assert done.returncode != 0
    assert "loaded" not in done.stdout
    for text in [*NOT_COMPATIBLE, "KirinX90, 6.1.1.0", *wrong.values()]:
        assert text in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no signals")
def test_deaths_are_by_the_signal_that_was_seen(tiny_packages, tmp_path, copy):
    assert load(relabel(tiny_packages(), tmp_path / "other", cann="6.0.1.0").package).returncode == -11
    edit(copy, "tokenizer.json", lambda data: data["model"].update(merges=[["a", "b"]]))
    done = load(copy)
    assert done.returncode == -6
    assert "nlohmann::json type_error.302: type must be string, but is array" in done.stderr


def test_a_mismatch_can_be_a_clean_error(tiny_packages, tmp_path):
    done = load(relabel(tiny_packages(), tmp_path / "other", chip="Kirin9020").package, "error")
    assert done.returncode == 1
    for text in [*NOT_COMPATIBLE, "EngineError", "built for Kirin9020, 6.1.1.0", "expected: KirinX90, 6.1.1.0"]:
        assert text in done.stderr


def test_a_mismatch_can_load(tiny_packages, tmp_path):
    done = load(relabel(tiny_packages(), tmp_path / "other", cann="6.0.1.0").package, "load")
    assert (done.returncode, done.stdout.split()) == (0, ["loaded"])


def test_a_mismatch_can_hang(tiny_packages, tmp_path):
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        load(relabel(tiny_packages(), tmp_path / "other", cann="6.0.1.0").package, "hang", timeout=8)
    assert b"Recompile failed!" in (caught.value.stderr or b"")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("num_attention_heads", None, "llm_config.num_attention_heads"),
        ("hidden_size", None, "llm_config.hidden_size"),
        ("embedding_weights", None, "embedding_weights"),
        ("prefill_len", 0, "llm_config.prefill_len; found: 0"),
        ("max_io_tokens", "many", "llm_config.max_io_tokens; found: many"),
        ("kv_cache_max_len", 960, "kv_cache_max_len; found: 960; expected: 256"),
    ],
)
def test_a_setting_that_is_missing_or_cannot_be_used_fails_in_the_engines_words(copy, capsys, key, value, match):
    def change(data):
        if value is None:
            del data["llm_config"][key]
        else:
            data["llm_config"][key] = value

    edit(copy, "executor.json", change)
    with pytest.raises(EngineError, match=match) as caught:
        read_package(copy)
    assert caught.value.code == "1"
    assert not isinstance(caught.value, EngineCrash)
    assert 'PrepareModelManager(122): "executor_" "null, return FAIL."' in caught.value.message
    assert "Init(153): init model fail or load token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("num_hidden_layers", 3, "3 layers"),
        ("num_attention_kv_heads", 4, "4 heads"),
        ("hidden_size", 65, "bytes of"),
        ("vocab_size", 511, "bytes of"),
    ],
)
def test_a_wrong_layer_count_hidden_size_or_vocabulary_kills(copy, key, value, match):
    edit(copy, "executor.json", lambda data: data["llm_config"].update({key: value}))
    with pytest.raises(EngineCrash) as caught:
        read_package(copy)
    assert caught.value.found == "SIGSEGV"
    assert match in "".join(caught.value.log)


def test_merges_as_pairs_abort(copy):
    edit(copy, "tokenizer.json", lambda data: data["model"].update(merges=[["a", "b"]]))
    with pytest.raises(EngineCrash, match="tokenizer") as caught:
        read_package(copy)
    assert caught.value.found == "SIGABRT"
    assert "type_error.302" in caught.value.log[0]


def test_short_weights_fail_in_the_engines_words(tiny_packages, tmp_path):
    copy = relabel(tiny_packages(), tmp_path / "short", damage="truncate")
    with pytest.raises(
        EngineError, match=r"LoadPrivateWeight\(419\): weightFileSize - constSize >= variableSize false"
    ):
        read_package(copy.package)


def test_what_the_real_engine_would_pass_over_in_silence_is_an_error_here(copy):
    edit(copy, "context.json", lambda data: data.pop("sampler"))
    with pytest.raises(PackageError, match="sampler"):
        read_package(copy)


def test_a_missing_embedding_file_is_named(copy):
    next(copy.glob("*.embedding_weights")).unlink()
    with pytest.raises(PackageError, match="embedding_weights"):
        read_package(copy)


def test_a_link_that_leads_nowhere_is_no_file_of_the_package(copy):
    before = read_package(copy).file_bytes
    (copy / "loop").symlink_to("loop")
    assert read_package(copy).file_bytes == before
