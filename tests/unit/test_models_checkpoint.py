"""open_checkpoint: what is read, what is refused, and that both file formats give the same model."""

import gzip
import hashlib
import json
import os
import re
import shutil

import numpy as np
import pytest
from samples import samples_dir
from tiny import bfloat16, tensors_of, tiny_copy, tiny_gguf, tiny_llama, tiny_sharded, write_safetensors

from pytest_cannlm.errors import BadInputError, CannlmError, UnsupportedModelError
from pytest_cannlm.models.checkpoint import checkpoint_digest, open_checkpoint
from pytest_cannlm.models.huggingface import CheckpointWarning
from pytest_cannlm.models.shards import find_tensors
from pytest_cannlm.models.tensors import EMBEDDING, LM_HEAD, expected_shapes, parameter_count
from pytest_cannlm.models.tokenizer import Tokenizer

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def with_head(folder, values, *, tied):
    """A copy of the checkpoint that stores an lm_head of its own."""
    tiny_copy(folder, tie_word_embeddings=tied)
    tensors = tensors_of(folder / "model.safetensors")
    tensors[LM_HEAD] = ("BF16", values.shape, bfloat16(values))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def embedding():
    return open_checkpoint(tiny_llama()).read(EMBEDDING)


# Reading.


def test_a_folder_gives_canonical_tensors_and_float32():
    with open_checkpoint(tiny_llama()) as checkpoint:
        assert checkpoint.name == "tiny-llama"
        assert set(checkpoint.tensors) == set(expected_shapes(checkpoint.config))
        info = checkpoint.tensors[Q_PROJ]
        assert (info.shape, info.dtype, info.nbytes) == ((128, 128), "bf16", 2 * 128 * 128)
        weights = checkpoint.read(Q_PROJ)
        assert weights.dtype == np.float32
        assert weights.flags.c_contiguous
        assert 0.05 < weights.std() < 0.15
        assert checkpoint.config.eos_token_ids == (0, 2)


def test_parameters_count_a_tied_embedding_once(tmp_path):
    tied = open_checkpoint(tiny_llama()).config
    untied = open_checkpoint(with_head(tmp_path / "untied", embedding() + 1, tied=False)).config
    assert parameter_count(tied) == sum(np.prod(shape) for shape in expected_shapes(tied).values())
    assert parameter_count(untied) == parameter_count(tied) + 512 * 128


def test_number_formats(tmp_path):
    folder = tiny_copy(tmp_path / "model", without=("torch_dtype",))
    values = embedding()
    for dtype, numpy in (("F32", "<f4"), ("F16", "<f2"), ("F64", "<f8")):
        tensors = tensors_of(tiny_llama() / "model.safetensors")
        tensors[EMBEDDING] = (dtype, values.shape, values.astype(numpy).tobytes())
        write_safetensors(folder / "model.safetensors", tensors)
        checkpoint = open_checkpoint(folder)
        np.testing.assert_allclose(checkpoint.read(EMBEDDING), values, rtol=1e-3, atol=1e-6)
        assert checkpoint.config.torch_dtype == {"F32": "float32", "F16": "float16", "F64": "float64"}[dtype]


def test_shards_give_the_same_as_one_file(tmp_path):
    sharded, single = open_checkpoint(tiny_sharded(tmp_path / "model")), open_checkpoint(tiny_llama())
    for name in single.tensors:
        np.testing.assert_array_equal(sharded.read(name), single.read(name))


def test_gguf_gives_the_same_as_the_folder(tmp_path):
    file = tiny_gguf(tmp_path / "Tiny-Llama.F32.gguf")
    with open_checkpoint(file) as ours, open_checkpoint(tiny_llama()) as original:
        assert ours.name == "Tiny-Llama"
        assert set(ours.tensors) == set(original.tensors)
        for name, info in original.tensors.items():
            assert ours.tensors[name].shape == info.shape
            np.testing.assert_array_equal(ours.read(name), original.read(name))
        theirs = original.config
        assert ours.config.eos_token_ids == theirs.eos_token_ids
        for field in ("layers", "heads", "kv_heads", "head_dim", "rope", "rms_norm_eps", "bos_token_id"):
            assert getattr(ours.config, field) == getattr(theirs, field)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
