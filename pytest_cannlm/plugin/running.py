"""pytest's side of a run: the harness of the session, and each NPU test from set-up to its report."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_cannlm.errors import CannlmError, EngineError, EnvironmentFailure, GateRefusal
from pytest_cannlm.plugin import collection, options, recording
from pytest_cannlm.plugin.collection import SOURCES
from pytest_cannlm.plugin.names import CASE, CLOUD, HARNESS, PROBLEMS

if TYPE_CHECKING:
    from pytest_cannlm.devices import DeviceInfo
    from pytest_cannlm.harness.fallback import CloudLlm, Trial
    from pytest_cannlm.harness.judgement import Judgement
    from pytest_cannlm.harness.run import Run
    from pytest_cannlm.harness.session import Harness
    from pytest_cannlm.measure.figures import Verdict
    from pytest_cannlm.report.record import Category, DeviceFacts, TestRecord

_STATE: pytest.StashKey[State] = pytest.StashKey()


@dataclass
class State:
    """One NPU test between set-up and report."""

    run: Run | None = None
    trial: Trial | None = None
    """Instead of a run: an app that falls back."""
    judgement: Judgement | None = None
    error: CannlmError | None = None
    """What broke while the test was made ready or judged."""
    device: DeviceInfo | None = None
    """The device, where it was opened; also where the test got no further."""


def harness_of(config: pytest.Config) -> Harness:
    """The harness of this process, made on first use."""
    if HARNESS not in config.stash:
        from pytest_cannlm.harness.session import Harness
        from pytest_cannlm.plugin.live import progress_of
        from pytest_cannlm.plugin.rooms import rooms_of

        settings = options.settings_of(config)
        config.stash[HARNESS] = Harness(settings, rooms=rooms_of(config), progress=progress_of(config))
    return config.stash[HARNESS]


def cloud_of(config: pytest.Config) -> CloudLlm:
    """The cloud endpoint of this process, opened on first use."""
    if CLOUD not in config.stash:
        from pytest_cannlm.harness.fallback import CloudLlm

        config.stash[CLOUD] = CloudLlm()
        config.pluginmanager.register(recording.KeyOutOfWarnings(config.stash[CLOUD].api_key), "cannlm-key")
    return config.stash[CLOUD]


def header_lines(config: pytest.Config) -> list[str]:
    """Devices and policies, and with ``--npu-explain`` where every setting came from."""
    settings = options.settings_of(config)
    try:
        pools = collection.device_pools(settings)
    except CannlmError as error:
        raise pytest.UsageError(str(error)) from None
    devices = "; ".join(
        ", ".join(spec.text for spec in pool.specs)
        + (" (simulated: its figures are modelled)" if pool.kind == "sim" else "")
        for pool in pools
    )
    required = ", NPU tests are required" if settings.required else ""
    explained = settings.explain_lines() if settings.explain else []
    return [f"npu: {devices}; CANN policy {settings.cann_policy}{required}", *(f"  {line}" for line in explained)]


def collected(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Read and check the markers of all tests.

    A worker of a parallel run cannot raise a usage error: pytest-xdist would turn it into an internal one. It hands the
    mistakes to the process that reports the run, and runs nothing.
    """
    from pytest_cannlm.devices import worker_number

    worker = worker_number(os.environ.get("PYTEST_XDIST_WORKER"))
    try:
        if not items:
            collection.refuse_misspelled_selection(config)
        collection.read_cases(items, config, options.settings_of(config), worker)
        collection.group_by_placement(items)
    except pytest.UsageError as mistakes:
        if not hasattr(config, "workeroutput"):
            raise
        config.workeroutput[PROBLEMS] = list(mistakes.args)
        items.clear()


def lines_after_collection(config: pytest.Config, cases: list[pytest.Item]) -> list[str]:
    """Where the NPU tests run, unless the header said it, and with ``--npu-explain`` where every argument came from."""
    lines = [] if options.anything_given(config) else header_lines(config)
    if options.settings_of(config).explain:
        for item in cases:
            lines += [f"{item.nodeid}:", *(f"  {line}" for line in item.stash[SOURCES])]
    return lines


