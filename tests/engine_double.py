"""A scripted engine for the tests of the agent: it does what the prompt, or an option of the load, says.

Commands: ``crash``, ``abort``, ``kill`` (the process dies), ``exit:N``, ``hang`` (in a native call), ``raise``,
``oom``, ``code:N`` (an engine's return code), ``overflow``, ``slow:SECONDS`` (per token), ``print`` (noise on both
standard streams), ``read`` (from standard input).
Any other prompt is answered with its own words.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cannlm.agent.protocol import (
    Capabilities,
    GenerateRequest,
    Generation,
    LoadReport,
    Memory,
    Times,
    TimingRequest,
    TokenEvent,
)
from pytest_cannlm.errors import EngineError, KVCacheOverflow

VOCABULARY = 1000
COMMANDS = {10**6: "crash", 10**6 + 1: "raise"}
"""Token ids that are commands of :meth:`ScriptedEngine.logits`."""


class ScriptedEngine:
    """Implements the engine interface without a model."""

    kind = "modelled"

    def __init__(self) -> None:
        self._options: Mapping[str, Any] = {}
        self._package: str | None = None
        self._calls = 0

    def load(self, package: str, options: Mapping[str, Any]) -> LoadReport:
        self._options = options = {**options, **next_of_script()}
        obey(str(options.get("on_load", "")), where="load")
        self._package = package
        return LoadReport(
            load_ms=12.5,
            kind="modelled",
            engine="scripted 1.0",
            chip="KirinX90",
            cann=str(options.get("cann")),
            details={"pid": os.getpid(), "package": package, "options": dict(options)},
        )

    def generate(self, request: GenerateRequest, on_token: Callable[[TokenEvent], None]) -> Generation:
        self._calls += 1
        obey(request.text, where="generate")
        delay = float(request.text.partition("slow:")[2] or 0)
        words = request.text.split()
        tokens, times = [], []
        for index in range(request.max_new_tokens):
            if delay:
                time.sleep(delay)
            token, time_ms = index % VOCABULARY, 10.0 + index
            on_token(TokenEvent(index=index, token=token, text=words[index % len(words)] + " ", time_ms=time_ms))
            tokens.append(token)
            times.append(time_ms)
        return Generation(
            text=" ".join(words),
            prompt_tokens=len(words),
            tokens=tuple(tokens),
            finish="length?",
            times=Times(prefill_start=0.0, prefill_end=None, tokens=tuple(times), end=times[-1]),
            kind="modelled",
            served_by="scripted",
            cached_prefix_tokens=self._calls - 1,
        )

    def tokenize(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def logits(self, tokens: Sequence[int], first: int, step: int | None = None) -> Iterator[bytes]:
        """Row i holds the value of token i everywhere."""
        for position in range(first, len(tokens)):
            obey(COMMANDS.get(tokens[position], ""), where="logits")
            yield struct.pack("<f", float(tokens[position])) * VOCABULARY

    def sample_times(self, request: TimingRequest) -> list[Times]:
        one = Times(prefill_start=0.0, prefill_end=float(request.seed), tokens=(1.0,) * request.new_tokens, end=2.0)
        return [one] * request.repeats

    def memory(self) -> Memory:
        return Memory(kind="modelled", base=1, load=2, peak=3, current=2, kv_per_token=None, parts={"weights": 2})

    def reset(self) -> None:
        self._calls = 0

    def unload(self) -> Memory:
        obey(str(self._options.get("on_unload", "")), where="unload")
        return Memory(kind="modelled", base=1, load=2, peak=3, current=0, kv_per_token=None)

    def capabilities(self) -> Capabilities:
        return Capabilities(names=("logits", "tokenize", "modelled_timing"), notes={"lora": "no public interface"})


def next_of_script() -> dict[str, Any]:
    """Options for this load: the next line of the file that ``ENGINE_DOUBLE_SCRIPT`` names, a JSON object."""
    script = os.environ.get("ENGINE_DOUBLE_SCRIPT")
    lines = Path(script).read_text(encoding="utf-8").splitlines() if script else []
    if not script or not lines:
        return {}
    Path(script).write_text("\n".join(lines[1:]), encoding="utf-8")
    return dict(json.loads(lines[0]))


def obey(command: str, *, where: str) -> None:
    """Do what a command says; anything else is no command."""
    verb, _, argument = command.partition(":")
    if verb == "crash":
        print("Unknown class perfgenius_interface", file=sys.stderr)
        print(f"about to crash in {where}", file=sys.stderr, flush=True)
        ctypes.string_at(0)
    elif verb == "abort":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.kill(os.getpid(), signal.SIGABRT)
    elif verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "exit":
        raise SystemExit(int(argument))
    elif verb == "hang":
        ctypes.CDLL(None).sleep(600)
    elif verb == "raise":
        raise ZeroDivisionError(f"asked to raise in {where}")
    elif verb == "oom":
        raise MemoryError("34359738368 bytes")
    elif verb == "code":
        raise EngineError(f"the engine's {where} failed", code=argument)
    elif verb == "overflow":
        raise KVCacheOverflow("prompt and answer need 2100 positions", found=2100, expected="at most 2048")
    elif verb == "print":
        for _ in range(20_000):
            os.write(1, b"noise on standard output\n")
            os.write(2, b"Unknown class perfgenius_interface\n")
        print("last words", file=sys.stderr, flush=True)
    elif verb == "read":
        assert sys.stdin.read() == ""
