"""Judge all markers of a test after its body, in an order in which none disturbs what another looks at."""

from __future__ import annotations

from pytest_cannlm.harness import latency, memory, parity, refusal
from pytest_cannlm.harness.judgement import Judged, Judgement
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.session import Harness


def judge(harness: Harness, run: Run) -> Judgement:
    """All verdicts, not just the first that fails.

    The footprint is read first, before judging itself uses the engine. The copies of ``refuses_load`` and the unloading
    for what is retained come last, because they disturb the engine.
    """
    case = run.case
    footprint = memory.observe(run) if case.memory else None
    judged: list[Judged] = []
    if case.latency:
        judged.append(latency.judge(run, case.latency, harness.settings.inconclusive))
    if case.parity:
        reference = harness.reference(run, case.parity.against)
        judged.append(parity.judge(run, case.parity, reference=reference, progress=harness.progress))
    if case.refuses:
        scratch = harness.settings.cache_folder / "relabelled"
        judged.append(refusal.judge(run, case.refuses, relabel=harness.rooms.relabel, scratch=scratch))
    if case.memory and footprint:
        judged.append(memory.judge(run, case.memory, footprint))
    return Judgement(
        verdicts=tuple(verdict for one in judged for verdict in one.verdicts),
        figures=tuple(figure for one in judged for figure in one.figures),
        report_as=next((one.report_as for one in judged if one.report_as), None),
    )
