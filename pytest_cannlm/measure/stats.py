"""Distribution-free bounds and the gate that every limit goes through.

A verdict rests on an interval, never on a point. Percentiles ``p`` are in percent (50 is the median), confidences are
one-sided and between 0 and 1. Bounds are order statistics: for n independent values and quantile p, the r-th smallest
is an upper bound if P(Bin(n, p) <= r-1) >= confidence, and the s-th smallest a lower bound if P(Bin(n, p) >= s) >=
confidence (see any text on nonparametric tolerance limits, for example Conover, "Practical Nonparametric Statistics").
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from pytest_cannlm.agent.protocol import Kind
from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Better, Figure, Outcome, Verdict
from pytest_cannlm.measure.units import format_value

# Absorbs rounding in sums of binomial terms, so that a confidence that is met exactly counts as met.
_ROUNDING = 1e-12

BOOTSTRAP_REPLICATES = 2000
BOOTSTRAP_SEED = 20240229


def binomial_cdf(successes: int, trials: int, probability: float) -> float:
    """P(Bin(trials, probability) <= successes), for a probability strictly between 0 and 1."""
    return min(1.0, math.fsum(_binomial(i, trials, probability) for i in range(min(successes, trials) + 1)))


def _binomial(successes: int, trials: int, probability: float) -> float:
    """P(Bin(trials, probability) = successes), by logarithms because the coefficients overflow."""
    choices = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    return math.exp(choices + successes * math.log(probability) + (trials - successes) * math.log1p(-probability))


def upper_rank(n: int, *, p: float, confidence: float) -> int | None:
    """Smallest rank r (from 1) whose order statistic bounds percentile ``p`` from above; None if n is too small."""
    below = 0.0
    for rank in range(1, n + 1):
        below += _binomial(rank - 1, n, p / 100)
        if below >= confidence - _ROUNDING:
            return rank
    return None


def lower_rank(n: int, *, p: float, confidence: float) -> int | None:
    """Largest rank s (from 1) whose order statistic bounds percentile ``p`` from below; None if n is too small."""
    # Bin(n, p) >= s is Bin(n, 1-p) <= n-s: the mirror image of the upper bound.
    mirrored = upper_rank(n, p=100 - p, confidence=confidence)
    return None if mirrored is None else n + 1 - mirrored


def required_samples(p: float, confidence: float, k: int = 0) -> int:
    """Smallest n for which a claim about percentile ``p`` can be proven although ``k`` values lie beyond it.

    ``required_samples(50, 0.95)`` is 5, ``required_samples(99, 0.95)`` is 299. A percentile outside 0..100 or a
    confidence outside 0..1 is a :class:`UsageError`.
    """
    check_percentile(p)
    check_confidence(confidence)
    beyond = 1 - p / 100
    n = k + 1
    while binomial_cdf(k, n, beyond) > 1 - confidence + _ROUNDING:
        n += 1
    return n


def check_percentile(p: float) -> None:
    """Refuse what is not a percentile strictly between 0 and 100."""
    if isinstance(p, bool) or not 0 < p < 100:
        raise UsageError("not a percentile", field="p", found=p, expected="a number between 0 and 100, such as 50")


def check_confidence(confidence: float) -> None:
    """Refuse what is not a confidence from 0.5 up to, but not including, 1."""
    if isinstance(confidence, bool) or not 0.5 <= confidence < 1:
        raise UsageError("not a confidence", field="confidence", found=confidence, expected="0.5 to below 1, like 0.95")


def quantile_bounds(values: Sequence[float], *, p: float, confidence: float) -> tuple[float | None, float | None]:
    """One-sided lower and upper bound of percentile ``p``; None where ``values`` are too few, NaN if any value is."""
    if any(math.isnan(value) for value in values):
        return math.nan, math.nan
    ordered = sorted(values)
    low = lower_rank(len(ordered), p=p, confidence=confidence)
    high = upper_rank(len(ordered), p=p, confidence=confidence)
    return None if low is None else ordered[low - 1], None if high is None else ordered[high - 1]


def percentile(values: Sequence[float], p: float) -> float:
    """The sample percentile by linear interpolation (numpy's default); describes the sample, proves nothing.

    NaN if any value is NaN. An empty sample is a ``ValueError``: callers decide what missing data means.
    """
    if not values:
        raise ValueError("percentile of no values")
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Median distance from the median, unscaled, in the unit of the values."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the least-squares line; the slope is 0 where all ``xs`` are equal."""
    mean_x, mean_y = fmean(xs), fmean(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def two_stage_bounds(
    rounds: Sequence[Sequence[float]],
    *,
    p: float,
    confidence: float,
    replicates: int = BOOTSTRAP_REPLICATES,
    seed: int = BOOTSTRAP_SEED,
) -> tuple[float, float]:
    """Bootstrap bounds of percentile ``p`` over all values: rounds drawn with replacement, then values within each.

    Values of one round share its conditions, so drawing them as if they were independent claims too much.
    """
    draw = random.Random(seed)

    def replica() -> float:
        groups = draw.choices(rounds, k=len(rounds))
        return percentile([value for group in groups for value in draw.choices(group, k=len(group))], p)

    replicas = [replica() for _ in range(replicates)]
    return percentile(replicas, 100 * (1 - confidence)), percentile(replicas, 100 * confidence)


def round_figure(
    name: str,
    rounds: Sequence[Sequence[float]],
    *,
    p: float = 50,
    confidence: float,
    unit: str,
    kind: Kind,
    detail: Mapping[str, Any] | None = None,
) -> Figure | None:
    """The headline figure of values taken in rounds; None without any value.

    ``p`` 50 gives the median of round medians, with order-statistic bounds over round medians: the round is the
    independent unit. Any other ``p`` gives that percentile over all values (one per generation), bounded by the wider
    of the order statistics and the two-stage bootstrap, because generations of one round are not independent.
    """
    groups = [list(group) for group in rounds if group]
    if not groups:
        return None
    pooled = [value for group in groups for value in group]
    spread = {
        "rounds": groups,
        "minimum": min(pooled),
        "maximum": max(pooled),
        "p95_of_sample": percentile(pooled, 95),
    }
    if p == 50:
        medians = [percentile(group, 50) for group in groups]
        value = percentile(medians, 50)
        lower, upper = quantile_bounds(medians, p=50, confidence=confidence)
        samples, statistic = len(medians), "median of round medians"
        spread |= {"round_medians": medians, "mad": median_absolute_deviation(medians)}
    else:
        value = percentile(pooled, p)
        lower, upper = quantile_bounds(pooled, p=p, confidence=confidence)
        samples, statistic = len(pooled), f"p{p:g} over generations"
        if not math.isnan(value):
            wide_lower, wide_upper = two_stage_bounds(groups, p=p, confidence=confidence)
            lower = None if lower is None else min(lower, wide_lower)
            upper = None if upper is None else max(upper, wide_upper)
            spread |= {"bootstrap_replicates": BOOTSTRAP_REPLICATES, "bootstrap_seed": BOOTSTRAP_SEED}
    return Figure(
        name=name,
        value=value,
        unit=unit,
        kind=kind,
        lower=lower,
        upper=upper,
        confidence=confidence,
        samples=samples,
        statistic=statistic,
        detail={**spread, **(detail or {})},
    )


def exact_figure(
    name: str,
    value: float,
    *,
    unit: str,
    kind: Kind,
    samples: int,
    statistic: str,
    detail: Mapping[str, Any] | None = None,
) -> Figure:
    """A figure that is its own interval: a counter, or a point on a fixed set that is compared for regression only."""
    return Figure(
        name=name,
        value=value,
        unit=unit,
        kind=kind,
        lower=value,
        upper=value,
        confidence=None,
        samples=samples,
        statistic=statistic,
        detail=dict(detail or {}),
    )


def judge(
    figure: Figure | None,
    limit: float,
    better: Better = "lower",
    *,
    name: str = "",
    unit: str = "",
    missing: str = "no data",
    look_at: str = "",
    limit_source: str = "",
) -> Verdict:
    """Hold a figure against a limit.

    Lower is better: pass if the upper bound is at most the limit, fail if the lower bound is above it, else
    inconclusive; mirrored where higher is better. No figure fails with ``missing`` as its reason; NaN in the value or
    in a bound fails. ``name`` and ``unit`` default to the figure's. A limit that is not a finite number is a
    :class:`UsageError`.
    """
    name = name or (figure.name if figure else "")
    unit = unit or (figure.unit if figure else "")
    if isinstance(limit, bool) or not math.isfinite(limit):
        raise UsageError("a limit has to be a finite number", field=name or None, found=limit)
    outcome: Outcome = "fail"
    reason, margin = f"not observed: {missing}", None
    if figure is not None:
        outcome, reason = _decide(figure, limit, better, unit)
        if math.isfinite(figure.value):
            margin = limit - figure.value if better == "lower" else figure.value - limit
    return Verdict(
        outcome=outcome,
        figure=figure,
        name=name,
        limit=limit,
        unit=unit,
        better=better,
        margin=margin,
        reason=reason,
        look_at=look_at,
        limit_source=limit_source,
    )


def _decide(figure: Figure, limit: float, better: Better, unit: str) -> tuple[Outcome, str]:
    """Outcome and its reason. Every comparison is one that NaN cannot satisfy."""
    if any(bound is not None and math.isnan(bound) for bound in (figure.value, figure.lower, figure.upper)):
        return "fail", f"{figure.name} is NaN, and NaN never passes"
    lower_is_better = better == "lower"
    pessimistic, optimistic = (figure.upper, figure.lower) if lower_is_better else (figure.lower, figure.upper)
    side, opposite, beyond = ("upper", "lower", "above") if lower_is_better else ("lower", "upper", "below")
    shown_limit = f"the limit of {format_value(limit, unit)}"
    is_point = figure.lower == figure.upper

    def keeps(bound: float) -> bool:
        return bound <= limit if lower_is_better else bound >= limit

    if pessimistic is not None and keeps(pessimistic):
        subject = "" if is_point else f"{side} bound "
        return "pass", f"{subject}{format_value(pessimistic, unit)} is within {shown_limit}"
    if optimistic is not None and not keeps(optimistic):
        subject = "" if is_point else f"even the {opposite} bound "
        return "fail", f"{subject}{format_value(optimistic, unit)} is {beyond} {shown_limit}"
    if pessimistic is None:
        sure = "" if figure.confidence is None else f" at {100 * figure.confidence:.3g} % confidence"
        return "inconclusive", f"{figure.samples} samples give no {side} bound{sure}"
    if optimistic is None:
        return "inconclusive", f"{shown_limit} lies between an unknown bound and {format_value(pessimistic, unit)}"
    low, high = (format_value(bound, unit) for bound in sorted((optimistic, pessimistic)))
    return "inconclusive", f"{shown_limit} lies between {low} and {high}"