def test_gguf_row_ranges_equal_the_whole(tmp_path, kind):
    with open_checkpoint(tiny_gguf(tmp_path / "model.gguf", kind=kind)) as checkpoint:
        assert checkpoint.tensors[Q_PROJ].dtype == kind.lower()
        for name in (Q_PROJ, "model.layers.0.self_attn.k_proj.weight", EMBEDDING, "model.norm.weight"):
            whole = checkpoint.read(name)
            part = checkpoint.read(name, slice(5, 40))
            np.testing.assert_array_equal(part, whole[5:40])
            assert part.dtype == np.float32
            assert part.flags.writeable
            assert part.flags.c_contiguous


def test_only_contiguous_rows_of_a_folder():
    with pytest.raises(ValueError, match="contiguous"):
        open_checkpoint(tiny_llama()).read(Q_PROJ, slice(0, 10, 2))


def test_an_unknown_tensor_is_a_key_error(tmp_path):
    with pytest.raises(KeyError):
        open_checkpoint(tiny_llama()).read(LM_HEAD)
    with pytest.raises(KeyError):
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf")).read(LM_HEAD)


def test_a_file_that_shrinks_while_it_is_used_is_told(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    checkpoint = open_checkpoint(folder)
    os.truncate(folder / "model.safetensors", 4000)
    with pytest.raises(BadInputError, match="shorter"):
        checkpoint.read("model.norm.weight")


def test_names_come_from_the_hub_cache_layout(tmp_path):
    folder = tiny_copy(tmp_path / "models--org--Nice Name" / "snapshots" / ("ab" * 20))
    assert open_checkpoint(folder).name == "Nice-Name"
    assert open_checkpoint(tiny_copy(tmp_path / ("cd" * 20), _name_or_path="org/Other")).name == "Other"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("tiny-q4_k_m.gguf", "tiny"),
        ("tiny.bf16.gguf", "tiny"),
        ("my model (2).gguf", "my-model-2"),
        ("no-suffix", "no-suffix"),
        ("模型.gguf", "model"),
    ],
)
def test_names_of_gguf_files_lose_their_quantization_and_fit_file_names(tmp_path, file, name):
    assert open_checkpoint(tiny_gguf(tmp_path / file)).name == name


# Identity.


def test_digest_of_a_gguf_file_is_its_sha256(tmp_path):
    file = tiny_gguf(tmp_path / "model.gguf")
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert open_checkpoint(file).digest() == checkpoint_digest(file) == expected


def test_digest_of_a_folder_changes_with_every_part(tmp_path):
    same = shutil.copytree(tiny_llama(), tmp_path / "same")
    digests = {open_checkpoint(tiny_llama()).digest(), open_checkpoint(same).digest()}
    assert len(digests) == 1
    other_config = tiny_copy(tmp_path / "config", max_position_embeddings=1024)
    other_tokenizer = tiny_copy(tmp_path / "tokenizer")
    (other_tokenizer / "chat_template.jinja").write_text("{{ messages }}")
    other_weights = with_head(tmp_path / "weights", embedding(), tied=True)
    digests |= {open_checkpoint(folder).digest() for folder in (other_config, other_tokenizer, other_weights)}
    assert len(digests) == 4


# Not a model at all: recognised by content, named for what it is.


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 987654321\n", "987,654,321"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
        (b"\n <HTML>", "HTML"),
        (gzip.compress(b"GGUF" + bytes(100), mtime=0), "gzip"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"IMOD\x00\x01\x00\x00" + bytes(300), "compiled offline model"),
        (b"\x08\x07\x12\x07pytorch" + bytes(30), "ONNX"),
        (b'{"model_type": "llama"}', "JSON"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"FUGG" + bytes(40), "byte order"),
        (b"ggml" + bytes(40), "before GGUF"),
        (b"\x00\x01\x02\x03" * 20, "no known kind"),
        (b"x", "no known kind"),
    ],
)
@pytest.mark.parametrize("name", ["model.gguf", "model.bin"])
def test_another_file_is_named_for_what_it_is(tmp_path, name, data, words):
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(BadInputError) as caught:
        open_checkpoint(file)
    assert words in str(caught.value)
    assert caught.value.file == str(file)
    assert caught.value.remedy


