"""PKG040 to PKG045: the two embedding files, int8 rows and one float32 scale per row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pytest_cannlm.lint.facts import PackageFacts
from pytest_cannlm.lint.finding import CannotLook, Problem, RuleBook
from pytest_cannlm.lint.numbers import LEAST_NEGATIVE, Look, Matrix, Region, values

BOOK = RuleBook()

_ROWS, _SCALES = "embedding_weights", "embedding_dequant_scale"
_REBUILD = "Quantize the checkpoint again; check the quantizer's setting for this chip"
_MOST_SCALES = 1 << 24
_MOST_ZEROS = 10_000
"""Rows with a scale of zero that are looked at; sound files have a handful."""


def _wrong_size(facts: PackageFacts, key: str, expected: int, rule: str) -> Iterator[Problem]:
    _need_int8(facts)
    path = facts.embedding(key)
    size = path.stat().st_size
    if size != expected:
        fix = "Copy the file again, or take the one that was made with this model"
        yield Problem(path.name, None, f"{size} bytes", f"{expected} bytes, {rule}", fix)


@BOOK.rule("PKG040", "error", "the embedding rows have another size")
def rows_size(facts: PackageFacts) -> Iterator[Problem]:
    """The file is int8 [vocab_size, hidden_size] and nothing else; the engine reads beyond a shorter one."""
    expected = facts.count("vocab_size") * facts.count("hidden_size")
    yield from _wrong_size(facts, _ROWS, expected, "vocab_size x hidden_size")


@BOOK.rule("PKG041", "error", "the embedding scales have another size")
def scales_size(facts: PackageFacts) -> Iterator[Problem]:
    """The file is float32 [vocab_size] and nothing else."""
    yield from _wrong_size(facts, _SCALES, facts.count("vocab_size") * 4, "vocab_size x 4")


@BOOK.rule("PKG042", "error", "embedding scales that are no scales")
def scales(facts: PackageFacts) -> Iterator[Problem]:
    """A scale is max(abs(row)) / 127: finite, above zero, and zero only where the whole row is."""
    _need_int8(facts)
    region = _region(facts, _SCALES, "<f4", (facts.count("vocab_size"),))
    if region.shape[0] > _MOST_SCALES:
        raise CannotLook(f"more than {_MOST_SCALES:,} scales")
    found = region.rows(0, region.shape[0]).astype(np.float32)
    bad = ~np.isfinite(found)
    for words, wrong in (
        ("NaN or infinite", bad),
        ("negative", ~bad & (found < 0)),
        ("zero, for a row that is not", _zero_for_numbers(facts, found == 0)),
    ):
        rows = np.flatnonzero(wrong)
        if rows.size:
            shown = f"{rows.size} are {words}, first that of token {rows[0]}"
            yield Problem(region.file.name, None, shown, "finite numbers above zero", _REBUILD)


@BOOK.rule("PKG043", "error", "the embedding lost its negative numbers")
def no_negatives(facts: PackageFacts) -> Iterator[Problem]:
    """A wrong chip setting of the quantizer turns every negative weight into 0; the model runs and repeats one text."""
    look, file = _look(facts)
    if look.clamped and not look.negative and not look.constant:
        yield Problem(file, None, f"no negative among {look.numbers:,} numbers", "about half of them", _REBUILD)


@BOOK.rule("PKG044", "warning", "the embedding has few negative numbers")
def few_negatives(facts: PackageFacts) -> Iterator[Problem]:
    """Sound tensors have 40 % and more; below 30 % the quantizer probably clamped part of them."""
    look, file = _look(facts)
    if look.clamped and look.negative and not look.constant:
        yield Problem(file, None, f"{look.negative_share:.1%} negative", f"at least {LEAST_NEGATIVE:.0%}", _REBUILD)


@BOOK.rule("PKG045", "error", "the embedding holds one number only")
def constant(facts: PackageFacts) -> Iterator[Problem]:
    """Every token then looks the same to the model: the file was never filled, or was overwritten."""
    look, file = _look(facts)
    if look.constant:
        yield Problem(file, None, f"{look.low:g} everywhere", "rows that differ", "Copy or build the package again")


def _need_int8(facts: PackageFacts) -> None:
    kind = facts.setting("llm_config", "embedding_input_type", str)
    if kind != "int8":
        raise CannotLook(f"the layout of {kind} embedding files is not known")


def _region(facts: PackageFacts, key: str, dtype: str, shape: tuple[int, ...]) -> Region:
    region = Region(facts.embedding(key), 0, dtype, shape)
    if region.file.stat().st_size != shape[0] * region.row_bytes:
        raise CannotLook(f"{region.file.name} has another size")
    return region


def _rows(facts: PackageFacts) -> Region:
    _need_int8(facts)
    return _region(facts, _ROWS, "<i1", (facts.count("vocab_size"), facts.count("hidden_size")))


def _look(facts: PackageFacts) -> tuple[Look, str]:
    region = _rows(facts)
    return facts.look(Matrix(region.file.name, {"values": region}, values)), region.file.name


def _zero_for_numbers(facts: PackageFacts, zero: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows hold numbers although their scale is zero; all False where the rows cannot be read."""
    wrong = np.zeros_like(zero)
    try:
        region = _rows(facts)
    except CannotLook:
        return wrong
    for row in np.flatnonzero(zero)[:_MOST_ZEROS]:
        wrong[row] = bool(region.rows(int(row), int(row) + 1).any())
    return wrong
