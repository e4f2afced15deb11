"""What is hashed once: remembered until the file changes, through links, bounded, and never a reason to fail."""

import hashlib
import os

import pytest

from pytest_cannlm.models import hashing
from pytest_cannlm.models.hashing import file_sha256, still_known


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "weights"
    made.write_bytes(b"weights")
    return made


@pytest.fixture
def memo(tmp_path):
    return tmp_path / hashing.MEMO


@pytest.fixture
def hashed(monkeypatch, memo):
    """``hashed(file)``: whether the content had to be read, as by a new process."""
    read = []
    original = hashing._hash
    monkeypatch.setattr(hashing, "_hash", lambda file: read.append(file) or original(file))

    def ask(file):
        hashing._remembered.cache_clear()
        read.clear()
        assert file_sha256(file, memo=memo) == hashlib.sha256(file.read_bytes()).hexdigest()
        return bool(read)

    return ask


def test_it_is_remembered_across_processes_until_the_file_changes(file, hashed):
    assert hashed(file)
    assert not hashed(file)
    before = file.stat()
    file.write_bytes(b"changed")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if nothing had happened
    assert hashed(file)
    assert not hashed(file)


def test_another_name_of_the_same_file_is_the_same(file, hashed, tmp_path):
    os.link(file, tmp_path / "name")
    assert hashed(file)
    assert not hashed(tmp_path / "name")


def test_links_are_no_change_where_they_are_one_s_own(file, hashed, memo, tmp_path):
    hashed(file)
    with still_known([file], memo=memo):
        os.link(file, tmp_path / "link")
        (tmp_path / "link").unlink()
    assert not hashed(file)


@pytest.mark.parametrize("change", ["content", "another file", "none left", "not known before"])
def test_any_other_change_is_one(file, hashed, memo, tmp_path, change):
    if change != "not known before":
        hashed(file)
    with still_known([file], memo=memo):
        if change == "content":
            file.write_bytes(b"other!!")
        elif change == "another file":
            (tmp_path / "new").write_bytes(b"other!!")
            (tmp_path / "new").replace(file)
        elif change == "none left":
            file.unlink()
    if change == "none left":
        file.write_bytes(b"new one")
    assert hashed(file)


def test_a_memo_that_is_damaged_or_cannot_be_written_is_no_obstacle(file, hashed, memo, tmp_path):
    hashed(file)
    for entry in memo.iterdir():
        entry.write_text("damaged")
    assert hashed(file)
    (tmp_path / "blocked").write_text("a file")
    assert file_sha256(file, memo=tmp_path / "blocked") == file_sha256(file)


def test_the_memo_does_not_grow_for_ever(hashed, memo, tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "_MOST_ENTRIES", 10)
    files = [tmp_path / str(number) for number in range(40)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]))
        hashed(file)
    assert len(list(memo.iterdir())) <= 10
    assert not hashed(files[-1])
    for _ in range(20):
        files[0].write_bytes(os.urandom(8))
        assert hashed(files[0])
    assert not hashed(files[-1]), "one file has one entry, however often it changes"