def set_up(item: pytest.Item) -> None:
    """Make device, package and engine ready, or say why the test is not run."""
    if item.config.getoption("setupplan", False):
        return
    from pytest_cannlm.harness.elsewhere import resolve
    from pytest_cannlm.harness.run import NotRunError

    state = item.stash[_STATE] = State()
    not_run = None
    harness = harness_of(item.config)
    try:
        case = item.stash[CASE] = resolve(item.stash[CASE])
        if case.falls_back is None:
            state.run = harness.begin(case)
        else:
            state.trial = harness.begin_fallback(case, cloud_of(item.config))
    except NotRunError as reason:
        not_run = str(reason)
    except CannlmError as error:
        state.error = error
    state.device = harness.device_info(item.stash[CASE].device)
    # outside of the except blocks: pytest would show the error once more as the context of its own
    if not_run is not None:
        pytest.skip(not_run)
    _fail_with(state.error)


def judge(item: pytest.Item) -> None:
    """Judge the markers; a verdict that fails, fails the test, and the text shows all that do."""
    state = item.stash.setdefault(_STATE, State())
    try:
        collection.refuse_late_markers(item)
    except CannlmError as error:
        state.error = error
    _fail_with(state.error)
    if state.run is None and state.trial is None:
        return
    from pytest_cannlm.report.terminal import failure_text

    try:
        judgement = _judgement(item, state)
    except CannlmError as error:
        state.error = error
    else:
        state.judgement = judgement
    _fail_with(state.error)
    assert state.judgement is not None
    judgement = state.judgement
    wrong = [*judgement.failed, *judgement.inconclusive]
    if not wrong:
        return
    where = _facts(item, state)
    text = "\n\n".join(failure_text(verdict, where) for verdict in wrong)
    if judgement.failed or judgement.report_as is None:
        pytest.fail(text, pytrace=False)
    if judgement.report_as == "skip":
        pytest.skip(text)
    pytest.xfail(text)


def _judgement(item: pytest.Item, state: State) -> Judgement:
    if state.trial is not None:
        from pytest_cannlm.harness import fallback

        return fallback.judge(state.trial)
    from pytest_cannlm.harness.judging import judge as judge_run

    assert state.run is not None
    return judge_run(harness_of(item.config), state.run).and_also(_verdicts_of_others(item, state.run))


def refuse_fixtures_without_marker(item: pytest.Item) -> None:
    """Fail a test that took a fixture of ours but has no ``npu`` marker: nothing stood behind it."""
    from pytest_cannlm.fixtures import fixture_types

    # what only stands in its closure, as with an autouse fixture of a project, is not what the test is about
    asked = inspect.signature(getattr(item, "function", lambda: None)).parameters
    values = getattr(item, "funcargs", {})
    taken = [name for name in asked if isinstance(values.get(name), fixture_types())]
    if taken:
        pytest.fail(
            f"UsageError: the test uses {', '.join(taken)} but has no npu marker, so nothing was tested. "
            "Put @pytest.mark.npu(model=...) on the test, its class or its module",
            pytrace=False,
        )


def tear_down(item: pytest.Item) -> None:
    """The test is over."""
    if HARNESS in item.config.stash:
        item.config.stash[HARNESS].end()
    if CLOUD in item.config.stash:
        item.config.stash[CLOUD].attach(None)


