"""A device without processes for tests of the harness and the plugin: real gate and package, scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tiny import tiny_llama

from pytest_cannlm.agent.protocol import (
    AgentStatus,
    Capabilities,
    GenerateRequest,
    Generation,
    LoadReport,
    Memory,
    Times,
    TimingRequest,
    TokenEvent,
)
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.devices import DeviceInfo, DeviceSpec
from pytest_cannlm.errors import CannlmError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tokenizer import Tokenizer

MIB = 2**20
ALL = ("logits", "tokenize", "modelled_timing")


class FakeClient:
    """Answers like an agent. Every knob is a keyword argument; ``log`` holds what was called."""

    def __init__(
        self,
        *,
        text: str = "It is Paris.",
        token_ms: float | Callable[[int], float] = 20.0,
        prefill_ms: float = 100.0,
        capabilities: Sequence[str] = ALL,
        footprint: Memory | None = None,
        retained: int | None = 0,
        logits: Callable[[Sequence[int], int], Any] | None = None,
        decoded_logits: Callable[[Sequence[int], int], Any] | None = None,
        prompt_tokens: Callable[[str], int] | None = None,
        tokens: Sequence[int] | None = None,
        tokenize: Callable[[str], list[int]] | None = None,
        fails: dict[str, CannlmError] | None = None,
        gate: Callable[[Path, Target], None] | None = None,
        engine_load: Callable[[Path], None] | None = None,
        kind: str = "modelled",
    ) -> None:
        self.text, self.prefill_ms = text, prefill_ms
        self.token_ms = token_ms if callable(token_ms) else lambda _: token_ms
        self.names, self.kind = tuple(capabilities), kind
        self.footprint = footprint or Memory(kind, MIB, 100 * MIB, 150 * MIB, 100 * MIB, 1024.0)
        self.retained, self._tokens, self._tokenize = retained, tokens, tokenize
        self._logits = logits or scripted_logits
        self._decoded_logits = decoded_logits or self._logits
        self._prompt_tokens = prompt_tokens or (lambda text: len(tiny_tokenizer().encode(text)))
        self.worker, self.crashes = 2, 0
        self.fails, self.gate, self.engine_load = fails or {}, gate or _real_gate, engine_load
        self.log: list[str] = []
        self._package: str | None = None
        self._loads = 0
        self._times = 0

    def load(
        self, package: Path, *, manifest: Path | None = None, target: Target | None = None, timeout_s: float = 600.0
    ) -> LoadReport:
        self._called("load")
        if target is not None:
            self.gate(package, target)
        self._loads += 1
        if self.engine_load is not None:
            self.engine_load(package)
        self._package = str(package.resolve())
        return LoadReport(1.0, self.kind, "fake", "KirinX90", "6.1.1.0")

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None] | None = None) -> Generation:
        self._called("generate")
        count = request.max_new_tokens if request.ignore_eos else min(request.max_new_tokens, 4)
        tokens = tuple(self._tokens or range(count))
        return Generation(
            text=self.text,
            prompt_tokens=self._prompt_tokens(request.text),
            tokens=tokens,
            finish="stop",
            times=self._next_times(count),
            kind=self.kind,
            served_by="fake",
        )

    def tokenize(self, text: str) -> list[int]:
        self._called("tokenize")
        if self._tokenize is None:
            raise AssertionError("this fake was given no tokenizer")
        return self._tokenize(text)

    def logits(self, tokens: Sequence[int], first: int = 0, step: int | None = None) -> Any:
        self._called("logits")
        return (self._decoded_logits if step == 1 else self._logits)(tokens, first)

    def sample_times(self, request: TimingRequest) -> list[Times]:
        self._called("sample_times")
        return [self._next_times(request.new_tokens) for _ in range(request.repeats)]

    def memory(self) -> Memory:
        self._called("memory")
        return self.footprint

    def reset(self) -> None:
        self._called("reset")

    def unload(self) -> Memory:
        self._called("unload")
        self._package = None
        return replace(self.footprint, current=self.retained)

    def capabilities(self) -> Capabilities:
        return Capabilities(self.names, {"lora": "an interface that is not public"})

    def status(self) -> AgentStatus:
        return AgentStatus(1, self.worker, self._package, None, self._loads, self.crashes)

    def _called(self, name: str) -> None:
        self.log.append(name)
        if name in self.fails:
            raise self.fails[name]

    def _next_times(self, count: int) -> Times:
        self._times += 1
        step = self.token_ms(self._times)
        tokens = tuple(self.prefill_ms + i * step for i in range(count))
        return Times(0.0, self.prefill_ms, tokens, tokens[-1])


class FakeDevice:
    """A device that hands out one fake client."""

    def __init__(self, spec: DeviceSpec, client: FakeClient | None = None, **facts: Any) -> None:
        self.client = client or FakeClient()
        self.closed = 0
        known: dict[str, Any] = {"chip": "KirinX90", "cann": "6.1.1.0", "device_version": None, "simulated": True}
        self.info = DeviceInfo(kind=spec.kind, name=spec.text, ram_bytes=None, options={}, **{**known, **facts})

    def agent(self) -> FakeClient:
        return self.client

    def close(self) -> None:
        self.closed += 1


class FakeReference:
    """A reference that computes what :func:`scripted_logits` says, a little off by ``noise``."""

    digest = "fake"

    def __init__(self, noise: float = 0.0, tokens: Sequence[int] = (0, 1, 2, 3)) -> None:
        self.noise, self.tokens = noise, tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return tiny_tokenizer()

    def logits(self, ids: Sequence[int], first: int = 0) -> Iterator[Any]:
        rows = scripted_logits(ids, first)
        yield rows + self.noise * np.random.default_rng(7).standard_normal(rows.shape).astype("f4")

    def logits_of(self, texts: Sequence[tuple[Sequence[int], int]]) -> Iterator[Any]:
        for text in texts:
            yield from self.logits(*text)

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        return list(self.tokens)


@cache
def tiny_tokenizer() -> Tokenizer:
    """The tiny checkpoint's own tokenizer."""
    with open_checkpoint(tiny_llama()) as checkpoint:
        return Tokenizer(checkpoint.tokenizer())


def scripted_logits(tokens: Sequence[int], first: int = 0) -> Any:
    """Logits [n, 512] that depend on token and position, and on nothing else."""
    rows = [np.random.default_rng(token * 1000 + place).standard_normal(512) for place, token in enumerate(tokens)]
    return np.stack(rows[first:]).astype("f4")


def _real_gate(package: Path, target: Target) -> None:
    decide(package, target).raise_if_refused()
