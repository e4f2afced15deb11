"""Which tokens a parity test compares, and how the engine is fed them.

An engine can be right on short texts and wrong further back (a rotary table, a KV cache that grows), or right in
prefill and wrong in decoding. So some of the positions that are compared lie at the end of the longest text that fits,
and are fed one token at a time behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness.prompts import question_prompt
from pytest_cannlm.harness.run import Run
from pytest_cannlm.markers import Parity
from pytest_cannlm.parity.text import Window, cut_windows, standard_text

if TYPE_CHECKING:
    from pytest_cannlm.models.tokenizer import Tokenizer

_SHORT = 128
"""Positions of a piece of the standard text that is fed from an empty context."""
_DEEPEST = 1024
"""Positions of the longest piece at most; reading further would take longer than all the rest of the comparison."""
_DECODED_SHARE = 16
_MOST_DECODED = 32


@dataclass(frozen=True)
class Piece:
    """A window, and whether the engine is fed what is compared as it decodes: one token at a time."""

    window: Window
    decoded: bool = False

    @property
    def positions(self) -> int:
        """How many of its positions are compared."""
        return len(self.window.targets)


@dataclass(frozen=True)
class Plan:
    """All pieces of one comparison, and how many of the texts were too long to be compared whole."""

    pieces: tuple[Piece, ...]
    texts: int = 0
    """Texts of the marker or of the body among them."""
    cut: int = 0

    @property
    def positions(self) -> int:
        """How many positions are compared."""
        return sum(piece.positions for piece in self.pieces)

    @property
    def depth(self) -> int:
        """Positions of the longest piece: errors further back are not seen."""
        return max((len(piece.window.tokens) for piece in self.pieces), default=0)

    @property
    def decoded(self) -> int:
        """How many of the positions are fed as in decoding."""
        return sum(piece.positions for piece in self.pieces if piece.decoded)

    def __str__(self) -> str:
        cut = f"; {self.cut} of {self.texts} texts were cut" if self.cut else ""
        return f"compared {self.positions} positions down to depth {self.depth}, {self.decoded} of them decoded{cut}"


def plan(run: Run, marker: Parity, tokenizer: Tokenizer) -> Plan:
    """What is compared.

    The marker's prompts, each at least in part and the last one's end decoded. Without them exactly ``marker.tokens``
    positions: of the standard text the end of the longest piece that fits the context, decoded; then what the body
    asked and got, then short pieces of the standard text.

    :raises UsageError: a prompt has nothing to compare, or the standard text has fewer positions than asked for.
    """
    if marker.prompts is not None:
        return _prompts(marker.prompts, marker.tokens, run.context, tokenizer)
    ids = tokenizer.encode(standard_text(), special=False)
    prefix = ids[:1] if tokenizer.spec.add_bos else []
    text = ids[len(prefix) :]
    if marker.tokens >= len(text):
        raise UsageError(
            "the standard text has fewer positions than the comparison asks for",
            field="tokens",
            found=marker.tokens,
            expected=f"at most {len(text) - 1}",
        )
    longest = min(run.context - len(prefix), len(text) - 1, _DEEPEST)
    decoded = min(_MOST_DECODED, marker.tokens // _DECODED_SHARE, longest)
    own = [[*tokenizer.encode(asked.prompt), *asked.generation.tokens] for asked in run.asked]
    windows, cut = _in_order(own, marker.tokens - decoded, run.context)
    left = marker.tokens - decoded - sum(len(window.targets) for window in windows)
    if left:
        length = min(_SHORT, run.context - len(prefix))
        windows += cut_windows(text, positions=left, length=length, prefix=prefix)
    pieces = [Piece(window) for window in windows]
    if decoded:
        first, targets = len(prefix) + longest - decoded, text[longest - decoded + 1 : longest + 1]
        pieces.append(Piece(Window((*prefix, *text[:longest]), first, tuple(targets)), decoded=True))
    return Plan(tuple(pieces), texts=len(own), cut=cut)


def _prompts(prompts: Sequence[str], positions: int, context: int, tokenizer: Tokenizer) -> Plan:
    """A piece per prompt; where the positions do not suffice for all of them, each gets a fair part."""
    windows: list[Window] = []
    cut = 0
    for number, prompt in enumerate(prompts):
        ids = tokenizer.encode(question_prompt(tokenizer, prompt))
        most = (positions - sum(len(window.targets) for window in windows)) // (len(prompts) - number)
        window = _beginning(ids, min(most, context))
        if window is None:
            raise UsageError(
                "a prompt has no position to compare",
                field="prompts",
                found=f"{prompt!r}: {len(ids)} tokens, {most} positions left for it",
                expected="two tokens or more, and a position for each prompt (tokens=)",
            )
        windows.append(window)
        cut += len(window.targets) < len(ids) - 1
    *others, last = windows
    return Plan((*map(Piece, others), *_decoded_at_its_end(last)), texts=len(prompts), cut=cut)


def _decoded_at_its_end(window: Window) -> list[Piece]:
    """The window as one piece for its beginning and one, decoded, for its end."""
    first = len(window.tokens) - min(_MOST_DECODED, len(window.tokens))
    end = Piece(Window(window.tokens, first, window.targets[first:]), decoded=True)
    return [Piece(Window(window.tokens[:first], 0, window.targets[:first])), end] if first else [end]


def _in_order(texts: Sequence[Sequence[int]], positions: int, context: int) -> tuple[list[Window], int]:
    """A window per text until ``positions`` are reached, and how many texts are not in it whole."""
    windows: list[Window] = []
    cut = 0
    for text in texts:
        window = _beginning(text, min(positions, context))
        cut += len(text) - 1 > (len(window.targets) if window else 0)
        if window is not None:
            windows.append(window)
            positions -= len(window.targets)
    return windows, cut


def _beginning(ids: Sequence[int], positions: int) -> Window | None:
    """The first ``positions`` of ``ids`` that have a following id; None where there is not one."""
    count = min(positions, len(ids) - 1)
    return Window(tuple(ids[:count]), 0, tuple(ids[1 : count + 1])) if count > 0 else None
