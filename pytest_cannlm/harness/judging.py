"""Judge all markers of a test after its body, in an order in which none disturbs what another looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_cannlm.agent.protocol import Kind
from pytest_cannlm.errors import EngineError
from pytest_cannlm.harness import latency, memory, parity, refusal
from pytest_cannlm.harness.judgement import Judged, Judgement, guard
from pytest_cannlm.harness.run import Run
from pytest_cannlm.harness.session import Harness
from pytest_cannlm.measure.figures import Verdict
from pytest_cannlm.parity.guards import check_origin


def judge(harness: Harness, run: Run) -> Judgement:
    """All verdicts, not just the first that fails. An engine that died under the body leaves nothing to judge.

    The footprint is read first, before judging itself uses the engine. The copies of ``refuses_load`` and the unloading
    for what is retained come last, because they disturb the engine.
    """
    case, policy = run.case, harness.settings.inconclusive
    dead = _engine_lost(run)
    if dead is not None:
        return Judgement(verdicts=(dead,))
    footprint = memory.observe(run) if case.memory else None
    judged: list[Judged] = []
    if case.latency:
        judged.append(latency.judge(run, case.latency, policy))
    if case.parity:
        reference = harness.reference(run, case.parity.against)
        judged.append(parity.judge(run, case.parity, reference=reference, progress=harness.progress))
    if case.refuses:
        scratch = harness.settings.cache_folder / "relabelled"
        judged.append(refusal.judge(run, case.refuses, relabel=harness.rooms.relabel, scratch=scratch))
    if case.memory and footprint:
        judged.append(memory.judge(run, case.memory, footprint))
    return Judgement(
        verdicts=(*_origin(run, judged), *(verdict for one in judged for verdict in one.verdicts)),
        figures=tuple(figure for one in judged for figure in one.figures),
        report_as=policy if policy in ("skip", "xfail") else None,
    )


def _engine_lost(run: Run) -> Verdict | None:
    """A failing verdict if the process that held the engine is not the one that the test started with."""
    evidence = "another process holds the engine now"
    try:
        run.client.memory()  # through the engine: a process that is about to end still looks alive
    except EngineError as error:
        evidence = str(error)
    now, before = run.client.status(), run.started
    if (now.worker, now.crashes) == (before.worker, before.crashes):
        return None
    return guard("engine_alive", f"the engine was lost while the test's body ran: {evidence}", "the engine's log lines")


def _origin(run: Run, judged: Iterable[Judged]) -> Iterator[Verdict]:
    """A failing verdict if anything of this test comes from a model of an engine and the device claims to be real."""
    kinds: set[Kind] = {asked.generation.kind for asked in run.asked}
    for one in judged:
        kinds |= {figure.kind for figure in one.figures}
        kinds |= {verdict.figure.kind for verdict in one.verdicts if verdict.figure}
    fired = check_origin("modelled" if "modelled" in kinds else "measured", device_is_simulated=run.device.simulated)
    if fired is not None:
        yield guard(fired.name, fired.detail, fired.look_at)
