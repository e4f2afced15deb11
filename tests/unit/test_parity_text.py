import gzip

import pytest
from samples import samples_dir

from pytest_cannlm.errors import UsageError
from pytest_cannlm.parity.text import cut_windows, standard_text


def test_the_text_has_prose_code_and_chinese():
    text = standard_text()
    assert 5000 < len(text) < 8000
    for piece in ("def moving_average", "#include <stdint.h>", "| day | distance |", "图书馆", '"A map,"'):
        assert piece in text


@pytest.mark.skipif(samples_dir() is None, reason="needs the sample tokenizers")
@pytest.mark.parametrize("name", ["qwen3", "deepseek_v4"])
def test_the_text_is_long_enough_for_real_vocabularies(name):
    tokenizers = pytest.importorskip("tokenizers")
    packed = (samples_dir() / "tokenizers" / f"{name}.tokenizer.json.gz").read_bytes()
    ids = tokenizers.Tokenizer.from_str(gzip.decompress(packed).decode()).encode(standard_text()).ids
    assert len(ids) >= 900


def test_windows_cover_the_positions_once_and_know_what_follows():
    ids = list(range(1000, 2000))
    windows = cut_windows(ids, positions=300, length=128)
    assert [len(window.tokens) for window in windows] == [128, 128, 44]
    assert [token for window in windows for token in window.tokens] == ids[:300]
    assert [token for window in windows for token in window.targets] == ids[1:301]
    assert {window.first for window in windows} == {0}


def test_a_prefix_is_fed_and_not_compared():
    (window,) = cut_windows([5, 6, 7], positions=2, length=8, prefix=[1])
    assert (window.tokens, window.first, window.targets) == ((1, 5, 6), 1, (6, 7))


def test_windows_are_the_same_every_time():
    assert cut_windows(range(600)) == cut_windows(range(600))


def test_a_text_that_is_too_short_says_what_is_missing():
    with pytest.raises(UsageError) as error:
        cut_windows(range(512), positions=512)
    assert (error.value.found, error.value.expected) == ("512 tokens in the text", "at least 513")
    assert sum(len(window.tokens) for window in cut_windows(range(513), positions=512)) == 512


@pytest.mark.parametrize("fields", [{"positions": 0}, {"length": 0}, {"positions": -1}])
def test_zero_positions_compare_nothing(fields):
    with pytest.raises(UsageError):
        cut_windows(range(100), **fields)
