"""When a Kirin NPU would have a token ready: a roofline over the chip profile. Everything here is modelled.

A step over ``s`` positions takes the longer of moving its bytes and computing its products, plus overheads::

    move    = sum over formats f: bytes_f / (bandwidth * efficiency_f)  +  kv_bytes / (bandwidth * efficiency_kv)
    compute = 2 * (weights + 2 * kv elements) * s / (2 * macs_per_cycle * clock * compute_efficiency)
    step    = max(move, compute) + layers * layer_overhead + step_overhead

Prefill runs in steps of ``prefill_len`` positions, the last one padded to full length as the compiled graph demands;
the LM head counts once, for the last position. A decode step has ``s = 1``. The KV cache is static, so every step reads
all of ``kv_cache_max_len``. Real times spread; each generation and each token get a factor from seeded lognormal
distributions, so equal requests with equal seeds take equal times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_cannlm.agent.protocol import Times
from pytest_cannlm.simulator.package import Load
from pytest_cannlm.simulator.profile import Profile
from pytest_cannlm.simulator.session import Shape

_FP16_BYTES = 2


@dataclass(frozen=True)
class TimingModel:
    """Predicted times of one package on one chip.

    Attributes:
        profile: the chip.
        load: bytes and weights of the package's matrices.
        shape: shape of the KV cache.
        context: ``kv_cache_max_len``.
        prefill: positions of one prefill step.
    """

    profile: Profile
    load: Load
    shape: Shape
    context: int
    prefill: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the static KV cache, fp16."""
        return 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim * _FP16_BYTES * self.context

    @property
    def decode_ms(self) -> float:
        """One decode step, ms, without spread."""
        return self._step_ms(1, with_lm_head=True)

    def prefill_ms(self, positions: int) -> float:
        """Prefill of ``positions`` new prompt positions and choice of the first token, ms, without spread."""
        steps = max(1, -(-positions // self.prefill))
        return (steps - 1) * self._step_ms(self.prefill, with_lm_head=False) + self._step_ms(
            self.prefill, with_lm_head=True
        )

    def load_ms(self, file_bytes: int) -> float:
        """Reading the package and setting the graph up, ms."""
        return file_bytes / (self.profile["storage_gbs"] * 1e6) + self.profile["load_overhead_ms"]

    def clock(self, positions: int, *seed: int) -> Clock:
        """The virtual clock of one generation whose prompt adds ``positions`` new positions."""
        return Clock(self, positions, seed)

    def times(self, positions: int, new_tokens: int, *seed: int) -> Times:
        """All times of a generation of ``new_tokens`` tokens at once."""
        clock = self.clock(positions, *seed)
        tokens = tuple(clock.next_token() for _ in range(new_tokens))
        return clock.times(tokens)

    def _step_ms(self, positions: int, *, with_lm_head: bool) -> float:
        p = self.profile
        bandwidth = p["memory_bandwidth_gbs"] * 1e6  # bytes per ms
        move = sum(size / (bandwidth * p[f"efficiency_{kind}"]) for kind, size in self.load.bytes_by_format.items())
        move += self.kv_bytes / (bandwidth * p["efficiency_kv"])
        products = positions * (self.load.projection_weights + 2 * self.kv_bytes / _FP16_BYTES)
        products += self.load.lm_head_weights if with_lm_head else 0
        compute = products / (p["cube_macs_per_cycle"] * p["clock_ghz"] * 1e6 * p["compute_efficiency"])
        return max(move, compute) + self.shape.layers * p["layer_overhead_ms"] + p["step_overhead_ms"]


class Clock:
    """The engine's virtual clock during one generation, ms since the request arrived."""

    def __init__(self, model: TimingModel, positions: int, seed: tuple[int, ...]) -> None:
        p = model.profile
        draw = np.random.default_rng([*seed, positions])
        self._factors = self._spread(draw, p["generation_spread"], p["token_spread"])
        self._model = model
        self._decode_ms = model.decode_ms
        self.prefill_start = p["request_overhead_ms"]
        self.prefill_end = self.prefill_start + model.prefill_ms(positions) * next(self._factors)
        self._now: float | None = None

    def next_token(self) -> float:
        """When the next token is chosen; the first one at the end of prefill."""
        self._now = self.prefill_end if self._now is None else self._now + self._decode_ms * next(self._factors)
        return self._now

    def times(self, tokens: tuple[float, ...]) -> Times:
        """The record of the generation."""
        return Times(self.prefill_start, self.prefill_end, tokens, tokens[-1] if tokens else self.prefill_end)

    @staticmethod
    def _spread(draw: np.random.Generator, generation: float, token: float) -> Iterator[float]:
        common = draw.lognormal(0.0, generation)
        while True:
            yield float(common * draw.lognormal(0.0, token))