def complete_report(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Attach the test's record; with ``--npu-required`` an NPU test that did not run becomes a failure."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    state = item.stash.get(_STATE, None) or State()
    category = _category(call, report, state)
    reason = None
    if category == "not-run":
        reason = str(call.excinfo.value) if call.excinfo else "no reason given"
        if options.settings_of(item.config).required:
            _turn_into_failure(item, report, f"NPU test did not run: {reason} (--npu-required)")
    if isinstance(report.longrepr, tuple) and report.longrepr[0] == __file__:
        file, line, _ = item.location  # a skip of ours happened here, but it is about the test
        report.longrepr = (file, (line or 0) + 1, report.longrepr[2])
    error = state.error or (call.excinfo.value if call.excinfo else None)
    if state.trial is not None and report.failed and state.judgement is None and state.trial.runs:
        from pytest_cannlm.harness.fallback import told

        report.sections.append(("The app under test", told(state.trial)))
    record = replace(
        _facts(item, state),
        outcome=_outcome(report),
        category=category,
        verdicts=state.judgement.verdicts if state.judgement else (),
        figures=state.judgement.further_figures if state.judgement else (),
        not_run_reason=reason,
        error=error.as_dict() if isinstance(error, CannlmError) else None,
        duration_s=call.duration,
    )
    recording.attach(item, report, record, _device_facts(item, state))


def _fail_with(error: CannlmError | None) -> None:
    if error is not None:
        pytest.fail(f"{type(error).__name__}: {error.with_notes()}", pytrace=False)


def _verdicts_of_others(item: pytest.Item, run: Run) -> tuple[Verdict, ...]:
    found = item.config.hook.pytest_cannlm_judge(item=item, run=run)
    return tuple(verdict for verdicts in found for verdict in verdicts or ())


def _category(call: pytest.CallInfo[None], report: pytest.TestReport, state: State) -> Category:
    if state.judgement is not None and state.trial is not None:
        return "fallback"
    if state.judgement is not None and state.judgement.verdicts:
        undecided = state.judgement.inconclusive and not state.judgement.failed
        return "inconclusive" if undecided else "judged"
    if report.passed:
        return "unlimited"
    if report.skipped and not hasattr(report, "wasxfail"):
        return "not-run"
    error = state.error or (call.excinfo.value if call.excinfo else None)
    if isinstance(error, EnvironmentFailure):
        return "environment"
    if isinstance(error, GateRefusal):
        return "judged"  # by the gate
    if isinstance(error, EngineError):
        return "engine"
    return "unjudged" if state.error is not None else "body"


def _outcome(report: pytest.TestReport) -> Literal["passed", "failed", "skipped", "error", "xfailed", "xpassed"]:
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    return "error" if report.failed and report.when == "setup" else report.outcome


def _turn_into_failure(item: pytest.Item, report: pytest.TestReport, text: str) -> None:
    """Make the report of a skipped test that of a failed one, whose first line is ``text``."""
    try:
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception as failure:
        report.outcome = "failed"
        report.longrepr = item.repr_failure(pytest.ExceptionInfo.from_exception(failure))


def _facts(item: pytest.Item, state: State) -> TestRecord:
    """Where a test ran, before it is known what became of it."""
    case = item.stash[CASE]
    from pytest_cannlm.report.record import TestRecord

    falls_back, device = case.falls_back is not None, state.device
    return TestRecord(
        nodeid=item.nodeid,
        outcome="passed",
        category="fallback" if state.trial else "judged",
        model=case.model,
        scheme=case.scheme,
        # an app that falls back runs on this machine, as if on another chip; the device only decided the package
        device=None if falls_back else case.device.text,
        chip=state.trial.chip if state.trial else device.chip if device and not falls_back else None,
        cann=device.cann if device and not falls_back else None,
        simulated=not falls_back and (device.simulated if device else case.device.kind == "sim"),
        served_by=_served_by(state),
        not_applied=state.trial.not_applied if state.trial else (),
    )


def _served_by(state: State) -> tuple[str, ...]:
    """Who answered: what generated, in its own words; where only figures were taken, the same words of the device."""
    if state.trial is not None:
        return state.trial.served_by
    if state.run is None:
        return ()
    named = list(state.run.served_by)
    if not named and state.judgement is not None and any(verdict.figure for verdict in state.judgement.verdicts):
        named = [state.run.engine_label]
    return tuple(f"npu: {name}" for name in named)


def _device_facts(item: pytest.Item, state: State) -> DeviceFacts | None:
    from pytest_cannlm.report.record import DeviceFacts

    device = state.device
    if device is None or item.stash[CASE].falls_back is not None:  # which nothing was run on
        return None
    return DeviceFacts(
        name=device.name,
        kind=device.kind,
        chip=device.chip,
        cann=device.cann,
        device_version=device.device_version,
        simulated=device.simulated,
        ram_bytes=device.ram_bytes,
        options=dict(device.options),
    )
