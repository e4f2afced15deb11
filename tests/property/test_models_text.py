"""Properties of tokenizer and detokenizer, and of partial reads."""

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_llama, write_safetensors
from tokenizers import Tokenizer as Library

from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.detokenize import BYTE_LEVEL
from pytest_cannlm.models.shards import find_tensors
from pytest_cannlm.models.tokenizer import Tokenizer

ids = st.lists(st.integers(0, 511), max_size=60)


@cache
def tokenizer():
    return Tokenizer(open_checkpoint(tiny_llama()).tokenizer())


@cache
def library():
    return Library.from_file(str(tiny_llama() / "tokenizer.json"))


@given(ids)
def test_streaming_gives_what_the_library_decodes_at_once(tokens):
    stream = tokenizer().stream()
    streamed = "".join([stream.feed(token) for token in tokens]) + stream.finish()
    assert streamed == library().decode(tokens) == tokenizer().decode(tokens)


@given(ids)
def test_streamed_text_never_ends_inside_a_character(tokens):
    stream, so_far = tokenizer().stream(), ""
    for count, token in enumerate(tokens, 1):
        so_far += stream.feed(token)
        assert library().decode(tokens[:count]).startswith(so_far)


@given(st.text(max_size=200))
def test_typed_text_survives_and_never_becomes_a_special_token(text):
    tokens = tokenizer().encode(text, special=False)
    assert tokenizer().decode(tokens) == text
    assert not set(tokens) & set(tokenizer().special_tokens.values())


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "user\n", "hello ", "🤯"]), max_size=12))
def test_special_texts_are_one_token_each(parts):
    tokens = tokenizer().encode("".join(parts))
    special = set(tokenizer().special_tokens.values())
    assert sum(token in special for token in tokens) == sum(part.startswith("<|") for part in parts)


def test_the_byte_alphabet_is_a_bijection():
    assert sorted(BYTE_LEVEL.values()) == list(range(256))
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(BYTE_LEVEL) == set(ByteLevel.alphabet())


@given(st.integers(1, 9), st.integers(1, 5), st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 99))
def test_partial_reads_equal_slices_of_the_whole(tmp_path_factory, rows, columns, start, stop, seed):
    folder = tmp_path_factory.mktemp("model")
    values = np.random.default_rng(seed).integers(0, 1 << 16, rows * columns).astype("<u2")
    write_safetensors(folder / "model.safetensors", {"a": ("BF16", (rows, columns), values.tobytes())})
    tensor = find_tensors(folder)["a"]
    whole = (values.astype(np.uint32) << 16).view(np.float32).reshape(rows, columns)
    np.testing.assert_array_equal(tensor.read(), whole)
    np.testing.assert_array_equal(tensor.read(slice(start, stop)), whole[start:stop])
