"""Whether a folder was opened: every kind of opening, by every kind of opener, under every watcher that sees here."""

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cannlm.errors import NotObservable
from pytest_cannlm.harness.watching import (
    CHANGED,
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
    (made / "empty").mkdir()
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


def through_a_hard_link(folder):
    os.link(folder / "model.omc", folder.parent / "hard")
    (folder.parent / "hard").read_bytes()


OPENINGS = {
    read: "model.omc",
    read_inner: "inner/x.weight",
    listing: ".",
    mapping: "model.omc",
    child: "model.omc",
    grandchild: "model.omc",
    read_and_delete: "model.omc",
    through_a_link: "model.omc",
    through_a_hard_link: "model.omc",
}


def beside(folder):
    made = folder.parent / "beside"
    made.write_bytes(b"x")
    return made


CHANGES = {
    "a file is deleted": (lambda folder: (folder / "model.omc").unlink(), "model.omc"),
    "a folder is deleted": (lambda folder: shutil.rmtree(folder / "inner"), "inner"),
    "an empty folder is deleted": (lambda folder: (folder / "empty").rmdir(), "empty"),
    "a file is cut": (lambda folder: os.truncate(folder / "model.omc", 1), "model.omc"),
    "a file is moved away": (lambda folder: (folder / "model.omc").rename(folder.parent / "away"), "model.omc"),
    "a file is moved over one": (lambda folder: beside(folder).rename(folder / "model.omc"), "model.omc"),
    "a file is moved into it": (lambda folder: beside(folder).rename(folder / "inner" / "new"), "inner"),
    "a folder is made": (lambda folder: (folder / "new").mkdir(), "."),
    "a file is written there": (lambda folder: (folder / "new").write_bytes(b"x"), "."),
    "a file is linked": (lambda folder: os.link(folder / "model.omc", folder.parent / "hard"), "model.omc"),
    "a file gets other rights": (lambda folder: (folder / "model.omc").chmod(0o400), "model.omc"),
    "a file gets other times": (lambda folder: os.utime(folder / "model.omc", (1, 1)), "model.omc"),
    "the folder is moved": (lambda folder: folder.rename(folder.with_name("away")), "."),
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
    assert {name.removesuffix(CHANGED) for name in opened} >= {OPENINGS[opening]}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [InotifyWatcher, AccessTimeWatcher])
def test_every_change_is_noticed(folder, kind, change):
    if kind is InotifyWatcher and sys.platform != "linux":
        pytest.skip("inotify is Linux's own")
    started(kind(folder))
    act, where = CHANGES[change]
    with watching(kind(folder)) as opened:
        act(folder)
    changed = {name.removesuffix(CHANGED) for name in opened if name.endswith(CHANGED)}
    # what the kernel tells by its name is to others a change of the folder that it lies in
    assert any(name == where or Path(name).parent == Path(where) for name in changed), opened


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
def test_more_openings_than_the_kernel_counts_are_noticed(folder):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with watching(InotifyWatcher(folder)) as opened:
        for number in range(most // 2 + 2):  # alternating, because the same event twice in a row is one
            os.close(os.open(folder / ("model.omc" if number % 2 else "inner/x.weight"), os.O_RDONLY))
    assert "more than could be counted" in opened


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
