"""pytest hooks; each a few lines that delegate.

This module is loaded in every pytest run of everyone who has the package installed. At import it needs pytest, the
standard library and the few small modules below; everything else waits for a test with a marker of ours, and a session
without one is left as it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from typing import Any

import pytest

from pytest_cannlm.fixtures import cloud_llm, npu, npu_device, npu_package, onnx_reference
from pytest_cannlm.plugin import options
from pytest_cannlm.plugin.names import CASE, CLOUD, HARNESS, MARKS, PROBLEMS, RECORD, RECORDS, Records

__all__ = ["cloud_llm", "npu", "npu_device", "npu_package", "onnx_reference"]


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks of :mod:`pytest_cannlm.hookspecs`, and keep this module from being registered again.

    It has two names, that of its entry point and its own (``-p pytest_cannlm.plugin``); pytest refuses one module under
    two, so whichever came first blocks the other.
    """
    from pytest_cannlm import hookspecs

    pluginmanager.add_hookspecs(hookspecs)
    for name in {"cannlm", __name__} - {pluginmanager.get_name(sys.modules[__name__])}:
        pluginmanager.set_blocked(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register every option, on the command line and in pytest's configuration."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Say clearly which option a conftest.py took that is ours."""
    try:
        result = yield
        if pytest.version_tuple < (9, 2):
            parser.parse_known_args([])  # older versions find a conflict only here, and then show a traceback
        return result
    except argparse.ArgumentError as error:
        options.explain_conflict(error)
        raise


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and keep the records that reports bring."""
    for name, asserts in MARKS.items():
        config.addinivalue_line("markers", f"{name}({options.arguments_shown(config, name)}): {asserts}")
    config.stash[RECORDS] = Records()
    config.pluginmanager.register(config.stash[RECORDS], "cannlm-records")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Devices and policies, where somebody asked for them; other sessions see no line of ours."""
    if not options.anything_given(config):
        return []
    from pytest_cannlm.plugin import running

    return running.header_lines(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Fan lists out into parameters."""
    if metafunc.definition.get_closest_marker("npu") is not None:
        from pytest_cannlm.plugin import collection

        try:
            settings = options.settings_of(metafunc.config)
        except pytest.UsageError:
            return  # raised again after collection, where pytest shows it as wrong use and not as a traceback
        collection.fan_out(metafunc, settings)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Read and check the markers of all tests that are left after every other plugin's selection."""
    marked = any(mark.name in MARKS for item in items for mark in item.iter_markers())
    if marked or (not items and config.getoption("markexpr", "")):
        from pytest_cannlm.plugin import running

        running.collected(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist ended; take over what it could not raise itself."""
    problems = getattr(node, "workeroutput", {}).get(PROBLEMS)
    if problems:
        node.config.stash[RECORDS].problems = problems


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Where the NPU tests are going to run."""
    cases = [item for item in items if CASE in item.stash]
    if not cases:
        return []
    from pytest_cannlm.plugin import running

    return running.lines_after_collection(config, cases)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make device, package and engine ready, and the cloud endpoint as if nothing had been asked of it."""
    if CLOUD in item.config.stash:
        item.config.stash[CLOUD].reset()
    if CASE in item.stash:
        from pytest_cannlm.plugin import running

        running.set_up(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the markers after the body; a verdict that fails, fails the test."""
    result = yield
    if CLOUD in item.config.stash:
        item.config.stash[CLOUD].raise_script_error()
    if CASE in item.stash or any(mark.name in MARKS for mark in item.iter_markers()):
        from pytest_cannlm.plugin import running

        running.judge(item)
    elif HARNESS in item.config.stash:
        from pytest_cannlm.plugin import running

        running.refuse_fixtures_without_marker(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """The test is over."""
    try:
        return (yield)
    finally:
        if CASE in item.stash:
            from pytest_cannlm.plugin import running

            running.tear_down(item)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the test's record to its report, so that it travels wherever the report does."""
    report = yield
    if CASE in item.stash:
        from pytest_cannlm.plugin import running

        running.complete_report(item, call, report)
    if CLOUD in item.config.stash:
        from pytest_cannlm.plugin import recording

        recording.hide_key(report, item.config.stash[CLOUD].api_key)
    return report


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """A test of a fallback passed, but not on an NPU: pytest counts it apart."""
    record = getattr(report, RECORD, None)
    if record is None or not report.passed or report.when != "call" or record["test"]["category"] != "fallback":
        return None
    how = "via the cloud" if record["test"]["served_by"] else "without an NPU"
    return f"passed {how}", "c", f"PASSED {how}"


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    """Close devices, write the reports, and have the last word after pytest's own summary line."""
    config = session.config
    if HARNESS in config.stash:
        config.stash[HARNESS].close()
    try:
        records = config.stash[RECORDS]
        if not records.data and not records.problems and not options.anything_given(config):
            return (yield)
        from pytest_cannlm.plugin import recording

        recording.write_reports(session)
        result = yield
        recording.write_last_line(config)
        return result
    finally:  # last, because it warns of a callable that does not return, and a warning can be an error
        if CLOUD in config.stash:
            config.stash[CLOUD].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One table with every figure, its limit, its margin and whether it is measured or modelled."""
    if config.stash[RECORDS].data:
        from pytest_cannlm.plugin import recording

        recording.summarize(terminalreporter, config)
