"""What became of each NPU test, and the views of it: a record on every report, the table, the last line, the files.

Records travel on pytest's own reports as plain data, so that they reach the process that reports the run whether tests
ran there or in the workers of a parallel run.
"""

from __future__ import annotations

import datetime
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import pytest_cannlm
from pytest_cannlm.errors import CannlmError
from pytest_cannlm.plugin import options
from pytest_cannlm.plugin.names import RECORD, RECORDS

if TYPE_CHECKING:
    from pytest_cannlm.cloud.secret import Secret
    from pytest_cannlm.report.record import DeviceFacts, RunRecord, TestRecord

_PREFIX = "cannlm."
_TROUBLE: pytest.StashKey[str] = pytest.StashKey()
"""Why the JSON report could not be written."""


def run_record(config: pytest.Config) -> RunRecord:
    """The record of the run so far. Of a test that ran again, the last run counts."""
    from pytest_cannlm.report.record import DeviceFacts, OptionValue, RunRecord, TestRecord, from_data, with_tests

    tests, devices = {}, {}
    for data in config.stash[RECORDS].data:
        test = from_data(TestRecord, data["test"])
        tests[test.nodeid] = test
        if data["device"] is not None:
            device = from_data(DeviceFacts, data["device"])
            devices[device.name] = device
    explained = options.settings_of(config).explained()
    run = RunRecord(
        created_by=f"pytest-cannlm {pytest_cannlm.__version__}",
        started=datetime.datetime.fromtimestamp(config.stash[RECORDS].started, datetime.UTC).isoformat(),
        devices=tuple(devices[name] for name in sorted(devices)),
        options={name: OptionValue(value=value, source=source) for name, value, source in explained},
    )
    return with_tests(run, tests.values())


def attach(item: pytest.Item, report: pytest.TestReport, record: TestRecord, device: DeviceFacts | None) -> None:
    """Put a test's record on its report, and its figures among the properties that JUnit XML shows."""
    from pytest_cannlm.report.junit import properties_of
    from pytest_cannlm.report.record import to_data

    setattr(report, RECORD, {"test": to_data(record), "device": None if device is None else to_data(device)})
    if not options.settings_of(item.config).no_junit:
        properties = properties_of(record)
        item.user_properties[:] = [pair for pair in item.user_properties if not pair[0].startswith(_PREFIX)]
        item.user_properties.extend(properties)  # pytest's XML takes them from the report of the teardown
        report.user_properties.extend(properties)


def hide_key(report: pytest.TestReport, key: Secret) -> None:
    """Take the key of the cloud endpoint out of all that a report shows: failure texts, captured output, the record."""
    for name in (RECORD, "wasxfail"):
        if hasattr(report, name):
            setattr(report, name, _hidden(getattr(report, name), key))
    report.user_properties[:] = [
        (name, key.hidden_in(str(value)) if key.is_in(str(value)) else value) for name, value in report.user_properties
    ]
    report.sections[:] = [(name, key.hidden_in(text)) for name, text in report.sections]
    if key.is_in(report.longreprtext):
        report.longrepr = _hidden(report.longrepr, key)


class KeyOutOfWarnings:
    """A plugin that takes the key out of the summary of warnings."""

    def __init__(self, key: Secret) -> None:
        self._key = key

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """A warning, before anybody shows it."""
        warning = warning_message.message
        if isinstance(warning, Warning) and self._key.is_in(str(warning)):
            warning.args = _hidden(warning.args, self._key)
            _hidden(warning, self._key)


def _hidden(shown: Any, key: Secret) -> Any:
    """The same tree of texts, lists and pytest's own objects, without the key."""
    if isinstance(shown, str):
        return key.hidden_in(shown)
    if isinstance(shown, list | tuple):
        return type(shown)(_hidden(part, key) for part in shown)
    if isinstance(shown, dict):
        return {name: _hidden(part, key) for name, part in shown.items()}
    for name, part in getattr(shown, "__dict__", {}).items():
        setattr(shown, name, _hidden(part, key))
    return shown


def write_reports(session: pytest.Session) -> None:
    """Write the JSON report and the properties of the whole run, in the process that reports it.

    A JSON report that was asked for and cannot be written fails the run.
    """
    config = session.config
    if hasattr(config, "workerinput"):
        return
    if config.stash[RECORDS].problems:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return
    settings = options.settings_of(config)
    if settings.report is not None:
        from pytest_cannlm.report.json_report import write_json_report

        try:
            write_json_report(run_record(config), settings.report)
        except CannlmError as error:
            config.stash[_TROUBLE] = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    if config.stash[RECORDS].data and not settings.no_junit:
        from pytest_cannlm.report.junit import suite_properties

        # pytest has no public way to its XML writer; it is the plugin with this method.
        for plugin in config.pluginmanager.get_plugins():
            add = getattr(plugin, "add_global_property", None)
            if callable(add):
                for name, value in suite_properties(run_record(config)):
                    add(name, value)


def summarize(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One table with every verdict, and the counts."""
    from pytest_cannlm.report.terminal import render

    lines: list[str] = []
    run = run_record(config)
    render(run, lines.append, columns=config.get_terminal_writer().fullwidth)
    lines += [
        f"simulated {device.chip}, {mode}: {device.name} computes in other number formats than the chip"
        for device in run.devices
        if device.simulated and (mode := device.options.get("mode", "faithful")) != "faithful"
    ]
    if lines:
        terminalreporter.section("NPU tests")
        for line in lines:
            terminalreporter.write_line(line)


def write_last_line(config: pytest.Config) -> None:
    """After pytest's own last line: what was judged, and apart from it what the environment or the samples spoiled."""
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):
        return
    troubles = [*config.stash[RECORDS].problems, *([config.stash[_TROUBLE]] if _TROUBLE in config.stash else [])]
    for trouble in troubles:
        terminal.write_line(f"ERROR: {trouble}", red=True)
    if config.stash[RECORDS].data:
        terminal.write_line(_in_one_line(run_record(config)))


_WORDS = {
    "judged": "judged",
    "unlimited": "ran without a limit",
    "body": "failed in their own body",
    "engine": "failed in the engine",
    "unjudged": "failed before they could be judged",
    "fallback": "judged on the fallback to the cloud (no NPU coverage)",
    "inconclusive": "inconclusive",
    "environment": "failed for the environment or device",
    "not-run": "not run",
}


def _in_one_line(run: RunRecord) -> str:
    counts = {category: sum(test.category == category for test in run.tests) for category in _WORDS}
    shown = [f"{count} {_WORDS[category]}" for category, count in counts.items() if count]
    return f"NPU: {len(run.tests)} tests: {', '.join(shown)}"
