"""The ONNX reference on this host: a float32 graph on ONNX Runtime's CPU provider, teacher-forced or greedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx

from pytest_cannlm.build.reference import EMBEDDING, GRAPH, Against, ReferenceFolder
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.simulator.session import DecoderSession, Shape

Float32 = npt.NDArray[np.float32]


class OnnxReference:
    """A loaded reference.

    Attributes:
        against: ``float`` or ``quantized``; results of the two are never mixed.
        digest: identity of what the reference was made from.
        tokenizer: the checkpoint's own tokenizer.
    """

    def __init__(self, reference: ReferenceFolder) -> None:
        self.against: Against = reference.against
        self.digest = reference.digest
        self._folder = reference.folder
        self._source = reference.source
        self.tokenizer = Tokenizer(self._source.spec)

    def logits(self, ids: Sequence[int], first: int = 0) -> Iterator[Float32]:
        """Teacher-forced logits, float32 [n, vocabulary], for positions ``first``.. of ``ids``, in chunks of rows."""
        self.session.rewind(0)
        yield from self.session.evaluate(ids, first)

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Greedy continuation of ``ids``, ended by any end-of-text id of the checkpoint, which is included."""
        self.session.rewind(0)
        usable, ends = self._source.token_count(), set(self._source.config.eos_token_ids)
        new: list[int] = []
        fed = list(ids)
        while len(new) < max_new_tokens and not ends & set(new[-1:]):
            new.append(int(self.session.feed(fed)[:usable].argmax()))
            fed = new[-1:]
        return new

    def answer(self, question: str, max_new_tokens: int = 64) -> str:
        """The reference's greedy reply to one user message."""
        prompt = self.tokenizer.render_chat([{"role": "user", "content": question}])
        return self.tokenizer.decode(self.generate(self.tokenizer.encode(prompt), max_new_tokens))

    @cached_property
    def session(self) -> DecoderSession:
        """The session that computes it, loaded on first use."""
        config = self._source.config
        table = np.memmap(self._folder / EMBEDDING, "<f4", "r", shape=(config.vocab_size, config.hidden_size))
        return DecoderSession(
            onnx.load(self._folder / GRAPH, load_external_data=False),
            weights_dir=self._folder,
            shape=Shape(config.layers, config.kv_heads, config.head_dim),
            embedding=lambda ids: np.asarray(table[ids], np.float32),
        )
