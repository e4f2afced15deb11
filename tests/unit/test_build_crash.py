"""A build that is killed leaves no broken entry and no rubbish, and the next run goes on behind the last whole step."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, locate_package, pipeline
from pytest_cannlm.build.cache import BuildCache
from pytest_cannlm.build.package import verify
from pytest_cannlm.locking import locked
from pytest_cannlm.progress import SilentProgress

QUIET = SilentProgress()
STEPS = ["quantize", "export", "convert", "assemble"]
BUILDER = """
import sys
from pathlib import Path

from pytest_cannlm.build import Recipe, build
from pytest_cannlm.progress import SilentProgress

build  # imported: from here on the clock runs
print("ready", flush=True)
build(Recipe("tiny", Path(sys.argv[1]), context=128), cache=Path(sys.argv[2]), progress=SilentProgress())
"""


def recipe():
    return Recipe("tiny", tiny_llama(), context=128)


def partials(cache: Path) -> list[Path]:
    return list((cache / "builds").glob("*/*.partial"))


def kill_after(seconds: float, cache: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tiny_llama()), str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(seconds)
        process.kill()


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment(seed, tmp_path):
    began = time.monotonic()
    build(recipe(), cache=tmp_path / "measured", progress=QUIET)
    kill_after(random.Random(seed).uniform(0, time.monotonic() - began), tmp_path)
    entries = [seal.parent for seal in (tmp_path / "builds").glob("*/*/entry.json")]
    whole = {entry.parent.name for entry in entries if entry.suffix != ".partial"}
    built = build(recipe(), cache=tmp_path, progress=QUIET)
    assert {result.step for result in built.steps if result.cached} == whole
    verify(locate_package(built.package))
    assert not partials(tmp_path)


@pytest.mark.parametrize("last", STEPS[:-1])
def test_the_next_run_goes_on_behind_the_last_whole_step(last, tmp_path, monkeypatch):
    after = STEPS[STEPS.index(last) + 1]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Build, f"_{after}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(), cache=tmp_path, progress=QUIET)
    assert not partials(tmp_path)
    steps = build(recipe(), cache=tmp_path, progress=QUIET).steps
    assert [step.step for step in steps if step.cached] == STEPS[: STEPS.index(after)]


def test_what_dead_processes_left_goes_whatever_is_built_next(tmp_path):
    left = tmp_path / "quantize" / "of-a-dead-process.partial"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    BuildCache(tmp_path).obtain("export", "another", lambda folder: (folder / "file").touch(), QUIET)
    assert not left.exists()


def test_what_a_living_process_makes_stays(tmp_path):
    made = tmp_path / "quantize" / "held.partial"
    made.mkdir(parents=True)
    with locked(made.with_suffix(".lock"), "", QUIET):
        BuildCache(tmp_path).obtain("export", "another", lambda folder: (folder / "file").touch(), QUIET)
    assert made.exists()


def test_a_copy_that_fails_can_be_repeated(tmp_path, monkeypatch):
    copied = []

    def disk_full(source, target):
        copied.append(source)
        if len(copied) == 3:
            raise OSError(28, "No space left on device")
        return target.write_bytes(source.read_bytes())

    out = tmp_path / "out"
    monkeypatch.setattr(shutil, "copyfile", disk_full)
    with pytest.raises(OSError, match="No space"):
        build(recipe(), cache=tmp_path / "cache", progress=QUIET, out=out)
    monkeypatch.undo()
    assert build(recipe(), cache=tmp_path / "cache", progress=QUIET, out=out).manifest.is_file()


@pytest.mark.parametrize("full", [False, True], ids=["copied", "disk full"])
def test_what_somebody_puts_into_the_output_during_the_build_stays(tmp_path, monkeypatch, full):
    out = tmp_path / "out"
    copy = shutil.copyfile

    def meanwhile(source, target):
        out.mkdir(exist_ok=True)
        (out / "notes.txt").write_text("mine")
        if full:
            raise OSError(28, "No space left on device")
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", meanwhile)
    with pytest.raises(OSError, match="No space" if full else "not empty"):
        build(recipe(), cache=tmp_path / "cache", progress=QUIET, out=out)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["out"]
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
