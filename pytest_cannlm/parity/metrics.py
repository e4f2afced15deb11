"""Definitions of the parity metrics, row by row. ``r`` is the reference, ``d`` the device, both [n, V]; results [n].

Everything is converted to float64 before any arithmetic: a sum of half-precision squares overflows at 65504. No element
is masked out, nothing is clipped, and NaN in any input makes that row's result NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_cannlm.errors import UsageError

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_KL_ROUNDING = -1e-12
_SAFE_ENERGY = 1e-200
"""Sums of squares between this and its inverse have neither overflowed nor vanished."""


def as_rows(values: Array) -> Floats:
    """``values`` as float64 rows; one vector becomes one row."""
    rows = np.asarray(values, dtype=np.float64)
    return rows[np.newaxis, :] if rows.ndim == 1 else rows


def cosine(r: Array, d: Array) -> Floats:
    """Sum r·d / (norm r · norm d). One side zero gives 0, both zero give 1 (the all-zero guard still applies)."""
    r, d = as_rows(r), as_rows(d)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        rr, dd = _dot(r, r), _dot(d, d)
        if not all(np.all((energy > _SAFE_ENERGY) & (energy < 1 / _SAFE_ENERGY)) for energy in (rr, dd)):
            r, d = _unit_peak(r), _unit_peak(d)
            rr, dd = _dot(r, r), _dot(d, d)
        value = _dot(r, d) / (np.sqrt(rr) * np.sqrt(dd))
    value = np.where((rr == 0) ^ (dd == 0), 0.0, value)
    return np.where((rr == 0) & (dd == 0), 1.0, value)


def centred_cosine(r: Array, d: Array) -> Floats:
    """Cosine of each row less its mean: what is left when a common offset no longer hides everything."""
    r, d = as_rows(r), as_rows(d)
    return cosine(r - r.mean(axis=1, keepdims=True), d - d.mean(axis=1, keepdims=True))


def rel_l2(r: Array, d: Array) -> Floats:
    """Norm of r - d over norm of r; 0 if both are zero, +inf if only r is."""
    r, d = as_rows(r), as_rows(d)
    return relative_error(np.sum((r - d) ** 2, axis=1), np.sum(r**2, axis=1))


def sqnr_db(r: Array, d: Array) -> Floats:
    """10·log10(sum r² / sum (r-d)²), dB: +inf without error, -inf without signal. Equals -20·log10(rel_l2)."""
    r, d = as_rows(r), as_rows(d)
    return decibels(np.sum(r**2, axis=1), np.sum((r - d) ** 2, axis=1))


def psnr_db(r: Array, d: Array) -> Floats:
    """20·log10(max|r| / rmse), dB. The peak is the largest magnitude of the reference, not its range."""
    r, d = as_rows(r), as_rows(d)
    return decibels(np.max(np.abs(r), axis=1) ** 2, np.mean((r - d) ** 2, axis=1))


def max_abs(r: Array, d: Array) -> Floats:
    """Largest |r - d|."""
    return np.asarray(np.max(np.abs(as_rows(r) - as_rows(d)), axis=1))


def mean_abs(r: Array, d: Array) -> Floats:
    """Mean |r - d|."""
    return np.asarray(np.mean(np.abs(as_rows(r) - as_rows(d)), axis=1))


def relative_error(error: Array, signal: Array) -> Floats:
    """Square root of error energy over signal energy, with the special cases of :func:`rel_l2`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(error == 0, 0.0 * signal, np.sqrt(error) / np.sqrt(signal)))


def decibels(signal: Array, noise: Array) -> Floats:
    """10·log10 of signal energy over noise energy, with the special cases of :func:`sqnr_db`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = 10 * (np.log10(signal) - np.log10(noise))
        return np.asarray(np.where(noise == 0, np.inf + 0.0 * signal, value))


def log_softmax(rows: Array) -> Floats:
    """Natural logarithm of softmax at temperature 1, the maximum subtracted first."""
    rows = as_rows(rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = rows - rows.max(axis=1, keepdims=True)
        shifted -= np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
        return np.asarray(shifted)


def kl_divergence(r: Array, d: Array) -> Floats:
    """KL(softmax r || softmax d) = sum p·(ln p - ln q), nats: +inf where q = 0 < p, no contribution where p = 0."""
    return kl_of_logs(log_softmax(r), log_softmax(d))


def kl_of_logs(log_p: Floats, log_q: Floats) -> Floats:
    """:func:`kl_divergence` of two log-softmaxes. Raises ``ArithmeticError`` on a negative result beyond rounding."""
    p = np.exp(log_p)
    with np.errstate(invalid="ignore"):
        gap = log_p - log_q
        if not np.isfinite(log_p).all():  # -inf in the reference: p = 0 contributes 0 whatever q is
            gap = np.where(p == 0, 0.0, gap)
        value = _dot(p, gap)
    if np.any(value < _KL_ROUNDING):
        raise ArithmeticError(f"negative KL divergence {value.min()}: a defect of the metric")
    return np.asarray(value)


def negative_log_likelihood(rows: Array, targets: Array) -> Floats:
    """-ln softmax(row)[target] per position, nats."""
    return pick_nll(log_softmax(rows), targets)


def pick_nll(log_p: Floats, targets: Array) -> Floats:
    """:func:`negative_log_likelihood` of a log-softmax."""
    return np.asarray(-np.take_along_axis(log_p, np.asarray(targets, dtype=np.int64)[:, np.newaxis], axis=1)[:, 0])


def top_k(rows: Array, k: int) -> Ints:
    """Ids [n, k] of the k largest logits of each row, largest first; of equal logits the lowest id comes first."""
    rows = as_rows(rows)
    if not 1 <= k <= rows.shape[1]:
        raise UsageError("top-k of a vocabulary", field="k", found=k, expected=f"1..{rows.shape[1]}")
    remaining = rows.copy()
    ids = np.empty((rows.shape[0], k), dtype=np.int64)
    each = np.arange(rows.shape[0])
    for place in range(k):
        # argmax returns the first of equal maxima, which is the tie rule; for small k it beats a partition
        ids[:, place] = remaining.argmax(axis=1)
        remaining[each, ids[:, place]] = -np.inf
    if np.isneginf(rows[each, ids[:, -1]]).any():  # a masked vocabulary, in which -inf is a value like any other
        return np.argsort(-rows, axis=1, kind="stable")[:, :k]
    return ids


def overlap(first: Ints, second: Ints) -> Floats:
    """Share of each row's ids in ``first`` [n, k] that are in ``second`` [n, k] too."""
    return np.asarray((first[:, :, np.newaxis] == second[:, np.newaxis, :]).any(axis=2).mean(axis=1))


def perplexity_ratio(reference_nll: Array, device_nll: Array) -> float:
    """exp(mean NLL of the device - mean NLL of the reference) over identical tokens."""
    difference = np.asarray(device_nll, dtype=np.float64) - np.asarray(reference_nll, dtype=np.float64)
    return float(np.exp(np.mean(difference)))


def _unit_peak(rows: Floats) -> Floats:
    """Rows scaled to a largest magnitude of 1, so that squares neither overflow nor vanish; zero rows stay."""
    peak = np.max(np.abs(rows), axis=1, keepdims=True)
    return np.asarray(rows / np.where(peak == 0, 1.0, peak))


def _dot(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.einsum("nv,nv->n", a, b))
