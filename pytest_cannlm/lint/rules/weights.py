"""PKG100 to PKG109: the weight file of a simulated model, array by array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from pytest_cannlm.container.layout import EXTERNAL_WEIGHT_FILE
from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.graph import Stored
from pytest_cannlm.lint.numbers import LEAST_NEGATIVE, Look, Matrix, matrix_of

BOOK = RuleBook()

PAGE, BLOCK = 4096, 512
_ARRAYS = ("codes", "high", "low", "scales", "values")
_MOST_ZEROS, _ADJACENT = 0.05, 3
"""Share of the weights that adjacent tensors of zeros may hold, and how many tensors make such a run."""
_REBUILD = "Quantize the checkpoint again; check the quantizer's setting for this chip"


def _at(array: Stored, found: str, expected: str) -> Problem:
    return Problem(EXTERNAL_WEIGHT_FILE, array.name, found, expected, "Build the package again")


@BOOK.rule("PKG100", "error", "an array that the weight file does not hold")
def places(facts: PackageFacts) -> Iterator[Problem]:
    """The graph reads every array at a place in the weight file; past its end there is nothing to read."""
    size = _whole(facts).stat().st_size
    for array in facts.runtime.arrays:
        if array.location != EXTERNAL_WEIGHT_FILE:
            yield _at(array, f"in {array.location}", f"in {EXTERNAL_WEIGHT_FILE}")
        elif array.offset is None or array.length is None or array.length != array.nbytes:
            expected = f"{array.nbytes} bytes at an offset" if array.nbytes else "a known type and shape"
            yield _at(array, f"{array.length} bytes at offset {array.offset}", expected)
        elif array.offset + array.length > size:
            yield _at(array, f"{array.length} bytes at offset {array.offset}", f"an end within {size} bytes")


@BOOK.rule("PKG101", "warning", "an array that does not start on a page")
def pages(facts: PackageFacts) -> Iterator[Problem]:
    """A file is mapped in pages of 4096 bytes; what starts elsewhere is copied, and cannot be shared by offset."""
    yield from _misplaced(facts, PAGE)


@BOOK.rule("PKG102", "warning", f"an array that does not start on {BLOCK} bytes")
def blocks(facts: PackageFacts) -> Iterator[Problem]:
    """Kirin memory is handed out in units of 512 bytes; zero copy needs every array on one."""
    yield from _misplaced(facts, BLOCK)


@BOOK.rule("PKG103", "error", "two arrays overlap")
def overlaps(facts: PackageFacts) -> Iterator[Problem]:
    """No writer shares bytes between arrays: one of the two reads the other's numbers."""
    placed = sorted(
        (array.offset, array.offset + array.length, array.name)
        for array in facts.runtime.arrays
        if array.offset is not None and array.length
    )
    for (_, end, name), (start, _, other) in pairwise(placed):
        if start < end:
            yield Problem(
                EXTERNAL_WEIGHT_FILE,
                other,
                f"starts at {start}",
                f"{end}, the end of {name}",
                "Build the package again",
            )


@BOOK.rule("PKG104", "error", "a matrix lost its negative weights")
def no_negatives(facts: PackageFacts) -> Iterator[Problem]:
    """A wrong chip setting of the quantizer turns every negative weight into 0; the model runs and repeats one text."""
    for matrix in _tensors(facts).weights:
        look = facts.look(matrix)
        if look.clamped and not look.negative and not look.constant:
            found = f"no negative among {look.numbers:,} weights"
            yield Problem(EXTERNAL_WEIGHT_FILE, matrix.name, found, "about half of them", _REBUILD)


@BOOK.rule("PKG105", "warning", "a matrix has few negative weights")
def few_negatives(facts: PackageFacts) -> Iterator[Problem]:
    """Sound matrices have 40 % and more; below 30 % the quantizer probably clamped part of them."""
    for matrix in _tensors(facts).weights:
        look = facts.look(matrix)
        if look.clamped and look.negative and not look.constant:
            found = f"{look.negative_share:.1%} negative"
            yield Problem(EXTERNAL_WEIGHT_FILE, matrix.name, found, f"at least {LEAST_NEGATIVE:.0%}", _REBUILD)


@BOOK.rule("PKG106", "error", "NaN or infinite weights or scales")
def finite(facts: PackageFacts) -> Iterator[Problem]:
    """One of them makes every logit NaN."""
    tensors = _tensors(facts)
    for matrix in (*tensors.weights, *tensors.vectors):
        look = facts.look(matrix)
        if look.bad:
            yield Problem(
                EXTERNAL_WEIGHT_FILE, matrix.name, f"{look.bad:,} NaN or infinite", "finite numbers", _REBUILD
            )