def test_a_single_safetensors_file_asks_for_its_folder():
    with pytest.raises(BadInputError, match="Give the folder"):
        open_checkpoint(tiny_llama() / "model.safetensors")


def test_a_missing_path(tmp_path):
    with pytest.raises(BadInputError, match="no such file"):
        open_checkpoint(tmp_path / "nothing.gguf")


def test_real_files_of_other_kinds_are_recognised():
    folder = samples_dir()
    if folder is None:
        pytest.skip("needs the sample files")
    for pattern, words in (("om/*.om*", "compiled offline model"), ("onnx_ort/*.onnx", "ONNX"), ("**/*.gz", "gzip")):
        files = list(folder.glob(pattern))
        assert files
        for file in files:
            with pytest.raises(BadInputError, match=words):
                open_checkpoint(file)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_a_gguf_file_that_is_cut_short(tmp_path, share):
    file = tiny_gguf(tmp_path / "model.gguf")
    os.truncate(file, max(4, int(file.stat().st_size * share)))
    with pytest.raises(BadInputError, match="cut short or damaged"):
        open_checkpoint(file)


def test_a_gguf_file_with_noise_in_its_metadata(tmp_path):
    file = tiny_gguf(tmp_path / "model.gguf")
    data = bytearray(file.read_bytes())
    random = np.random.default_rng(3)
    for start in range(4, 2000, 97):
        damaged = bytearray(data)
        damaged[start : start + 24] = random.bytes(24)
        file.write_bytes(damaged)
        try:
            open_checkpoint(file).tokenizer()
        except CannlmError:
            continue


# GGUF: what is refused.


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"general.architecture": "mamba"}, "general.architecture"),
        ({"general.architecture": "chatglm"}, "general.architecture"),
        ({"general.architecture": "glm"}, "general.architecture"),
        ({"general.type": "adapter"}, "general.type"),
        ({"split.count": 2}, "split.count"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type"),
        ({"llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.factor"),
        ({"llama.attention.sliding_window": 4096}, "llama.attention.sliding_window"),
        ({"llama.rope.dimension_count": 16}, "llama.rope.dimension_count"),
    ],
)
def test_gguf_features_that_are_refused_by_name(tmp_path, metadata, field):
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata=metadata))
    assert caught.value.field == field


def test_gguf_without_rope_base_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="no safe default") as caught:
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata={"llama.rope.freq_base": None}))
    assert caught.value.field == "llama.rope.freq_base"


def test_gguf_with_llama3_rope_factors_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="llama3"):
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", tensors={"rope_freqs.weight": np.ones(16, "f4")}))


def test_gguf_with_a_bias_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.bias"):
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", tensors={"blk.0.ffn_up.bias": np.ones(256, "f4")}))


def test_gguf_with_some_of_the_attention_biases_only_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"missing tensor model\.layers\.1\.self_attn\.q_proj\.bias"):
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", tensors={"blk.0.attn_q.bias": np.ones(128, "f4")}))


def test_gguf_whose_shapes_contradict_its_metadata(tmp_path):
    with pytest.raises(BadInputError) as caught:
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata={"llama.feed_forward_length": 128}))
    assert str(caught.value).count("mlp.") == 6


# lm_head: tied, absent, or listed but not there.


def test_tied_and_absent_uses_the_embedding():
    checkpoint = open_checkpoint(tiny_llama())
    assert checkpoint.config.tie_word_embeddings
    assert LM_HEAD not in checkpoint.tensors


def test_tied_and_stored_with_equal_values_is_silent(tmp_path):
    checkpoint = open_checkpoint(with_head(tmp_path / "model", embedding(), tied=True))
    assert LM_HEAD not in checkpoint.tensors


def test_tied_but_stored_with_other_values_is_told_by_name(tmp_path):
    with pytest.warns(CheckpointWarning, match=r"lm_head\.weight in model\.safetensors differs"):
        checkpoint = open_checkpoint(with_head(tmp_path / "model", embedding() + 1, tied=True))
    assert LM_HEAD not in checkpoint.tensors


