"""Times of one generation, from instants on the engine's own clock. The request arrives at instant 0.

t_pre is when prefill begins, t_pf when it is complete (where the engine says so), t_i when token i is available:

===============  =====================  ========================================================================
ttft_model       t_1 - t_pre            prefill, first-token compute, choosing it; no template, tokenizer, transport
ttft_request     t_1 - 0                everything from text to first token
itl              t_i - t_(i-1), i >= 2  one decode step each
tpot             (t_N - t_1)/(N - 1)    decode steps only: the first token never counts
prefill_tps      P/(t_pf - t_pre)       prefill only; ``prefill_tps_via_ttft`` = P/ttft_model where t_pf is unknown
decode_tps       sum(N-1)/sum(t_N-t_1)  total over total, never a mean of rates
===============  =====================  ========================================================================

All results are ms or tokens/s. Too few tokens is a :class:`UsageError`, a duration of zero :class:`NotObservable`, a
clock that runs backwards an :class:`EngineError`; none of them is ever a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pytest_cannlm.agent.protocol import Times
from pytest_cannlm.errors import EngineError, NotObservable, UsageError
from pytest_cannlm.measure.stats import fit_line


def check_times(times: Times) -> None:
    """Refuse instants that are not finite or not in order."""
    prefill_end = () if times.prefill_end is None else (times.prefill_end,)
    instants = (0.0, times.prefill_start, *prefill_end, *times.tokens, times.end)
    for before, after in pairwise(instants):
        if not (math.isfinite(after) and before <= after):
            raise EngineError(
                "the engine's instants do not follow each other on one monotonic clock",
                found=f"{after} ms after {before} ms",
                code="CLOCK_NOT_MONOTONIC",
            )


def ttft_model(times: Times) -> float:
    """Time to first token on the model's side, ms."""
    _need_tokens(times, 1, "time to first token")
    return _duration(times.prefill_start, times.tokens[0], "time to first token")


def ttft_request(times: Times) -> float:
    """Time to first token from the arrival of the request, ms."""
    _need_tokens(times, 1, "time to first token")
    return _duration(0.0, times.tokens[0], "time to first token")


def itl(times: Times) -> tuple[float, ...]:
    """Inter-token latencies, ms, N - 1 of them. Zeros occur where an engine hands over tokens in batches."""
    _need_tokens(times, 2, "inter-token latency")
    return tuple(after - before for before, after in pairwise(times.tokens))


def is_batched(times: Times) -> bool:
    """Whether tokens came several at a time, which makes single inter-token latencies (not TPOT) meaningless."""
    return any(before == after for before, after in pairwise(times.tokens))


def tpot(times: Times) -> float:
    """Time per output token, ms; the first token, which prefill pays for, is left out."""
    _need_tokens(times, 2, "time per token")
    return _duration(times.tokens[0], times.tokens[-1], "decode") / (len(times.tokens) - 1)


def prefill_tps(times: Times, prompt_tokens: int) -> tuple[str, float]:
    """Prompt tokens per second of prefill, with the name that says how: ``prefill_tps`` or ``prefill_tps_via_ttft``."""
    if prompt_tokens < 1:
        raise UsageError("prefill speed is undefined for an empty prompt", found=prompt_tokens, expected=">= 1 tokens")
    if times.prefill_end is None:
        return "prefill_tps_via_ttft", 1000 * prompt_tokens / ttft_model(times)
    return "prefill_tps", 1000 * prompt_tokens / _duration(times.prefill_start, times.prefill_end, "prefill")


def decode_tps(generations: Sequence[Times]) -> float:
    """Decoded tokens per second of all generations, total tokens over total time, first tokens left out."""
    for times in generations:
        _need_tokens(times, 2, "decode speed")
    steps = sum(len(times.tokens) - 1 for times in generations)
    return 1000 * steps / _duration(0.0, math.fsum(t.tokens[-1] - t.tokens[0] for t in generations), "decode")


def depth_fit(times: Times, prompt_tokens: int) -> tuple[float, float]:
    """How decode slows down with depth: a (ms) and b (ms per 1000 tokens) of itl_i = a + b·(P + i)/1000."""
    steps = itl(times)
    intercept, slope = fit_line([prompt_tokens + i for i in range(2, len(steps) + 2)], steps)
    return intercept, 1000 * slope


def _need_tokens(times: Times, least: int, what: str) -> None:
    check_times(times)
    if len(times.tokens) < least:
        raise UsageError(f"{what} is undefined", found=f"{len(times.tokens)} generated tokens", expected=f">= {least}")


def _duration(start: float, end: float, what: str) -> float:
    if end <= start:
        raise NotObservable(f"{what} is below the resolution of the engine's clock", found=f"{end - start} ms")
    return end - start
