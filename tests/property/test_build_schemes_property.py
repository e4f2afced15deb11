"""What holds for any weights."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pytest_cannlm.build.schemes import (
    dequantize_w4,
    dequantize_w8,
    join_nibbles,
    quantize_embedding,
    quantize_w4,
    quantize_w8,
    split_nibbles,
)
from pytest_cannlm.simulator.stopping import StopMatcher

weights = st.integers(1, 4).flatmap(
    lambda n: npst.arrays(
        np.float32, (n, 64), elements=st.floats(-100, 100, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
    )
)


@given(weights, st.sampled_from([32, 64]))
def test_w4_error_is_at_most_one_step(rows, group):
    codes, scales = quantize_w4(rows, group)
    error = np.abs(dequantize_w4(codes, scales) - rows).reshape(len(rows), -1, group)
    step = np.abs(scales.astype(np.float32))[:, :, None]
    # half a step inside the range; the positive end has no level +8 and is clipped by up to one more
    assert (error <= 1.01 * step + 1e-6).all()


@given(weights)
def test_int8_error_is_at_most_one_step(rows):
    codes, scales = quantize_w8(rows)
    # half a step inside the range; the end opposite to the extreme has one level less
    assert (np.abs(dequantize_w8(codes, scales) - rows) <= 1.001 * np.abs(scales[:, None]) + 1e-9).all()
    codes, scales = quantize_embedding(rows)
    assert (np.abs(dequantize_w8(codes, scales) - rows) <= 0.501 * scales[:, None] + 1e-9).all()


@given(npst.arrays(np.int8, (3, 64)), st.sampled_from([32, 64]))
def test_nibble_planes_are_lossless(codes, block):
    assert (join_nibbles(*split_nibbles(codes, block)) == codes).all()


texts = st.text("ab<|>", max_size=12)


@given(st.lists(texts, max_size=8), st.lists(texts.filter(bool), max_size=3))
def test_stop_matcher_gives_the_text_before_the_first_stop(pieces, stops):
    matcher = StopMatcher(stops)
    got = "".join(map(matcher.feed, pieces)) + matcher.finish()
    whole = "".join(pieces)
    found = [at for at in (whole.find(stop) for stop in stops) if at >= 0]
    if matcher.stopped:
        assert found
        assert whole.startswith(got)
        assert not any(stop in got for stop in stops)
        letter_by_letter = StopMatcher(stops)
        assert "".join(map(letter_by_letter.feed, whole)) == got
    else:
        assert not found
        assert got == whole
