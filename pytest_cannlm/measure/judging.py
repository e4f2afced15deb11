"""The limits of ``token_latency`` and ``memory_ceiling``, held against the figures that they speak of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.figures import Better, Figure, Limit, Verdict
from pytest_cannlm.measure.memory import MemorySample
from pytest_cannlm.measure.sampling import LatencySample
from pytest_cannlm.measure.stats import judge
from pytest_cannlm.measure.units import format_value


@dataclass(frozen=True)
class Quantity:
    """What a limit's name means: the figures that can answer it (first found wins), unit, direction, where to look."""

    figures: tuple[str, ...]
    unit: str
    better: Better
    look_at: str


LATENCY: Mapping[str, Quantity] = {
    "decode_ms": Quantity(
        ("tpot",),
        "ms/token",
        "lower",
        "bytes read per token (scheme, group size, LM head), KV length (context, prompt), performance mode and heat",
    ),
    "ttft_ms": Quantity(
        ("ttft_model",),
        "ms",
        "lower",
        "prompt length and prefill chunk, compute rate of the scheme, performance mode; a cold first request",
    ),
    "prefill_tps": Quantity(
        ("prefill_tps", "prefill_tps_via_ttft"),
        "tokens/s",
        "higher",
        "prefill chunk length against prompt length, operators that fall back to the CPU, performance mode",
    ),
}

MEMORY: Mapping[str, Quantity] = {
    "load": Quantity(
        ("mem_load",),
        "bytes",
        "lower",
        "weight bytes (scheme, group size, embedding and LM head), KV cache reserved at load (context)",
    ),
    "peak": Quantity(
        ("mem_peak",),
        "bytes",
        "lower",
        "prefill workspace (chunk length), KV cache (context), weights held twice during load",
    ),
    "retained": Quantity(
        ("mem_retained",),
        "bytes",
        "lower",
        "what outlives unload: tokenizer, generators, mapped weights; repeated cycles tell a leak from a cache",
    ),
    "kv_per_token": Quantity(
        ("kv_slope",),
        "bytes/token",
        "lower",
        "2 · layers · KV heads · head size · bytes per element: the element type of the cache, padding",
    ),
}


def judge_latency(sample: LatencySample, limits: Mapping[str, Limit]) -> list[Verdict]:
    """One verdict per limit, in the order of ``limits``; an unknown name is a :class:`UsageError`."""
    return [_hint_at_rate(_judge(name, limit, LATENCY, sample)) for name, limit in limits.items()]


def judge_memory(sample: MemorySample, limits: Mapping[str, Limit]) -> list[Verdict]:
    """One verdict per limit, in the order of ``limits``; an unknown name is a :class:`UsageError`."""
    return [_judge(name, limit, MEMORY, sample) for name, limit in limits.items()]


def _judge(
    name: str, limit: Limit, quantities: Mapping[str, Quantity], sample: LatencySample | MemorySample
) -> Verdict:
    quantity = quantities.get(name)
    if quantity is None:
        raise UsageError("no such limit", field=name, expected=", ".join(quantities))
    figure = next((sample.figures[each] for each in quantity.figures if each in sample.figures), None)
    return judge(
        figure,
        limit.value,
        quantity.better,
        name=name,
        unit=quantity.unit,
        missing=sample.missing.get(quantity.figures[0], "no data"),
        look_at=quantity.look_at,
        limit_source=limit.source,
    )


def tokens_per_second(figure: Figure) -> float | None:
    """The rate that a time per token stands for; None for every other unit."""
    return 1000 / figure.value if figure.unit == "ms/token" and figure.value > 0 else None


def _hint_at_rate(verdict: Verdict) -> Verdict:
    """Say so where a limit in ms looks as if tokens per second were meant."""
    rate = tokens_per_second(verdict.figure) if verdict.figure else None
    if rate is None or verdict.limit is None or verdict.outcome == "pass":
        return verdict
    if not math.isclose(rate, verdict.limit, rel_tol=0.1):
        return verdict
    reason = (
        f"{verdict.reason}; the figure is {format_value(rate, 'tokens/s')}: "
        f"{verdict.name} takes milliseconds per token, not tokens per second"
    )
    return replace(verdict, reason=reason)
