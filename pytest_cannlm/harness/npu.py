"""What a test's body holds in its hand: the NPU under the test that runs now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cannlm.agent.protocol import Capabilities, Finish, GenerateRequest, Generation, Kind, Memory, Times
from pytest_cannlm.errors import NotObservable, UsageError
from pytest_cannlm.harness.plain import plainly
from pytest_cannlm.harness.prompts import Message, finished_prompt, refuse_special_tokens
from pytest_cannlm.harness.run import Run

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.devices.base import DeviceInfo

SAMPLING = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "repetition_penalty",
    "stop",
    "ignore_eos",
    "timeout_s",
)
"""Keyword arguments that ``chat`` and ``generate`` pass on to :class:`pytest_cannlm.agent.protocol.GenerateRequest`."""


@dataclass(frozen=True)
class Reply:
    """What one request gave. Times are ms on the engine's own clock."""

    text: str
    tokens: tuple[int, ...]
    """Generated ids, the closing end-of-text id included if there was one."""
    prompt_tokens: int
    finish: Finish
    """``stop``, ``length``, or ``length?`` where the engine does not tell which of the two it was."""
    ttft_ms: float | None
    """Time to first token on the model's side: prefill and the choice of the token. None where it is undefined."""
    tpot_ms: float | None
    """Time per token after the first. None where it is undefined."""
    kind: Kind
    """Whether the times are measured or modelled."""
    served_by: str
    """Who computed this, for example "simulated KirinX90 (faithful)"."""
    cached_prefix_tokens: int
    """Prompt tokens that were not computed again; always 0 without ``reuse_prefix``."""
    generation: Generation
    """Everything that the engine said."""

    @classmethod
    def of(cls, generation: Generation) -> Reply:
        """The reply that an engine's answer amounts to."""
        from pytest_cannlm.measure import latency

        return cls(
            text=generation.text,
            tokens=generation.tokens,
            prompt_tokens=generation.prompt_tokens,
            finish=generation.finish,
            ttft_ms=_or_none(latency.ttft_model, generation.times),
            tpot_ms=_or_none(latency.tpot, generation.times),
            kind=generation.kind,
            served_by=generation.served_by,
            cached_prefix_tokens=generation.cached_prefix_tokens,
            generation=generation,
        )


class Npu:
    """The NPU with the package that the running test's ``npu`` marker names.

    One object lives for the whole session, so that it can be used in property tests and in fixtures of any scope; what
    stands behind it changes with the test, and the engine's state is reset before each.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._why_none: str | None = None

    def __repr__(self) -> str:
        if self._run is None:
            return f"<NPU, {self._why_none or 'no test running'}>"
        return f"<NPU {self._run.device.name} with {self._run.case.model} ({self._run.case.scheme})>"

    def attach(self, run: Run | None, *, why_none: str | None = None) -> None:
        """Put the test that starts behind this object, or nothing (None) when it ended or ``why_none`` says why."""
        self._run = run
        self._why_none = why_none

    @property
    def run(self) -> Run:
        """The running test.

        :raises UsageError: no test with an ``npu`` marker runs, or nothing is loaded for it.
        """
        if self._why_none is not None:
            raise UsageError(self._why_none, remedy="Ask the app (cloud_llm.run_app), or take falls_back off the test")
        if self._run is None:
            raise UsageError(
                "no test with an npu marker is running",
                remedy="Put @pytest.mark.npu(model=...) on the test, its class or its module",
            )
        return self._run

    @property
    def package(self) -> PackageFolder:
        """The package that is loaded: its folder, its manifest's path and content."""
        return self.run.package

    @property
    def device(self) -> DeviceInfo:
        """Facts about the device: name, chip, CANN version, whether it is simulated."""
        return self.run.device

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do beyond load and generate."""
        return self.run.capabilities

    def chat(
        self,
        chat: str | Sequence[Message],
        *,
        max_new_tokens: int = 128,
        special_tokens: bool = False,
        reuse_prefix: bool = False,
        **sampling: Any,
    ) -> Reply:
        """Ask one question, or continue a conversation, through the model's chat template. Greedy by default.

        :param chat: the user's text, or messages with ``role`` and ``content``. The engine keeps no history.
        :param special_tokens: allow texts that spell special tokens; otherwise they are refused.
        :param reuse_prefix: keep the context of the request before, so that a beginning in common is not computed
            again; the reply may then depend on that request. Otherwise every request starts empty.
        :param sampling: see :data:`SAMPLING`.
        :raises UsageError: a wrong argument, or a text that spells special tokens.
        :raises KVCacheOverflow: prompt and new tokens did not fit the KV cache.
        :raises EngineError: the engine failed, crashed or hung, or counts other prompt tokens than the tokenizer.
        """
        __tracebackhide__ = True

        def ask() -> Reply:
            run = self.run
            prompt = finished_prompt(run.tokenizer, chat, special_tokens=special_tokens)
            return Reply.of(run.ask(_request(prompt, max_new_tokens, sampling), reuse_prefix=reuse_prefix))

        return plainly(ask)

    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 128,
        special_tokens: bool = False,
        reuse_prefix: bool = False,
        **sampling: Any,
    ) -> Reply:
        """Continue ``prompt`` as it is, without a chat template. Arguments and errors as for :meth:`chat`."""
        __tracebackhide__ = True

        def ask() -> Reply:
            run = self.run
            if not special_tokens:
                refuse_special_tokens(run.tokenizer, prompt)
            return Reply.of(run.ask(_request(prompt, max_new_tokens, sampling), reuse_prefix=reuse_prefix))

        return plainly(ask)

    def logits(self, tokens: str | Sequence[int], first: int = 0) -> npt.NDArray[np.float32]:
        """Teacher-forced logits at positions ``first``.. of ``tokens``: float32 ``[len(tokens) - first, vocabulary]``.

        :param tokens: ids, or a text that the package's tokenizer turns into ids.
        :raises NotObservable: the engine gives no logits.
        """
        __tracebackhide__ = True

        def ask() -> npt.NDArray[np.float32]:
            run = self.run
            run.need("logits")
            ids = run.tokenizer.encode(tokens) if isinstance(tokens, str) else list(tokens)
            return run.client.logits(ids, first)

        return plainly(ask)

    def memory(self) -> Memory:
        """The engine's footprint now, bytes; what cannot be observed is None, never zero."""
        __tracebackhide__ = True
        return plainly(lambda: self.run.client.memory())


def _or_none(metric: Callable[[Times], float], times: Times) -> float | None:
    """A time, or None where too few tokens or too coarse a clock leave it undefined."""
    try:
        return metric(times)
    except (UsageError, NotObservable):
        return None


def _request(prompt: str, max_new_tokens: int, sampling: Mapping[str, Any]) -> GenerateRequest:
    unknown = [name for name in sampling if name not in SAMPLING]
    if unknown:
        from pytest_cannlm.settings import nearest

        hint = nearest(unknown[0], (*SAMPLING, "max_new_tokens", "special_tokens", "reuse_prefix"))
        raise UsageError(
            f"unknown argument {unknown[0]!r}" + (f"; did you mean {hint!r}?" if hint else ""),
            expected=", ".join(SAMPLING),
        )
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise UsageError("max_new_tokens must be a whole number above 0", found=repr(max_new_tokens))
    given = dict(sampling)
    if "stop" in given:
        given["stop"] = (given["stop"],) if isinstance(given["stop"], str) else tuple(given["stop"])
    return GenerateRequest(text=prompt, max_new_tokens=max_new_tokens, **given)