@BOOK.rule("PKG107", "error", "a matrix of one number")
def constant(facts: PackageFacts) -> Iterator[Problem]:
    """It was never filled, or was overwritten: no training leaves one."""
    for matrix in _tensors(facts).weights:
        look = facts.look(matrix)
        if look.constant and look.low:
            yield Problem(
                EXTERNAL_WEIGHT_FILE, matrix.name, f"{look.low:g} everywhere", "numbers that differ", _REBUILD
            )


@BOOK.rule("PKG108", "warning", "a tensor of zeros")
def zeros(facts: PackageFacts) -> Iterator[Problem]:
    """Its layer passes nothing on. Models that were made deeper by empty layers have some; in others it was lost."""
    tensors = _tensors(facts)
    for matrix in (*tensors.weights, *tensors.vectors):
        look = facts.look(matrix)
        if _is_empty(look):
            fix = "Compare with the checkpoint"
            yield Problem(EXTERNAL_WEIGHT_FILE, matrix.name, "0 everywhere", "numbers that differ", fix)


@BOOK.rule("PKG109", "error", "a stretch of zeros in the weights")
def stretch(facts: PackageFacts) -> Iterator[Problem]:
    """Empty layers have their zeros apart; tensors of zeros one behind the other were never written, or wiped."""
    tensors = _tensors(facts)
    in_file = sorted((*tensors.weights, *tensors.vectors), key=_start)
    total = sum(map(_bytes, in_file))
    for empty, run in groupby(in_file, key=lambda matrix: _is_empty(facts.look(matrix))):
        found = list(run)
        share = sum(map(_bytes, found)) / total
        if empty and len(found) >= _ADJACENT and share > _MOST_ZEROS:
            words = f"{len(found)} tensors of zeros up to {found[-1].name}, {share:.0%} of the weights"
            fix = "Copy the file again, or build the package again"
            yield Problem(EXTERNAL_WEIGHT_FILE, found[0].name, words, "numbers", fix)


def _start(matrix: Matrix) -> int:
    return min(region.offset for region in matrix.arrays.values())


def _bytes(matrix: Matrix) -> int:
    return matrix.rows * matrix.row_bytes


def _is_empty(look: Look) -> bool:
    return look.constant and not look.low


def _whole(facts: PackageFacts) -> Path:
    """The weight file; nothing is said of the inside of one that is shorter than its model says, as others do that."""
    file = facts.weight_file
    expected = facts.container.external_weight_size()
    if expected is not None and file.stat().st_size < expected:
        raise CannotLook(f"{file.name} is shorter than the {expected} bytes that its model asks for")
    return file


def _misplaced(facts: PackageFacts, unit: int) -> Iterator[Problem]:
    wrong = [array for array in facts.runtime.arrays if array.offset is not None and array.offset % unit]
    if wrong:
        found = f"offset {wrong[0].offset}; {len(wrong)} arrays in all"
        yield _at(wrong[0], found, f"a multiple of {unit}")


@dataclass(frozen=True)
class _Tensors:
    """The tensors of a weight file that lie wholly in it and are of a known format."""

    weights: tuple[Matrix, ...]
    """Matrices: their numbers lie around zero."""
    vectors: tuple[Matrix, ...]
    """Norms, which are positive, and rotary tables."""


def _tensors(facts: PackageFacts) -> _Tensors:
    return facts.derived("tensors", lambda: _read_tensors(facts))


def _read_tensors(facts: PackageFacts) -> _Tensors:
    file = _whole(facts)
    size = file.stat().st_size
    matrices: dict[str, dict[str, Stored]] = {}
    vectors: dict[str, dict[str, Stored]] = {}
    for array in facts.runtime.arrays:
        name, _, key = array.name.rpartition(".")
        if array.location != EXTERNAL_WEIGHT_FILE or array.offset is None or array.offset + (array.nbytes or 0) > size:
            continue
        if key in _ARRAYS:
            matrices.setdefault(name, {})[key] = array
        else:
            vectors[array.name] = {"values": array}
    found = _Tensors(_known(matrices, file), _known(vectors, file))
    if not found.weights:
        raise CannotLook(f"no matrix of {EXTERNAL_WEIGHT_FILE} is where and what the graph says")
    return found


def _known(groups: Mapping[str, Mapping[str, Stored]], file: Path) -> tuple[Matrix, ...]:
    made = (matrix_of(name, arrays, file) for name, arrays in groups.items())
    return tuple(matrix for matrix in made if matrix is not None)
