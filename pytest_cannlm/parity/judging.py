"""A comparison held against limits: guards first, then every limit on its interval."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Limit, Verdict
from pytest_cannlm.measure.stats import judge
from pytest_cannlm.parity.guards import Guard
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.parity.result import ParityResult
from pytest_cannlm.settings import nearest


def judge_parity(
    result: ParityResult,
    limits: Mapping[str, Limit],
    *,
    min_positions: int = 1,
    missing: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Verdicts of a comparison: one per guard if any fired, else one per limit.

    Means are judged on mean + 2 standard errors (mean - 2 where higher is better), points on a fixed set as they are.
    ``min_positions`` is what the profile needs for limits on logits. ``missing`` says per metric why it could not be
    observed; a metric without a figure fails. No limits at all, and an unknown metric, are a :class:`UsageError`.
    """
    if not limits:
        raise UsageError("parity without a limit would judge nothing", field="parity")
    for name in limits:
        check_metric(name)
    guards = list(result.guards)
    if 0 < result.positions < min_positions and any(METRICS[name].needs_logits for name in limits):
        detail = f"{result.positions} positions compared, {min_positions} needed"
        guards.append(Guard("too_few_positions", detail, "the marker's tokens=, the length of the text"))
    if guards:
        return [_guard_verdict(guard) for guard in guards]
    return [_judge_metric(name, limit, result, missing or {}) for name, limit in limits.items()]


def check_metric(name: str) -> None:
    """Refuse an unknown metric with the nearest known name."""
    if name not in METRICS:
        near = nearest(name, METRICS)
        remedy = f"Did you mean {near}?" if near else None
        raise UsageError("no such parity metric", field=name, expected=", ".join(METRICS), remedy=remedy)


def _judge_metric(name: str, limit: Limit, result: ParityResult, missing: Mapping[str, str]) -> Verdict:
    metric = METRICS[name]
    usual = "not observable: needs logits" if metric.needs_logits else "no tokens were compared"
    return judge(
        result.metrics.get(name),
        limit.value,
        metric.better,
        name=name,
        unit=metric.unit,
        missing=missing.get(name, usual),
        look_at=metric.look_at,
        limit_source=limit.source,
    )


def _guard_verdict(guard: Guard) -> Verdict:
    return Verdict(
        outcome="fail",
        figure=None,
        name=guard.name,
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=guard.detail,
        look_at=guard.look_at,
        limit_source="guard, always checked",
    )
