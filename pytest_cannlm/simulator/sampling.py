"""Choosing the next token from logits: greedy, or seeded sampling with temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_cannlm.errors import EngineError, UsageError


@dataclass(frozen=True)
class Sampler:
    """How to choose. With ``do_sample`` false everything but the repetition penalty is ignored."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int

    def __post_init__(self) -> None:
        for name, good, expected in (
            ("temperature", self.temperature > 0, "a number above 0; for greedy decoding use do_sample=False"),
            ("top_k", self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
        ):
            if not good:
                raise UsageError(
                    "sampling value out of range", field=name, found=getattr(self, name), expected=expected
                )


class TokenChooser:
    """Chooses the tokens of one generation.

    Args:
        sampler: how to choose.
        usable: number of leading ids that have a token; padding rows of the embedding are never chosen.
        forbidden: ids that are never chosen, for example every end-of-text id while a timing run needs full length.
    """

    def __init__(self, sampler: Sampler, usable: int, forbidden: Sequence[int] = ()) -> None:
        self._sampler, self._usable = sampler, usable
        self._forbidden = np.array([token for token in forbidden if token < usable], np.int64)
        self._random = np.random.default_rng(sampler.seed)

    def choose(self, logits: npt.NDArray[np.float32], seen: Sequence[int]) -> int:
        """The next id. ``logits`` [vocabulary]; ``seen`` are prompt and generated ids so far.

        Raises:
            EngineError: a logit is NaN or infinite; code NONFINITE_LOGITS.
        """
        scores = logits[: self._usable].astype(np.float64)
        if not np.isfinite(scores).all():
            raise EngineError(
                "the model computed logits that are not numbers",
                found=f"{np.count_nonzero(~np.isfinite(scores))} of {scores.size} logits",
                remedy="look for an overflow of fp16, or for damaged weights",
                code="NONFINITE_LOGITS",
            )
        scores[self._forbidden] = -np.inf
        s = self._sampler
        if s.repetition_penalty != 1.0 and len(seen):
            met = np.unique(np.array([token for token in seen if token < self._usable], np.int64))
            scores[met] = np.where(
                scores[met] > 0, scores[met] / s.repetition_penalty, scores[met] * s.repetition_penalty
            )
        if not s.do_sample:
            return int(scores.argmax())
        top = np.argsort(-scores, kind="stable")[: s.top_k]
        shares = np.exp((scores[top] - scores[top[0]]) / s.temperature)
        shares /= shares.sum()
        # the smallest set of tokens whose share reaches top_p
        kept = int(np.searchsorted(np.cumsum(shares), s.top_p)) + 1
        return int(self._random.choice(top[:kept], p=shares[:kept] / shares[:kept].sum()))
