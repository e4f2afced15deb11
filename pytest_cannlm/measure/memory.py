"""Figures of an engine's footprint, in bytes, relative to the footprint before anything was loaded.

The agent reads the engine's own process, never the whole machine's used memory. What it cannot see is None, and None
is "not observable", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_cannlm.agent.protocol import Memory
from pytest_cannlm.measure.figures import Figure
from pytest_cannlm.measure.stats import exact_figure, fit_line

_NEEDS_BUFFERS = "the engine's process does not show it"


@dataclass(frozen=True)
class MemorySample:
    """Figures by name, and for each quantity that could not be observed the reason."""

    figures: Mapping[str, Figure]
    missing: Mapping[str, str]


def memory_sample(
    memory: Memory | None, *, unloaded: Memory | None = None, resident_weight_bytes: int | None = None
) -> MemorySample:
    """``mem_load``, ``mem_peak`` and ``mem_retained`` in bytes, ``kv_slope`` in bytes/token.

    ``memory`` is read after the requests that are judged, ``unloaded`` after unloading and a settle time.
    ``resident_weight_bytes`` are the bytes of weights that have to be in memory to compute at all: a peak below them
    means that the accounting misses where the weights are, and then no figure of it is used.
    """
    if memory is None:
        reason = "memory was not read"
        return MemorySample({}, dict.fromkeys(("mem_load", "mem_peak", "mem_retained", "kv_slope"), reason))
    figures: dict[str, Figure] = {}
    missing: dict[str, str] = {}

    def put(name: str, value: float | None, source: Memory, *, unit: str, statistic: str, otherwise: str) -> None:
        if value is None:
            missing[name] = otherwise
            return
        detail = {"base": source.base, "parts": dict(source.parts)}
        figures[name] = exact_figure(
            name, float(value), unit=unit, kind=source.kind, samples=1, statistic=statistic, detail=detail
        )

    if memory.peak is not None and resident_weight_bytes is not None and memory.peak < resident_weight_bytes:
        reason = (
            f"the reported peak of {memory.peak} bytes is below the {resident_weight_bytes} bytes of resident weights: "
            "the accounting does not see them"
        )
        missing |= {"mem_load": reason, "mem_peak": reason}
    else:
        put(
            "mem_load",
            memory.load,
            memory,
            unit="bytes",
            statistic="footprint after load minus base",
            otherwise=_NEEDS_BUFFERS,
        )
        put(
            "mem_peak",
            memory.peak,
            memory,
            unit="bytes",
            statistic="highest footprint of load, prefill and decode minus base",
            otherwise=_NEEDS_BUFFERS,
        )
    if unloaded is None:
        missing["mem_retained"] = "the engine was not unloaded"
    else:
        put(
            "mem_retained",
            unloaded.current,
            unloaded,
            unit="bytes",
            statistic="footprint after unload minus base",
            otherwise=_NEEDS_BUFFERS,
        )
    # A cache that is reserved whole at load shows no growth; a slope of zero would then pass every limit.
    put(
        "kv_slope",
        memory.kv_per_token or None,
        memory,
        unit="bytes/token",
        statistic="growth of the KV cache per position",
        otherwise="no growth per token was seen; a KV cache reserved at load needs loads of different context lengths",
    )
    return MemorySample(figures, missing)


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, bytes_per_element: float) -> float:
    """What a KV cache holds per position in theory: keys and values of every layer, 2·L·H_kv·D·bytes."""
    return 2 * layers * kv_heads * head_dim * bytes_per_element


def slope_per_step(footprints: Sequence[float], steps: Sequence[float] | None = None) -> float:
    """Least-squares growth of a footprint in bytes per step: per load/unload cycle (default), or per given position."""
    return fit_line(range(len(footprints)) if steps is None else steps, footprints)[1]
