"""What holds for any head, any share of it that is rotated, and any stretching."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_cannlm.models.rope import Rope, Yarn, half_split_rows

heads = st.integers(1, 32).flatmap(lambda half: st.tuples(st.just(2 * half), st.integers(1, half).map(lambda n: 2 * n)))


@given(heads, st.integers(1, 4), st.booleans())
def test_every_row_is_read_once_and_stays_in_its_head(head, count, interleaved):
    head_dim, rotary_dim = head
    order = half_split_rows(count * head_dim, head_dim=head_dim, rotary_dim=rotary_dim, interleaved=interleaved)
    assert sorted(order) == list(range(count * head_dim))
    assert (order // head_dim == np.arange(count * head_dim) // head_dim).all()


@given(heads, st.booleans())
def test_pairs_of_the_checkpoint_are_half_a_head_apart(head, interleaved):
    head_dim, rotary_dim = head
    order = half_split_rows(head_dim, head_dim=head_dim, rotary_dim=rotary_dim, interleaved=interleaved)
    first, second = np.split(order, 2)
    pairs = rotary_dim // 2
    apart = 1 if interleaved else pairs
    assert (second[:pairs] - first[:pairs] == apart).all()
    assert (first[pairs:] >= rotary_dim).all()
    assert (second[pairs:] >= rotary_dim).all()


@given(
    st.floats(1.5, 1e7),
    st.integers(1, 64).map(lambda n: 2 * n),
    st.floats(1, 64),
    st.integers(8, 1 << 17),
    st.floats(1, 64),
    st.booleans(),
)
def test_stretched_frequencies_lie_between_both_ends(theta, dim, factor, positions, fast, truncate):
    plain = Rope(theta, dim).inverse_frequencies()
    yarn = Yarn(factor, positions, 1.0, beta_fast=fast, beta_slow=1.0, truncate=truncate)
    stretched = Rope(theta, dim, yarn).inverse_frequencies()
    assert (stretched <= plain * (1 + 1e-12)).all()
    assert (stretched >= plain / factor * (1 - 1e-12)).all()
