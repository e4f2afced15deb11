"""Whether a folder was opened: every kind of opening, by every kind of opener, under every watcher that sees here."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cannlm.errors import NotObservable
from pytest_cannlm.harness.watching import (
    MOVED,
    AccessTimeWatcher,
    AuditWatcher,
    InotifyWatcher,
    watchers_of,
    watching,
)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "package"
    (made / "inner").mkdir(parents=True)
    (made / "model.omc").write_bytes(b"model")
    (made / "inner" / "x.weight").write_bytes(b"weights")
    return made


def read(folder):
    (folder / "model.omc").read_bytes()


def read_inner(folder):
    (folder / "inner" / "x.weight").read_bytes()


def listing(folder):
    os.listdir(folder)  # noqa: PTH208 - what is tested


def mapping(folder):
    with (folder / "model.omc").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[0] == ord("m")


def child(folder):
    subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1]).read()", folder / "model.omc"], check=True)


def grandchild(folder):
    inner = "import sys; open(sys.argv[1]).read()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, *sys.argv[1:]])"
    subprocess.run([sys.executable, "-c", code, folder / "model.omc"], check=True)


def read_and_delete(folder):
    read(folder)
    (folder / "model.omc").unlink()


def through_a_link(folder):
    link = folder.parent / "link"
    link.symlink_to(folder / "model.omc")
    link.read_bytes()


OPENINGS = {
    read: "model.omc",
    read_inner: "inner/x.weight",
    listing: ".",
    mapping: "model.omc",
    child: "model.omc",
    grandchild: "model.omc",
    read_and_delete: "model.omc",
    through_a_link: "model.omc",
}


def started(watcher):
    try:
        with watcher:
            pass
    except NotObservable as error:
        pytest.skip(str(error))
    return type(watcher)


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.__name__)
@pytest.mark.parametrize("kind", [InotifyWatcher, AccessTimeWatcher])
def test_every_opening_is_noticed(folder, kind, opening):
    if kind is InotifyWatcher and sys.platform != "linux":
        pytest.skip("inotify is Linux's own")
    started(kind(folder))
    with watching(kind(folder)) as opened:
        opening(folder)
    assert {name.removesuffix(MOVED) for name in opened} >= {OPENINGS[opening]}


@pytest.mark.parametrize("kind", [InotifyWatcher, AccessTimeWatcher, AuditWatcher])
def test_what_is_no_opening_is_none(folder, kind, tmp_path):
    if kind is InotifyWatcher and sys.platform != "linux":
        pytest.skip("inotify is Linux's own")
    started(kind(folder))
    (tmp_path / "package.txt").write_bytes(b"beside it")
    with watching(kind(folder)) as opened:
        assert (folder / "model.omc").stat().st_size == 5
        assert folder.exists()
        (tmp_path / "package.txt").read_bytes()
        os.listdir(tmp_path)  # noqa: PTH208 - beside it
    assert opened == set()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's own")
def test_moving_the_folder_away_counts(folder):
    with watching(InotifyWatcher(folder)) as opened:
        folder.rename(folder.with_name("away"))
    assert opened == {"." + MOVED}


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's own")
def test_readers_of_the_original_do_not_count(folder, tmp_path):
    original = tmp_path / "original"
    original.write_bytes(b"x")
    os.link(original, folder / "linked")
    with watching(InotifyWatcher(folder)) as opened:
        original.read_bytes()
    assert opened == set()


def test_access_times_of_linked_files_are_their_own(folder, tmp_path):
    started(AccessTimeWatcher(folder))
    original = tmp_path / "original"
    original.write_bytes(b"x")
    os.link(original, folder / "linked")
    before = original.stat().st_atime_ns
    with watching(AccessTimeWatcher(folder)) as opened:
        assert original.stat().st_atime_ns >= before, "the original is not set back"
        original.read_bytes()
    assert opened == set()
    assert (folder / "linked").read_bytes() == b"x"


def test_a_file_that_is_gone_counts(folder):
    started(AccessTimeWatcher(folder))
    with watching(AccessTimeWatcher(folder)) as opened:
        (folder / "model.omc").unlink()
    assert "model.omc" + MOVED in opened


@pytest.mark.parametrize("opening", [read, read_inner, listing, mapping, read_and_delete, through_a_link])
def test_python_tells_of_its_own_openings(folder, opening):
    with watching(AuditWatcher(folder)) as opened:
        opening(folder)
    assert OPENINGS[opening] in opened


def test_python_tells_nothing_after_the_end(folder):
    watcher = AuditWatcher(folder)
    with watcher, Path(os.devnull).open("rb"), os.scandir(folder):
        pass
    read(folder)
    assert watcher.opened() == {"."}


def test_a_file_system_without_access_times_is_not_observable(folder, monkeypatch):
    monkeypatch.setattr("os.listdir", lambda folder: [])  # as if listing had left no trace
    with pytest.raises(NotObservable, match="keeps no times of access"), watching(AccessTimeWatcher(folder)):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's own")
def test_a_silent_or_exhausted_inotify_is_not_observable(folder, monkeypatch):
    monkeypatch.setattr("inotify_simple.INotify.read", lambda self, timeout: [])
    with pytest.raises(NotObservable, match="silent"), watching(InotifyWatcher(folder)):
        pass

    def exhausted(self, place, mask):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inotify_simple.INotify.add_watch", exhausted)
    with pytest.raises(NotObservable, match="No space left on device"), watching(InotifyWatcher(folder)):
        pass


@pytest.mark.parametrize(
    ("platform", "in_process", "kinds"),
    [
        ("linux", True, [InotifyWatcher]),
        ("linux", False, [InotifyWatcher]),
        ("darwin", False, [AccessTimeWatcher]),
        ("win32", True, [AccessTimeWatcher, AuditWatcher]),
    ],
)
def test_watchers_of_a_platform(folder, platform, in_process, kinds):
    assert [type(one) for one in watchers_of(folder, in_process=in_process, platform=platform)] == kinds
