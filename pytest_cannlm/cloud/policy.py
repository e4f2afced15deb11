"""The policy: detect the chip, ask the NPU where it may run, the cloud only where that is allowed; say who answered.

The chip is asked before anything is loaded. Every step is logged (logger ``pytest_cannlm.fallback``) and is part of the
result; neither holds the prompt or the key. A text that the NPU broke off is never shown as part of an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from pytest_cannlm.cloud.client import CloudModel
from pytest_cannlm.cloud.detect import Detected, detect_chip
from pytest_cannlm.compat import chips
from pytest_cannlm.errors import BothWaysFailed, CannlmError, CloudError, EngineError, GateRefusal, UsageError

logger = logging.getLogger("pytest_cannlm.fallback")


class NpuWay(Protocol):
    """How an app asks its NPU."""

    def generate(self, prompt: str) -> Iterable[str]:
        """Load what is needed and give the answer in pieces, as they come; any exception ends this way."""

    @property
    def served_by(self) -> str:
        """Who computed the last answer, for example "CANN LM Engine on KirinX90"."""


@dataclass(frozen=True)
class Answer:
    """A text, and where it comes from."""

    text: str
    via: Literal["npu", "cloud"]
    served_by: str
    """``npu: …``, or ``cloud: MODEL at HOST``, with the name that the endpoint itself gave."""
    model: str | None
    """The name with which the endpoint answered; None for the NPU."""
    steps: tuple[str, ...]
    """What was decided and why, in order."""


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """The NPU first, and the cloud where the NPU cannot answer and the user allowed it.

    ``cloud`` is called only when the cloud is really needed: a key that is missing or wrong matters only then.
    """

    npu: NpuWay
    cloud: Callable[[], CloudModel] | None = None
    """The endpoint; None: no prompt leaves this machine."""
    chips: tuple[str, ...] = ("KirinX90",)
    """Chips on which the NPU is asked."""
    detect: Callable[[], Detected] = detect_chip

    def ask(self, prompt: str) -> Answer:
        """The answer to ``prompt``.

        :raises UsageError: what was asked for is wrong, wherever it goes.
        :raises CannlmError: the NPU's own reason, where the cloud is not allowed. An exception of an app's own engine
            comes as :class:`EngineError`.
        :raises BothWaysFailed: the cloud was allowed and failed too.
        """
        steps: list[str] = []

        def step(text: str) -> None:
            steps.append(text)
            logger.info("%s", text)

        why: CannlmError
        try:
            self._check_chip(step)
            text = self._collected(prompt, step)
        except UsageError:
            raise
        except CannlmError as error:
            why = error
        except Exception as error:
            why = EngineError(f"the NPU way failed: {type(error).__name__}: {error}")
            why.__cause__ = error
        else:
            served_by = f"npu: {self._who()}"
            step(f"answered by {served_by}")
            return Answer(text, "npu", served_by, None, tuple(steps))
        step(f"the NPU does not answer: {why}")
        if self.cloud is None:
            step("the cloud is not allowed: the prompt stays on this machine")
            raise why
        return self._from_cloud(prompt, why, step, steps)

    def _check_chip(self, step: Callable[[str], None]) -> None:
        detected = self.detect()
        step(str(detected))
        allowed = [chips.normalize(chip) for chip in self.chips]
        if detected.chip is None or chips.normalize(detected.chip) not in allowed:
            raise GateRefusal(
                "the chip is not one that this model runs on; nothing was loaded",
                field="chip",
                found=f"{detected.chip or 'an unknown chip'} ({detected.where})",
                expected=" or ".join(allowed),
                code="CHIP_UNKNOWN" if detected.chip is None else "CHIP_NOT_ALLOWED",
            )

    def _collected(self, prompt: str, step: Callable[[str], None]) -> str:
        pieces: list[str] = []
        try:
            pieces += self.npu.generate(prompt)
        except Exception:
            if pieces:
                step(f"the NPU broke off; its partial text ({len(''.join(pieces))} characters) is discarded")
            raise
        return "".join(pieces)

    def _who(self) -> str:
        """Who computed an answer that is there: one that does not say so is a mistake, and no reason to fall back."""
        try:
            return self.npu.served_by
        except Exception as error:
            raise EngineError(
                f"the NPU way answered, and does not say who did: {type(error).__name__}: {error}", field="served_by"
            ) from error

    def _from_cloud(self, prompt: str, why: CannlmError, step: Callable[[str], None], steps: list[str]) -> Answer:
        assert self.cloud is not None
        failure: CannlmError
        try:
            cloud = self.cloud()
            step(f"asking the cloud: {cloud.model} at {cloud.host}")
            answer = cloud.ask(prompt)
        except CannlmError as error:
            failure = error
        except Exception as error:
            # its text is the app's own, and may hold the key
            failure = CloudError(f"the cloud cannot be asked: {type(error).__name__}", code="CLOUD_UNREACHABLE")
        else:
            served_by = f"cloud: {answer.model} at {cloud.host}"
            step(f"answered by {served_by}" + ("" if answer.finish == "stop" else f", ended by {answer.finish}"))
            return Answer(answer.text, "cloud", served_by, answer.model, tuple(steps))
        step(f"the cloud does not answer either: {failure}")
        raise BothWaysFailed(
            f"neither the NPU nor the cloud answered. NPU: {why} Cloud: {failure}", npu=why, cloud=failure
        )
