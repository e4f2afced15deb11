"""Damaged, foreign and incomplete weight files: all told at once, from headers alone."""

import json

import pytest
from tiny import tensors_of, tiny_llama, tiny_sharded, write_safetensors

from pytest_cannlm.errors import BadInputError
from pytest_cannlm.models.shards import find_tensors

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4967215360\n"


def shard(folder, number, of=3):
    return folder / f"model-{number:05d}-of-{of:05d}.safetensors"


def index(folder):
    return folder / "model.safetensors.index.json"


def change_index(folder, change):
    data = json.loads(index(folder).read_text())
    change(data)
    index(folder).write_text(json.dumps(data))


def problems(folder):
    with pytest.raises(BadInputError) as caught:
        find_tensors(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    return tiny_sharded(tmp_path / "model")


def test_sound_shards(folder):
    assert set(find_tensors(folder)) == set(tensors_of(tiny_llama() / "model.safetensors"))


def test_all_problems_are_told_at_once(folder):
    shard(folder, 1).write_bytes(POINTER)
    shard(folder, 2).write_bytes(shard(folder, 2).read_bytes()[:-100])
    shard(folder, 3).write_bytes(shard(folder, 3).read_bytes()[:50])
    text = problems(folder)
    assert "3 problems" in text
    assert "model-00001-of-00003.safetensors is a git-lfs pointer for 4,967,215,360 bytes" in text
    assert "model-00002-of-00003.safetensors is cut short" in text
    assert "model-00003-of-00003.safetensors is cut inside its header: 50 bytes there" in text


def test_trailing_bytes(folder):
    with shard(folder, 1).open("ab") as stream:
        stream.write(b"\0" * 7)
    assert "longer than its header says" in problems(folder)


def test_wrong_total_size(folder):
    change_index(folder, lambda data: data["metadata"].update(total_size=5))
    assert "total size of 5 bytes, the shards hold 722,176" in problems(folder)


def test_an_index_without_total_size_is_fine(folder):
    change_index(folder, lambda data: data.pop("metadata"))
    assert find_tensors(folder)


def test_shards_of_two_downloads(folder):
    shard(folder, 2).rename(shard(folder, 2, of=2))
    text = problems(folder)
    assert "model-00002-of-00003.safetensors is not there (the folder has model-00002-of-00002.safetensors)" in text


def test_an_index_that_mixes_sets(folder):
    shard(folder, 2).rename(shard(folder, 2, of=5))
    change_index(
        folder,
        lambda data: data.update(
            weight_map={
                name: file.replace("00002-of-00003", "00002-of-00005") for name, file in data["weight_map"].items()
            }
        ),
    )
    assert "shards of different downloads are mixed: sets of 3, 5 files" in problems(folder)


def test_an_index_that_names_too_few_files(folder):
    def drop(data):
        data["weight_map"] = {name: file for name, file in data["weight_map"].items() if "00003-of" not in file}
        del data["metadata"]

    change_index(folder, drop)
    assert "the index names 2 files of a set of 3" in problems(folder)


def test_a_tensor_that_the_index_promises_and_the_shard_lacks(folder):
    change_index(folder, lambda data: data["weight_map"].update({"lm_head.weight": shard(folder, 2).name}))
    expected = "the index puts tensor lm_head.weight into model-00002-of-00003.safetensors, which does not have it"
    assert expected in problems(folder)


def test_a_tensor_in_another_shard_than_the_index_says(folder):
    change_index(folder, lambda data: data["weight_map"].update({"model.norm.weight": shard(folder, 1).name}))
    assert "model.norm.weight into model-00001-of-00003.safetensors, but it is in" in problems(folder)


def test_a_tensor_stored_twice(folder):
    one, other = tensors_of(shard(folder, 1)), tensors_of(shard(folder, 2))
    name = next(iter(one))
    write_safetensors(shard(folder, 2), other | {name: one[name]})
    assert f"tensor {name} is stored twice" in problems(folder)


def test_a_tensor_that_the_index_does_not_list(folder):
    write_safetensors(shard(folder, 1), tensors_of(shard(folder, 1)) | {"stray": ("F32", (1,), bytes(4))})
    assert "does not list: stray" in problems(folder)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F4", "I8"])
def test_an_unknown_number_format_is_named(folder, dtype):
    tensors = tensors_of(shard(folder, 1))
    name, (_, shape, data) = next(iter(tensors.items()))
    write_safetensors(shard(folder, 1), tensors | {name: (dtype, shape, data)})
    assert f"number format {dtype} cannot be read" in problems(folder)
    assert name in problems(folder)


def test_a_zero_size_tensor_is_legal(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", (0, 3), b""), "b": ("F32", (1,), bytes(4))})
    assert find_tensors(tmp_path)["a"].read().shape == (0, 3)


def test_a_scalar_is_legal(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"a": ("F32", (), bytes(4))})
    assert find_tensors(tmp_path)["a"].read().shape == ()


@pytest.mark.parametrize(
    "header", [b'{"a": 1}', b"[1]", b"{not json", b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}']
)
def test_a_damaged_header(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    assert "model.safetensors" in problems(tmp_path)


def test_a_header_that_claims_gigabytes(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((1 << 29).to_bytes(8, "little") + b"{" + bytes(200))
    assert "cut inside its header" in problems(tmp_path)


def test_one_file_needs_no_index(tmp_path):
    write_safetensors(tmp_path / "weights.safetensors", {"a": ("F32", (1,), bytes(4))})
    assert list(find_tensors(tmp_path)) == ["a"]


def test_several_files_need_one(folder):
    index(folder).unlink()
    assert "no index" in problems(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_an_index_may_not_point_out_of_the_folder(folder, name):
    change_index(folder, lambda data: data["weight_map"].update({"model.norm.weight": name}))
    assert "outside the folder" in problems(folder)


@pytest.mark.parametrize("data", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map(folder, data):
    index(folder).write_text(json.dumps(data))
    assert "weight_map" in problems(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_single_file_beside_shards_is_refused(folder, indexed):
    (folder / "model.safetensors").write_bytes((tiny_llama() / "model.safetensors").read_bytes())
    if not indexed:
        index(folder).unlink()
    assert "model.safetensors and model-00001-of-00003.safetensors" in problems(folder)


def test_an_index_with_an_empty_map(folder):
    change_index(folder, lambda data: data["weight_map"].clear())
    assert "the index lists no tensor" in problems(folder)