def test_untied_and_stored(tmp_path):
    checkpoint = open_checkpoint(with_head(tmp_path / "model", embedding() + 1, tied=False))
    assert checkpoint.read(LM_HEAD).shape == (512, 128)


def test_untied_but_absent_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"missing tensor lm_head\.weight"):
        open_checkpoint(tiny_copy(tmp_path / "model", tie_word_embeddings=False))


def test_every_difference_to_the_configuration_is_told_at_once(tmp_path):
    with pytest.raises(BadInputError) as caught:
        open_checkpoint(tiny_copy(tmp_path / "model", num_hidden_layers=3, intermediate_size=192))
    text = str(caught.value)
    assert text.count("missing tensor model.layers.2.") == 9
    assert "model.layers.0.mlp.gate_proj.weight has shape [256, 128], the configuration describes [192, 128]" in text


def test_surplus_weights_are_refused_but_old_buffers_and_empty_tensors_are_not(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    tensors = tensors_of(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (16,), bytes(64))
    tensors["model.nothing"] = ("F32", (0, 4), b"")
    write_safetensors(folder / "model.safetensors", tensors)
    assert open_checkpoint(folder).config.layers == 2
    tensors["model.layers.0.self_attn.q_proj.bias"] = ("BF16", (128,), bytes(256))
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(UnsupportedModelError, match=r"q_proj\.bias"):
        open_checkpoint(folder)


# Folders that are no checkpoint.


def test_a_folder_without_config_names_the_gguf_files_in_it(tmp_path):
    tiny_gguf(tmp_path / "model.gguf")
    with pytest.raises(BadInputError, match=r"model\.gguf"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInputError, match="no weights"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(BadInputError, match="pickles"):
        open_checkpoint(folder)


def test_a_tokenizer_with_ids_beyond_the_embedding(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append(data["added_tokens"][0] | {"id": 512, "content": "<extra>"})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(BadInputError, match="id 512"):
        open_checkpoint(folder).tokenizer()


# GGUF of other families.


@pytest.mark.parametrize("name", ["tiny-llama-bias", "tiny-qwen2", "tiny-qwen2-untied", "tiny-qwen3"])
def test_gguf_of_every_family_gives_the_same_as_the_folder(tiny_checkpoint, tmp_path, name):
    folder = tiny_checkpoint(name)
    with open_checkpoint(tiny_gguf(tmp_path / "m.gguf", checkpoint=folder)) as ours, open_checkpoint(folder) as theirs:
        assert set(ours.tensors) == set(theirs.tensors)
        for tensor in theirs.tensors:
            np.testing.assert_array_equal(ours.read(tensor), theirs.read(tensor))
        for field in ("family", "head_dim", "rope", "qkv_bias", "output_bias", "qk_norm", "tie_word_embeddings"):
            assert getattr(ours.config, field) == getattr(theirs.config, field)
        assert Tokenizer(ours.tokenizer()).id_limit == Tokenizer(theirs.tokenizer()).id_limit == 512


def test_gguf_of_qwen2_without_its_biases_is_refused(tmp_path):
    metadata = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 2,
        "qwen2.context_length": 2048,
        "qwen2.embedding_length": 128,
        "qwen2.feed_forward_length": 256,
        "qwen2.attention.head_count": 4,
        "qwen2.attention.head_count_kv": 2,
        "qwen2.attention.layer_norm_rms_epsilon": 1e-5,
        "qwen2.rope.freq_base": 10000.0,
    }
    with pytest.raises(BadInputError, match=r"missing tensor model\.layers\.0\.self_attn\.q_proj\.bias"):
        open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata=metadata))


def test_gguf_with_stretched_rope_names_what_it_cannot_read(tiny_checkpoint, tmp_path):
    metadata = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    with pytest.raises(UnsupportedModelError, match="RoPE scaling"):
        open_checkpoint(tiny_gguf(tmp_path / "m.gguf", checkpoint=tiny_checkpoint("tiny-qwen2"), metadata=metadata))


# Families whose folders keep rows in another order, or several matrices as one.


