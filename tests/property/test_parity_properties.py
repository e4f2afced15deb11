import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_cannlm.parity import metrics
from pytest_cannlm.parity.accumulate import ParityAccumulator
from pytest_cannlm.parity.tokens import compare_greedy, compare_prompt_ids

number = st.floats(-50, 50, width=32)


@st.composite
def pairs(draw, least=2):
    size = draw(st.integers(least, 12))
    rows = draw(st.integers(1, 4))
    block = st.lists(st.lists(number, min_size=size, max_size=size), min_size=rows, max_size=rows)
    return np.array(draw(block), dtype=np.float64), np.array(draw(block), dtype=np.float64)


def close(first, second):
    return np.allclose(first, second, rtol=1e-9, atol=1e-9, equal_nan=True)


@given(pairs())
def test_identity(pair):
    r, _ = pair
    assert close(metrics.cosine(r, r), 1)
    assert (metrics.kl_divergence(r, r) == 0).all()
    assert (metrics.rel_l2(r, r) == 0).all()
    assert (metrics.sqnr_db(r, r) == np.inf).all()
    assert (metrics.max_abs(r, r) == 0).all()
    assert (metrics.overlap(metrics.top_k(r, 2), metrics.top_k(r, 2)) == 1).all()


@given(pairs())
def test_symmetry_where_it_is_promised(pair):
    r, d = pair
    for metric in (metrics.cosine, metrics.centred_cosine, metrics.max_abs, metrics.mean_abs):
        assert close(metric(r, d), metric(d, r))
    tops = metrics.top_k(r, 2), metrics.top_k(d, 2)
    assert close(metrics.overlap(*tops), metrics.overlap(*reversed(tops)))


@given(pairs(), st.floats(0.01, 100))
def test_scaling(pair, factor):
    r, d = pair
    assume((np.abs(r).max(axis=1) > 1e-3).all() and (np.abs(d).max(axis=1) > 1e-3).all())
    assert close(metrics.cosine(factor * r, d), metrics.cosine(r, d))
    assert close(metrics.rel_l2(factor * r, factor * d), metrics.rel_l2(r, d))
    assert close(metrics.max_abs(factor * r, factor * d), factor * metrics.max_abs(r, d))


@given(pairs(), st.randoms())
def test_permuting_the_vocabulary_changes_nothing(pair, shuffler):
    r, d = pair
    order = list(range(r.shape[1]))
    shuffler.shuffle(order)
    for metric in (
        metrics.cosine,
        metrics.centred_cosine,
        metrics.rel_l2,
        metrics.sqnr_db,
        metrics.psnr_db,
        metrics.max_abs,
        metrics.mean_abs,
        metrics.kl_divergence,
    ):
        assert close(metric(r[:, order], d[:, order]), metric(r, d))


@given(pairs(), st.floats(-100, 100), st.floats(-100, 100))
def test_kl_does_not_see_a_shift_and_is_never_negative(pair, first, second):
    r, d = pair
    kl = metrics.kl_divergence(r, d)
    assert (kl >= -1e-12).all()
    assert np.allclose(metrics.kl_divergence(r + first, d + second), kl, rtol=1e-6, atol=1e-9)


@given(pairs())
def test_kl_agrees_with_its_textbook_form(pair):
    r, d = pair
    p, q = (np.exp(x - x.max(axis=1, keepdims=True)) for x in (r, d))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    assert np.allclose(metrics.kl_divergence(r, d), np.sum(p * (np.log(p) - np.log(q)), axis=1), rtol=1e-6, atol=1e-9)


@given(pairs())
def test_sqnr_is_rel_l2_in_decibels(pair):
    r, d = pair
    assume((np.abs(r).max(axis=1) > 1e-3).all() and (np.abs(r - d).max(axis=1) > 1e-3).all())
    assert close(metrics.sqnr_db(r, d), -20 * np.log10(metrics.rel_l2(r, d)))


@given(pairs())
def test_cosine_stays_within_its_range_and_agrees_with_numpy(pair):
    r, d = pair
    assume((np.abs(r).max(axis=1) > 1e-3).all() and (np.abs(d).max(axis=1) > 1e-3).all())
    found = metrics.cosine(r, d)
    assert (np.abs(found) <= 1 + 1e-12).all()
    expected = [np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(r, d, strict=True)]
    assert close(found, expected)


@given(pairs(), st.integers(1, 2))
def test_top_k_is_a_stable_sort(pair, k):
    r, _ = pair
    rounded = np.round(r / 20)  # many ties
    assert metrics.top_k(rounded, k).tolist() == np.argsort(-rounded, axis=1, kind="stable")[:, :k].tolist()


@given(pairs(least=5), st.integers(1, 3))
def test_streaming_equals_the_whole(pair, window):
    r, d = pair
    whole, cut = (ParityAccumulator(against="float", kind="modelled") for _ in range(2))
    whole.add(r, d)
    for start in range(0, len(r), window):
        cut.add(r[start : start + window], d[start : start + window])
    first, second = whole.result(), cut.result()
    assert [guard.name for guard in first.guards] == [guard.name for guard in second.guards]
    assert first.worst == second.worst
    for name, figure in first.metrics.items():
        assert second.metrics[name].value == pytest.approx(figure.value, rel=1e-9, abs=1e-9, nan_ok=True)


tokens = st.lists(st.integers(0, 3), max_size=8)


@given(tokens, tokens)
def test_prompt_ids_differ_exactly_when_they_are_not_equal(first, second):
    found = compare_prompt_ids(first, second, str)
    assert (found is None) == (first == second)
    if found is not None:
        assert first[: found.position] == second[: found.position]
        assert found.reference_id != found.engine_id


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), tokens)
def test_a_prefix_is_equal_and_longest(reference, device):
    found = compare_greedy(reference, device)
    n = found.prefix_tokens
    assert reference[:n] == device[:n]
    assert n == len(reference) or n == len(device) or reference[n] != device[n]
    assert (found.parting is None) == (n == len(reference))
