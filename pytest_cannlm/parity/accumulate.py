"""A comparison of logits that streams: window after window comes in, only numbers per position are kept.

A window is cut into blocks of rows that fit the processor's cache, so that memory stays at a few blocks however large
the vocabulary is and however many positions there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from pytest_cannlm.agent.protocol import Kind
from pytest_cannlm.errors import UsageError
from pytest_cannlm.parity import metrics
from pytest_cannlm.parity.aggregate import Totals, figures, notes
from pytest_cannlm.parity.guards import Guard
from pytest_cannlm.parity.metrics import Array, Floats, Ints
from pytest_cannlm.parity.result import ParityResult, WorstElement
from pytest_cannlm.parity.scan import OutputScan

_BLOCK_ELEMENTS = 2**17
"""Elements per block: 1 MiB in float64."""
_WORST_KEPT = 20
_TOP = 5


class ParityAccumulator:
    """Compares teacher-forced logits of a device with those of a reference.

    ``against`` says what the reference is ("float", "quantized", or a path), ``kind`` whether the device's output is
    measured or modelled, ``guards`` what the caller already found. ``allow_matching_infinities`` takes infinities of
    the same sign at the same places (a masked vocabulary) out of both sides; ``allow_zero`` declares that an all-zero
    output is right.
    """

    def __init__(
        self,
        *,
        against: str,
        kind: Kind,
        reference_hash: str = "",
        guards: Iterable[Guard] = (),
        allow_matching_infinities: bool = False,
        allow_zero: bool = False,
    ) -> None:
        self._against, self._kind, self._reference_hash = against, kind, reference_hash
        self._guards = list(guards)
        self._allow_infinities, self._allow_zero = allow_matching_infinities, allow_zero
        _keep_blocks_in_heap()
        self._scan = OutputScan()
        self._rows: dict[str, list[Array]] = {}
        self._totals = Totals()
        self._worst: list[WorstElement] = []
        self._conversions: set[str] = set()

    @property
    def positions(self) -> int:
        """Positions compared so far."""
        return self._totals.positions

    def add(self, reference: Array, device: Array, targets: Array | None = None) -> None:
        """Compare one window: logits [n, V] of both sides for the same positions of the same tokens.

        ``targets`` [n] are the ids that follow in the text, for the perplexity ratio. Outputs of another shape, or of
        an integer type, are remembered as guards and not compared. Targets of another length or outside the vocabulary
        are a :class:`UsageError`.
        """
        reference, device = np.asarray(reference), np.asarray(device)
        if not self._comparable(reference, device):
            return
        ids = None if targets is None else _checked_targets(targets, *reference.shape)
        height = max(1, _BLOCK_ELEMENTS // reference.shape[1])
        for start in range(0, len(reference), height):
            rows = slice(start, start + height)
            r, d = metrics.as_rows(reference[rows]), metrics.as_rows(device[rows])
            for block in self._without_matching_infinities(r, d, None if ids is None else ids[rows]):
                self._compare(*block)

    def result(self) -> ParityResult:
        """Everything found so far. Without any position the guard ``no_comparisons`` has fired."""
        fired = list(self._guards)
        if self.positions:
            fired += self._scan.guards(self.positions, allow_zero=self._allow_zero)
        else:
            fired.append(Guard("no_comparisons", "not one position was compared", "the text's length, output names"))
        rows = {name: np.concatenate(parts) for name, parts in self._rows.items()}
        return ParityResult(
            metrics=figures(rows, self._totals, self._worst, kind=self._kind),
            positions=self.positions,
            guards=tuple(fired),
            against=self._against,
            reference_hash=self._reference_hash,
            minimum_atol=self._totals.largest_difference if self.positions else None,
            minimum_rtol=self._totals.largest_ratio if self.positions else None,
            worst=tuple(self._worst),
            notes=(*sorted(self._conversions), *notes(rows, self._totals)),
        )

    def _comparable(self, reference: Array, device: Array) -> bool:
        guard = None
        if reference.shape != device.shape or reference.ndim != 2 or not reference.shape[1]:
            guard = Guard(
                "shape_differs", f"reference {list(reference.shape)}, device {list(device.shape)}; [n, V] each"
            )
        elif not all(np.issubdtype(side.dtype, np.floating) for side in (reference, device)):
            guard = Guard("dtype_differs", f"reference {reference.dtype}, device {device.dtype}; floating point each")
        elif reference.dtype != device.dtype:
            self._conversions.add(f"reference {reference.dtype}, device {device.dtype}: compared in float64")
        if guard is not None and guard not in self._guards:
            self._guards.append(guard)
        return guard is None

    def _without_matching_infinities(
        self, r: Floats, d: Floats, targets: Ints | None
    ) -> Iterator[tuple[Floats, Floats, Ints | None, Ints | None]]:
        """Blocks to compare. Rows from which columns are taken out come one by one, with the ids of what is left."""
        matching = np.isinf(r) & (r == d) if self._allow_infinities else None
        if matching is None or not matching.any():
            yield r, d, targets, None
            return
        self._totals.removed_infinities += int(matching.sum())
        for row, masked in enumerate(matching):
            kept = np.flatnonzero(~masked)
            target = None if targets is None else targets[row : row + 1]
            if target is not None and masked[target[0]]:
                raise UsageError("the text contains a token that both outputs mask", found=int(target[0]))
            places = None if target is None else np.searchsorted(kept, target)
            yield r[row : row + 1, kept], d[row : row + 1, kept], places, kept

    def _compare(self, r: Floats, d: Floats, targets: Ints | None, ids: Ints | None) -> None:
        """Add rows of both sides. ``ids`` are the tokens of the columns where these are not simply 0..V-1."""
        self._scan.look(r, d, self.positions)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are guards, and NaN in the metrics
            self._keep("cosine", metrics.cosine(r, d))
            self._keep("centred_cosine", metrics.centred_cosine(r, d))
            log_p, log_q = metrics.log_softmax(r), metrics.log_softmax(d)
            self._keep("kl", metrics.kl_of_logs(log_p, log_q))
            if targets is not None:
                self._keep("reference_nll", metrics.pick_nll(log_p, targets))
                self._keep("device_nll", metrics.pick_nll(log_q, targets))
            self._compare_choices(r, d)
            difference = r - d
            np.abs(difference, out=difference)
            self._keep_worst(r, d, difference, ids)
            self._totals.add(r, difference)

    def _compare_choices(self, r: Floats, d: Floats) -> None:
        k = min(_TOP, r.shape[1])
        reference_top, device_top = metrics.top_k(r, k), metrics.top_k(d, k)
        first, chosen = reference_top[:, 0], device_top[:, 0]
        each = np.arange(len(r))
        best = r[each, first]
        self._keep("top1", first == chosen)
        self._keep("tied", np.count_nonzero(r == best[:, np.newaxis], axis=1) > 1)
        self._keep("lead", best - r[each, chosen])
        if k == _TOP:
            self._keep("top5_agreement", (first[:, np.newaxis] == device_top).any(axis=1))
            self._keep("top5_overlap", metrics.overlap(reference_top, device_top))

    def _keep(self, name: str, values: Array) -> None:
        self._rows.setdefault(name, []).append(values)

    def _keep_worst(self, r: Floats, d: Floats, difference: Floats, ids: Ints | None) -> None:
        full = len(self._worst) == _WORST_KEPT
        threshold = abs(self._worst[-1].reference - self._worst[-1].device) if full else 0.0
        rows = np.flatnonzero(difference.max(axis=1) > threshold)
        for row in rows:
            columns = np.flatnonzero(difference[row] > threshold)
            if columns.size > _WORST_KEPT:
                columns = columns[np.argpartition(difference[row, columns], -_WORST_KEPT)[-_WORST_KEPT:]]
            tokens = columns if ids is None else ids[columns]
            self._worst += [
                WorstElement(self.positions + int(row), int(token), float(r[row, column]), float(d[row, column]))
                for token, column in zip(tokens, columns, strict=True)
            ]
        if rows.size:
            self._worst.sort(key=lambda each: (-abs(each.reference - each.device), each.position, each.token))
            del self._worst[_WORST_KEPT:]


def _keep_blocks_in_heap() -> None:
    """Free one large block, so that glibc stops returning every block to the kernel.

    It hands freed memory back above a threshold that follows the largest block freed so far; without this, page faults
    take more than half of the comparison's time. Elsewhere it costs nothing and does nothing.
    """
    np.empty(16 * _BLOCK_ELEMENTS)


def _checked_targets(targets: Array, count: int, vocabulary: int) -> Ints:
    ids = np.asarray(targets, dtype=np.int64)
    if ids.shape != (count,):
        raise UsageError("one target id per position", field="targets", found=list(ids.shape), expected=[count])
    if count and not (ids.min() >= 0 and ids.max() < vocabulary):
        outside = ids[(ids < 0) | (ids >= vocabulary)][0]
        raise UsageError(
            "target id outside the vocabulary", field="targets", found=outside, expected=f"0..{vocabulary - 1}"
        )
    return ids
