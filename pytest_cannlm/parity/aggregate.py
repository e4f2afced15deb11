"""Numbers per position become figures: what is judged as a claim, and what as a regression check on a fixed set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pytest_cannlm.agent.protocol import Kind
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.stats import exact_figure, quantile_bounds
from pytest_cannlm.parity import metrics
from pytest_cannlm.parity.metrics import Array, Floats
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.parity.result import WorstElement

_TWO_SE_CONFIDENCE = 0.977
"""One-sided confidence of mean + 2 standard errors under a normal approximation."""
_NEAR_TIE = 1e-3
"""Logit gap of the reference up to which a mismatch of first choices is reported as a near tie."""
_FIXED_SET = "regression check on the fixed set"


@dataclass
class Totals:
    """Sums and extremes over all elements of all positions."""

    positions: int = 0
    elements: int = 0
    removed_infinities: int = 0
    signal: float = 0.0
    error: float = 0.0
    absolute: float = 0.0
    peak: float = 0.0
    largest_difference: float = 0.0
    largest_ratio: float = 0.0

    def add(self, r: Floats, difference: Floats) -> None:
        """Add rows of the reference and their absolute differences, both [n, V]."""
        magnitude = np.abs(r)
        self.positions += r.shape[0]
        self.elements += r.size
        self.signal += float(np.vdot(r, r))
        self.error += float(np.vdot(difference, difference))
        self.absolute += float(difference.sum())
        # np.fmax and max() would drop a NaN; np.maximum keeps it
        self.peak = float(np.maximum(self.peak, magnitude.max()))
        self.largest_difference = float(np.maximum(self.largest_difference, difference.max()))
        self.largest_ratio = float(np.maximum(self.largest_ratio, _largest_ratio(difference, magnitude)))


@np.errstate(invalid="ignore", over="ignore")  # what is not finite stays so, and is a guard as well
def figures(
    rows: Mapping[str, Array], totals: Totals, worst: Sequence[WorstElement], *, kind: Kind
) -> dict[str, Figure]:
    """Figures by metric name from per-position arrays [n] and totals; empty without a position.

    Means over positions (``kl_mean``, ``top1``, ``perplexity_ratio``, ...) carry mean ± 2 standard errors: a claim
    about text like this one. Extremes, percentiles and whole-set ratios (``kl_p99``, ``cosine_min``, ``sqnr_db``, ...)
    are points on a fixed set; their statistic says so. Details: ``kl_p99`` has distribution-free bounds, ``max_abs``
    the elements that differ most, every figure the smallest tolerances under which all elements would pass.
    """
    if not totals.positions:
        return {}

    tolerances = {"minimum_atol": totals.largest_difference, "minimum_rtol": totals.largest_ratio}

    def mean(name: str, values: Array, **detail: Any) -> Figure:
        return _mean_figure(name, values.astype(np.float64), kind, {**tolerances, **detail})

    def fixed(name: str, value: float, what: str, **detail: Any) -> Figure:
        unit, statistic = METRICS[name].unit, f"{what} ({_FIXED_SET})"
        return exact_figure(
            name,
            value,
            unit=unit,
            kind=kind,
            samples=totals.positions,
            statistic=statistic,
            detail={**tolerances, **detail},
        )

    kl, cosine = rows["kl"], rows["cosine"]
    lower, upper = quantile_bounds(kl.tolist(), p=99, confidence=0.95)
    found = [
        mean("cosine_mean", cosine),
        fixed("cosine_min", float(cosine.min()), "smallest", worst_position=int(cosine.argmin())),
        mean("centred_cosine_mean", rows["centred_cosine"]),
        fixed("sqnr_db", float(metrics.decibels(np.asarray(totals.signal), np.asarray(totals.error))), "whole set"),
        fixed(
            "rel_l2", float(metrics.relative_error(np.asarray(totals.error), np.asarray(totals.signal))), "whole set"
        ),
        fixed(
            "psnr_db",
            float(metrics.decibels(np.asarray(totals.peak**2), np.asarray(totals.error / totals.elements))),
            "whole set, peak max|reference|",
        ),
        fixed("max_abs", totals.largest_difference, "largest", worst=[asdict(element) for element in worst]),
        fixed("mean_abs", totals.absolute / totals.elements, "whole set"),
        mean("kl_mean", kl, worst_position=int(kl.argmax()), worst=float(kl.max()), last_position=float(kl[-1])),
        fixed(
            "kl_p99",
            float(np.percentile(kl, 99)) if np.isfinite(kl).all() else float(kl.max()),
            "p99",
            lower_95=lower,
            upper_95=upper,
        ),
        mean("top1", rows["top1"], **_explained_mismatches(rows)),
    ]
    found += [mean(name, rows[name]) for name in ("top5_agreement", "top5_overlap") if name in rows]
    if "device_nll" in rows:
        found.append(_perplexity_figure(rows["reference_nll"], rows["device_nll"], kind, tolerances))
    return {figure.name: figure for figure in found}


def notes(rows: Mapping[str, Array], totals: Totals) -> Iterator[str]:
    """What was done that the figures do not show."""
    if totals.removed_infinities:
        yield f"{totals.removed_infinities} infinities that match on both sides were left out"
    tied = int(rows["tied"].sum()) if "tied" in rows else 0
    if tied:
        yield f"the reference's first choice is tied at {tied} positions; the lowest id counts"


def _explained_mismatches(rows: Mapping[str, Array]) -> dict[str, Any]:
    """Mismatches of the first choice where the reference holds both choices for equal, exactly or nearly."""
    lead = rows["lead"][~rows["top1"].astype(bool)]
    return {
        "mismatches": int(lead.size),
        "mismatches_in_exact_ties": int((lead == 0).sum()),
        "mismatches_in_near_ties": int(((lead > 0) & (lead <= _NEAR_TIE)).sum()),
        "reference_ties": int(rows["tied"].sum()),
    }


def _mean_figure(name: str, values: Floats, kind: Kind, detail: Mapping[str, Any]) -> Figure:
    value, error = _mean_and_error(values)
    lower, upper = _two_errors(value, error)
    return Figure(
        name=name,
        value=value,
        unit=METRICS[name].unit,
        kind=kind,
        lower=lower,
        upper=upper,
        confidence=_TWO_SE_CONFIDENCE,
        samples=values.size,
        statistic="mean over positions, ± 2 standard errors",
        detail={"standard_error": error, **detail},
    )


def _perplexity_figure(reference_nll: Floats, device_nll: Floats, kind: Kind, detail: Mapping[str, Any]) -> Figure:
    """Ratio of perplexities; the error is that of the paired difference of log-likelihoods."""
    value, error = _mean_and_error(device_nll - reference_nll)
    lower, upper = _two_errors(value, error)
    return Figure(
        name="perplexity_ratio",
        value=_exp(value),
        unit=METRICS["perplexity_ratio"].unit,
        kind=kind,
        lower=None if lower is None else _exp(lower),
        upper=None if upper is None else _exp(upper),
        confidence=_TWO_SE_CONFIDENCE,
        samples=reference_nll.size,
        statistic="exp of the mean paired difference of NLL, ± 2 standard errors",
        detail={
            "nll_difference": value,
            "standard_error_of_difference": error,
            "reference_perplexity": _exp(float(reference_nll.mean())),
            "device_perplexity": _exp(float(device_nll.mean())),
            **detail,
        },
    )


def _mean_and_error(values: Floats) -> tuple[float, float | None]:
    """Mean and its standard error; None for one value, or where the mean is infinite."""
    value = float(values.mean())
    if values.size < 2 or math.isinf(value):
        return value, None
    return value, float(values.std(ddof=1) / math.sqrt(values.size))


def _two_errors(value: float, error: float | None) -> tuple[float | None, float | None]:
    if math.isinf(value):
        return value, value
    return (None, None) if error is None else (value - 2 * error, value + 2 * error)


def _exp(value: float) -> float:
    return math.inf if value > 709 else math.exp(value)


def _largest_ratio(difference: Floats, magnitude: Floats) -> float:
    """Largest |r - d| / |r|: inf where only r is zero, 0 where nothing differs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = difference / magnitude
    value = float(ratio.max())
    # 0/0 is a perfect match, but NaN wins every maximum: only then look again
    return value if not math.isnan(value) else float(np.where(difference == 0, 0.0, ratio).max())
