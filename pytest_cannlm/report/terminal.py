"""What a user reads at the end of a run: one table, the counts, and why a verdict failed. Plain text, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from pytest_cannlm.measure.figures import Figure, Verdict
from pytest_cannlm.measure.judging import tokens_per_second
from pytest_cannlm.measure.units import format_number, format_value
from pytest_cannlm.report.record import RunRecord, TestRecord
from pytest_cannlm.report.text import pad, shorten, visible, width

WriteLine = Callable[[str], object]
"""Takes one line without its end, as a pytest terminal reporter's ``write_line`` does."""

_COLUMNS = ("figure", "found", "limit", "margin", "kind", "verdict")
_RIGHT = frozenset({"found", "limit", "margin"})
_GAP = "  "
_SHORTEST_ID = 16


def render(run: RunRecord, write_line: WriteLine, *, columns: int = 100) -> None:
    """Write the table of all verdicts and the counts; nothing at all where no test used an NPU.

    ``columns`` is the terminal's width: test ids are shortened in the middle to keep within it.
    """
    if not run.tests:
        return
    for line in (*table(run, columns=columns), *summary(run)):
        write_line(line)


def table(run: RunRecord, *, columns: int = 100) -> list[str]:
    """Heading, then each judged test's id with a line per verdict under it, aligned; empty if nothing was judged."""
    judged = [(test, [_row(verdict) for verdict in test.verdicts]) for test in run.tests if test.verdicts]
    if not judged:
        return []
    cells = [_COLUMNS, *(row for _, rows in judged for row in rows)]
    widths = [max(width(cell) for cell in column) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        aligned = (
            pad(cell, size, right=name in _RIGHT) for name, cell, size in zip(_COLUMNS, row, widths, strict=True)
        )
        return (_GAP + _GAP.join(aligned)).rstrip()

    lines = [line(_COLUMNS)]
    for test, rows in judged:
        lines += [shorten(visible(test.nodeid), max(_SHORTEST_ID, columns)), *map(line, rows)]
        if test.not_applied:
            lines.append(f"{_GAP}not applied to what the cloud answers: {', '.join(test.not_applied)}")
    return lines


def summary(run: RunRecord) -> list[str]:
    """Counts that must not hide: tests that did not run, that are undecided, that failed for another reason."""
    lines = []
    outcomes = Counter(verdict.outcome for test in run.tests for verdict in test.verdicts)
    if outcomes:
        lines.append(
            f"{outcomes.total()} verdicts: {outcomes['pass']} passed, {outcomes['fail']} failed, "
            f"{outcomes['inconclusive']} inconclusive"
        )
    kinds = {figure.kind for figure in _figures(run)}
    if kinds == {"modelled"}:
        chips = sorted({test.chip for test in run.tests if test.simulated and test.chip})
        where = f" (simulated {', '.join(map(visible, chips))})" if chips else ""
        lines.append(f"all figures modelled{where}: predictions, not measurements")
    elif len(kinds) == 2:
        lines.append("figures are partly measured, partly modelled: see the column kind")
    via_cloud = sum(any(name.startswith("cloud: ") for name in test.served_by) for test in run.tests)
    if via_cloud:
        lines.append(f"answered by the cloud: {via_cloud} tests; no NPU coverage")
    not_run = Counter(test.not_run_reason or "no reason given" for test in run.tests if test.category == "not-run")
    if not_run:
        reasons = "; ".join(f"{count} × {visible(reason)}" for reason, count in sorted(not_run.items()))
        lines.append(f"NPU tests not run: {not_run.total()} ({reasons})")
    inconclusive = sum(test.category == "inconclusive" for test in run.tests)
    if inconclusive:
        lines.append(f"inconclusive: {inconclusive} tests; their samples cannot decide")
    environment = sum(test.category == "environment" for test in run.tests)
    if environment:
        lines.append(f"environment or device failed: {environment} tests; nothing was judged there")
    return lines


def failure_text(verdict: Verdict, test: TestRecord) -> str:
    """Why a verdict is not a pass, in lines: found, limit, interval, margin, samples, where it ran, where to look."""
    facts = list(_facts(verdict, test))
    size = max(len(label) for label, _ in facts)
    head = f"{verdict.name}: {verdict.outcome}: {verdict.reason}"
    return "\n".join(
        [*map(visible, head.splitlines()), *(f"  {label:<{size}}  {visible(text)}" for label, text in facts)]
    )


def _facts(verdict: Verdict, test: TestRecord) -> Iterator[tuple[str, str]]:
    figure = verdict.figure
    if figure is None and verdict.limit is not None:
        yield "found", "nothing"
    elif figure is not None:
        yield "found", f"{_shown(figure)}, {figure.kind}; {figure.statistic}"
    if verdict.limit is not None:
        direction = "at most" if verdict.better == "lower" else "at least"
        yield "limit", f"{direction} {format_value(verdict.limit, verdict.unit)}, from {verdict.limit_source}"
    else:
        yield "asked by", verdict.limit_source
    if figure is not None:
        yield "interval", _interval(figure)
    if verdict.margin is not None:
        yield "margin", _margin(verdict, explain=True)
    if figure is not None:
        yield "samples", _samples(figure)
        if "minimum_atol" in figure.detail:
            atol, rtol = (format_number(figure.detail[name]) for name in ("minimum_atol", "minimum_rtol"))
            yield "tolerance", f"every element passes with atol {atol} alone, or with rtol {rtol} alone"
    yield "on", _where(test)
    if verdict.look_at:
        yield "look at", verdict.look_at


def _shown(figure: Figure) -> str:
    rate = tokens_per_second(figure)
    shown = format_value(figure.value, figure.unit)
    return shown if rate is None else f"{shown} ({format_value(rate, 'tokens/s')})"


def _interval(figure: Figure) -> str:
    if figure.lower is None and figure.upper is None:
        return "none: the sample gives no bound"
    if figure.lower == figure.upper and figure.confidence is None:
        return "none needed: an exact value or a fixed set"
    lower, upper = (
        "unknown" if bound is None else format_value(bound, figure.unit) for bound in (figure.lower, figure.upper)
    )
    sure = "" if figure.confidence is None else f", each bound at {format_number(100 * figure.confidence)} % confidence"
    return f"{lower} to {upper}{sure}"


def _samples(figure: Figure) -> str:
    detail = figure.detail
    per_round = detail.get("generations_per_round")
    if not per_round:
        worst = detail.get("worst_position")
        return f"{figure.samples}" + ("" if worst is None else f"; worst at position {worst}")
    parts = [f"{len(per_round)} rounds of {_span(per_round)} generations"]
    for key, what in (("prompt_tokens", "prompt tokens"), ("new_tokens", "new tokens")):
        if detail.get(key):
            parts.append(f"{_span(detail[key])} {what}")
    if detail.get("context"):
        parts.append(f"context {detail['context']}")
    if detail.get("looks", 1) > 1:
        parts.append(f"look {detail['look']} of {detail['looks']}")
    if detail.get("void_rounds"):
        parts.append(f"{len(detail['void_rounds'])} void rounds left out")
    return ", ".join(parts)


def _span(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _where(test: TestRecord) -> str:
    chip = test.chip or "unknown chip"
    if test.category == "fallback":
        return f"model {test.model}, scheme {test.scheme}, as if on {chip}: nothing was loaded"
    device = f"simulated {chip}" if test.simulated else chip
    if test.device:
        device += f" on {test.device}"
    parts = [f"model {test.model or 'unknown'}", f"scheme {test.scheme or 'unknown'}", device]
    return ", ".join([*parts, f"CANN {test.cann}"] if test.cann else parts)


def _row(verdict: Verdict) -> tuple[str, ...]:
    figure = verdict.figure
    return (
        visible(verdict.name),
        "–" if figure is None else format_value(figure.value, figure.unit),
        "–" if verdict.limit is None else format_value(verdict.limit, verdict.unit),
        _margin(verdict),
        "–" if figure is None else figure.kind,
        verdict.outcome,
    )


def _margin(verdict: Verdict, *, explain: bool = False) -> str:
    """Percent of the limit in the table; with ``explain`` in the unit too, and on which side."""
    percent = verdict.margin_percent
    if verdict.margin is None:
        return "–"
    short = "–" if percent is None else f"{percent:+.1f} %"
    if not explain:
        return short
    side = "left" if verdict.margin >= 0 else "beyond the limit"
    return f"{format_value(abs(verdict.margin), verdict.unit)} {side} ({short})"


def _figures(run: RunRecord) -> Iterator[Figure]:
    for test in run.tests:
        yield from test.figures
        yield from (verdict.figure for verdict in test.verdicts if verdict.figure is not None)