def test_interleaved_rows_are_read_in_half_split_order(tiny_checkpoint):
    """Half of each head of 32 is rotated: rows 0 and 1 are a pair, and become rows 0 and 16."""
    folder = tiny_checkpoint("tiny-glm")
    name = "model.layers.1.self_attn.k_proj.weight"
    stored = find_tensors(folder)[name].read()
    with open_checkpoint(folder) as checkpoint:
        read = checkpoint.read(name)
        bias = checkpoint.read("model.layers.1.self_attn.k_proj.bias")
        pieces = [checkpoint.read(name, slice(start, start + 7)) for start in range(0, len(read), 7)]
        empty = checkpoint.read(name, slice(3, 3))
    head = read[32:]
    for ours, theirs in ((0, 0), (16, 1), (1, 2), (17, 3), (8, 16), (15, 23), (24, 24), (31, 31)):
        np.testing.assert_array_equal(head[ours], stored[32 + theirs])
    np.testing.assert_array_equal(np.concatenate(pieces), read)
    assert empty.shape == (0, 96)
    assert bias[1] == find_tensors(folder)["model.layers.1.self_attn.k_proj.bias"].read()[2]


def test_values_keep_their_rows(tiny_checkpoint):
    name = "model.layers.0.self_attn.v_proj.weight"
    folder = tiny_checkpoint("tiny-glm")
    np.testing.assert_array_equal(open_checkpoint(folder).read(name), find_tensors(folder)[name].read())


def test_a_fused_projection_is_read_as_two(tiny_checkpoint):
    folder = tiny_checkpoint("tiny-glm")
    fused = find_tensors(folder)["model.layers.0.mlp.gate_up_proj.weight"]
    with open_checkpoint(folder) as checkpoint:
        gate, up = (checkpoint.read(f"model.layers.0.mlp.{part}_proj.weight") for part in ("gate", "up"))
        info = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
        rows = checkpoint.read("model.layers.0.mlp.up_proj.weight", slice(3, 5))
    np.testing.assert_array_equal(np.concatenate([gate, up]), fused.read())
    np.testing.assert_array_equal(rows, up[3:5])
    assert (info.shape, info.nbytes) == ((160, 96), fused.nbytes // 2)


def test_a_fused_projection_of_the_wrong_size_is_told(tiny_checkpoint, tmp_path):
    folder = tmp_path / "glm"
    shutil.copytree(tiny_checkpoint("tiny-glm"), folder)
    tensors = tensors_of(folder / "model.safetensors")
    name = "model.layers.0.mlp.gate_up_proj.weight"
    for rows, message in ((318, r"gate_proj\.weight has shape \[159, 96\]"), (319, r"missing tensor .*gate_proj")):
        tensors[name] = ("BF16", (rows, 96), bytes(2 * rows * 96))
        write_safetensors(folder / "model.safetensors", tensors)
        with pytest.raises(BadInputError, match=message):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("tiny-qwen2", "model.layers.1.self_attn.v_proj.bias"),
        ("tiny-qwen3", "model.layers.2.self_attn.k_norm.weight"),
        ("tiny-qwen2-untied", "lm_head.weight"),
        ("tiny-llama-bias", "model.layers.0.self_attn.o_proj.bias"),
    ],
)
def test_a_missing_part_of_a_family_is_told(tiny_checkpoint, tmp_path, name, missing):
    folder = tmp_path / name
    shutil.copytree(tiny_checkpoint(name), folder)
    tensors = tensors_of(folder / "model.safetensors")
    del tensors[missing]
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(BadInputError, match=f"missing tensor {re.escape(missing)}"):
        open_checkpoint(folder)


def test_weights_that_another_family_has_are_refused(tiny_checkpoint, tmp_path):
    folder = tmp_path / "qwen3"
    shutil.copytree(tiny_checkpoint("tiny-qwen3"), folder)
    tensors = tensors_of(folder / "model.safetensors")
    tensors["model.layers.0.post_mlp_layernorm.weight"] = ("BF16", (96,), bytes(192))
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(UnsupportedModelError, match="post_mlp_layernorm"):
        open_checkpoint(folder)
