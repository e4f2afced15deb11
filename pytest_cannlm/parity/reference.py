"""The ONNX reference on this host: a float32 graph on ONNX Runtime's CPU provider, teacher-forced or greedy.

A reference that is too large to be written out is evaluated layer by layer; only its speed tells. Then many texts in
one call cost little more than one, and a greedy token costs as much as a text: all the weights are read for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx

from pytest_cannlm.build.reference import EMBEDDING, GRAPH, Against, ReferenceFolder, StreamedReference
from pytest_cannlm.models.tokenizer import Tokenizer
from pytest_cannlm.parity.layerwise import LayerwiseDecoder, Text
from pytest_cannlm.simulator.session import DecoderSession, Shape

Float32 = npt.NDArray[np.float32]


class OnnxReference:
    """A loaded reference.

    Attributes:
        against: ``float`` or ``quantized``; results of the two are never mixed.
        digest: identity of what the reference was made from.
        tokenizer: the checkpoint's own tokenizer.
    """

    def __init__(self, reference: ReferenceFolder | StreamedReference) -> None:
        self.against: Against = reference.against
        self.digest = reference.digest
        self._reference = reference
        self._source = reference.source
        self._layerwise = LayerwiseDecoder(reference) if isinstance(reference, StreamedReference) else None
        self.tokenizer = Tokenizer(self._source.spec)

    def logits(self, ids: Sequence[int], first: int = 0) -> Iterator[Float32]:
        """Teacher-forced logits, float32 [n, vocabulary], for positions ``first``.. of ``ids``, in chunks of rows."""
        if self._layerwise is not None:
            yield from self._layerwise.evaluate([(ids, first)])
            return
        self.session.rewind(0)
        yield from self.session.evaluate(ids, first)

    def logits_of(self, texts: Sequence[Text]) -> Iterator[Float32]:
        """The logits [n, vocabulary] of each of several texts, given as (ids, first) of :meth:`logits`, in order."""
        if self._layerwise is not None:
            return self._layerwise.evaluate(texts)
        return (np.concatenate(list(self.logits(*text))) for text in texts)

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Greedy continuation of ``ids``, ended by any end-of-text id of the checkpoint, which is included."""
        usable, ends = self._source.token_count(), set(self._source.config.eos_token_ids)
        new: list[int] = []
        while len(new) < max_new_tokens and not ends & set(new[-1:]):
            new.append(int(self._next(ids, new)[:usable].argmax()))
        return new

    def _next(self, ids: Sequence[int], new: Sequence[int]) -> Float32:
        """The logits behind ``ids`` and ``new``; the tokens are asked for one by one, ``new`` empty at first."""
        if self._layerwise is not None:
            (rows,) = self._layerwise.evaluate([([*ids, *new], len(ids) + len(new) - 1)])
            last: Float32 = rows[0]
            return last
        if not new:
            self.session.rewind(0)
        return self.session.feed(new[-1:] or ids)

    def answer(self, question: str, max_new_tokens: int = 64) -> str:
        """The reference's greedy reply to one user message."""
        prompt = self.tokenizer.render_chat([{"role": "user", "content": question}])
        return self.tokenizer.decode(self.generate(self.tokenizer.encode(prompt), max_new_tokens))

    @cached_property
    def session(self) -> DecoderSession:
        """The session that computes it, loaded on first use; a streamed reference has none."""
        if isinstance(self._reference, StreamedReference):
            raise TypeError("a streamed reference is evaluated layer by layer, not in a session")
        config, folder = self._source.config, self._reference.folder
        table = np.memmap(folder / EMBEDDING, "<f4", "r", shape=(config.vocab_size, config.hidden_size))
        return DecoderSession(
            onnx.load(folder / GRAPH, load_external_data=False),
            weights_dir=folder,
            shape=Shape(config.layers, config.kv_heads, config.head_dim),
            embedding=lambda ids: np.asarray(table[ids], np.float32),
        )
