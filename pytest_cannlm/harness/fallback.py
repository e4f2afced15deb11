"""``falls_back``: run an app as if on a chip outside the list, and see that it asks the cloud and not the package.

Nothing is loaded and no engine is started for such a test. Its answers come from a cloud endpoint: they are no coverage
of an NPU, and limits on time, memory and outputs are not applied to them.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cannlm.agent.exits import describe_exit
from pytest_cannlm.cloud.detect import OVERRIDE
from pytest_cannlm.cloud.endpoint import CloudEndpoint, CloudRun
from pytest_cannlm.cloud.script import CloudRequest
from pytest_cannlm.errors import NotObservable, UsageError
from pytest_cannlm.harness.app import PYTHON, Ended, run_callable, run_process
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.judgement import Judgement
from pytest_cannlm.harness.plain import plainly
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS
from pytest_cannlm.harness.scratch import place_for_a_copy
from pytest_cannlm.harness.trouble import environment_errors
from pytest_cannlm.harness.watching import watchers_of, watching
from pytest_cannlm.markers import FallsBack
from pytest_cannlm.measure.figures import Outcome, Verdict

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder

DEFAULT_APP = (PYTHON, "-m", "pytest_cannlm.fallback")
TIMEOUT_S = 60.0
App = tuple[str, ...] | Callable[..., object]
"""A program with its first arguments, or a callable of this process."""

_LAST_LINES = 6
_MOST_NAMES = 5
_LEAST_NTSTATUS = 0xC0000000
"""From here on Windows has an exit status for a crash."""
_LOOK_AT = {
    "package_unopened": "where the app reads the chip: before it touches the package?",
    "cloud_reached": "how the app decides to fall back, and whether it reads OPENAI_BASE_URL, _API_KEY and _MODEL",
    "app_ended": "the app's own output, and what the endpoint answered",
    "key_kept": "what the app logs",
}


@dataclass(frozen=True, kw_only=True)
class AppRun:
    """One run of the app under test."""

    status: int | None
    """Exit status; None: not ended within its time limit."""
    stdout: str
    stderr: str
    seconds: float
    requests: tuple[CloudRequest, ...]
    """What reached the address that the endpoint had for this run."""
    opened: tuple[str, ...]
    """What was opened or changed of the package, relative to the folder that holds it."""
    logged: str = ""
    """What an app that is a callable logged."""
    blind: str | None = None
    """Why openings could not be observed; None where they could."""
    sends: str | None = None
    """The text that had to reach the endpoint, where it is known."""
    excused: bool = False
    """Whether it may end with any status: the script failed one of its requests, cut or renamed the answer, or kept it
    back until the app had given up."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The texts that the endpoint answered."""
        return tuple(request.answer for request in self.requests if request.answer is not None)


@dataclass
class Trial:
    """One ``falls_back`` test while it runs."""

    case: Case
    chip: str
    """The chip that the app is told, or that the device has: outside the list."""
    package: PackageFolder
    marker: FallsBack
    cloud: CloudEndpoint
    scratch: Path
    runs: list[AppRun] = field(default_factory=list)
    judged: bool = False

    @property
    def not_applied(self) -> tuple[str, ...]:
        """Markers of the test that limit an NPU, and so nothing that a cloud answers."""
        limits = (self.case.latency, self.case.memory, self.case.parity)
        return tuple(marker.name for marker in limits if marker is not None)

    @property
    def served_by(self) -> tuple[str, ...]:
        """Who answered apps that ended well: ``cloud: MODEL at HOST`` under every name that the endpoint used."""
        answered = [request for run in self.runs if run.status == 0 for request in run.requests]
        models = dict.fromkeys(request.model for request in answered if request.model is not None)
        return tuple(f"cloud: {model} at 127.0.0.1" for model in models)

    def run_app(self, *arguments: str, timeout: float = TIMEOUT_S, sends: str | None = None) -> AppRun:
        """Run the app with further arguments, on a fresh copy of the package, and remember what it did.

        No file of the copy is shared with the package: large ones have its size, and holes for content.

        :param timeout: seconds within which it has to end.
        :param sends: a text that has to be in what reaches the endpoint; of the default app it is known.
        :raises UsageError: the app cannot be started, the test's own script of the endpoint failed under it, or the
            test has been judged. What a callable of ``reply`` asserts comes as it is.
        """
        __tracebackhide__ = True
        if self.judged:
            raise UsageError(
                "the test has been judged, so what this run of the app does would not count",
                remedy="Call cloud_llm.run_app() in the test's body or in a fixture before its yield",
            )
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise UsageError("run_app takes a time limit", field="timeout", found=repr(timeout), expected="seconds > 0")
        app = self.marker.app
        if app is None:
            app, arguments = DEFAULT_APP, arguments or (STANDARD_PROMPTS[0],)
            sends = arguments[0] if sends is None else sends
        with self.cloud.run() as asked:
            run = self._run(app, arguments, asked, timeout=timeout, sends=sends)
        self.runs.append(run)
        asked.raise_script_error()
        return run

    def _run(
        self, app: App, arguments: tuple[str, ...], asked: CloudRun, *, timeout: float, sends: str | None
    ) -> AppRun:
        with contextlib.ExitStack() as kept:
            with environment_errors("a copy of the package"):
                folder = kept.enter_context(place_for_a_copy(self.scratch, self.package.package)) / "copy"
                environment = self._environment(_stand_in(self.package, folder), asked)
            opened, blind = set[str](), None
            with contextlib.ExitStack() as watched:
                try:
                    opened = watched.enter_context(watching(*watchers_of(folder, in_process=callable(app))))
                except NotObservable as error:
                    blind = str(error)
                ended = _started(app, arguments, environment, timeout)
        requests = asked.requests
        return AppRun(
            status=ended.status,
            stdout=ended.stdout,
            stderr=ended.stderr,
            logged=ended.logged,
            seconds=ended.seconds,
            requests=requests,
            opened=tuple(sorted(opened)),
            blind=blind,
            sends=sends,
            excused=any(_was_let_down(request, until=_now()) for request in requests),
        )

    def _environment(self, package: Path, asked: CloudRun) -> dict[str, str]:
        # A proxy of the environment would be asked for the loopback interface, and could not reach it.
        direct = {
            name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
            for name in ("NO_PROXY", "no_proxy")
        }
        return {
            OVERRIDE: self.chip,
            "CANNLM_PACKAGE": str(package),
            "CANNLM_FALLBACK": self.marker.to,
            **direct,
            **asked.environment(),
        }


class CloudLlm(CloudEndpoint):
    """The fixture: a scripted cloud endpoint, and the app of the running ``falls_back`` test."""

    _trial: Trial | None = None

    def attach(self, trial: Trial | None) -> None:
        """Put the test that starts behind :meth:`run_app`, or nothing (None) when it ended."""
        self._trial = trial

    def run_app(self, *arguments: str, timeout: float = TIMEOUT_S, sends: str | None = None) -> AppRun:
        """Run the app that the test's ``falls_back`` marker names. Without a call it is run once after the body.

        :param arguments: added to the app's own.
        :param timeout: seconds within which it has to end.
        :param sends: a text that has to be in what reaches the endpoint; of the default app it is known.
        :raises UsageError: the running test has no ``falls_back`` marker, its app cannot be started, or the test's own
            script of the endpoint failed under it.
        """
        __tracebackhide__ = True

        def run() -> AppRun:
            if self._trial is None:
                raise UsageError(
                    "the running test has no falls_back marker, so there is no app to run",
                    expected=FallsBack.signature(),
                    remedy="Put falls_back(chip=..., app=...) beside the marker npu of the test",
                )
            return self._trial.run_app(*arguments, timeout=timeout, sends=sends)

        return plainly(run)


def _started(app: App, arguments: tuple[str, ...], environment: Mapping[str, str], timeout_s: float) -> Ended:
    if callable(app):
        return run_callable(app, arguments, environment, timeout_s=timeout_s)
    return run_process((*app, *arguments), environment, timeout_s=timeout_s)


def _stand_in(package: PackageFolder, folder: Path) -> Path:
    from pytest_cannlm.build import stand_in

    return stand_in(package, folder).package


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _was_let_down(request: CloudRequest, *, until: datetime.datetime) -> bool:
    """Whether the script failed the app, and did not only make it wait for an answer that it got."""
    waiting = request.status is None or request.at + datetime.timedelta(seconds=request.takes_s) > until
    return request.spoiled is not None or waiting


def judge(trial: Trial) -> Judgement:
    """Four verdicts over every run of the app; the app is run now if the test's body did not. No run counts later."""
    if not trial.runs:
        trial.run_app()
    trial.judged = True
    return Judgement(verdicts=tuple(_verdict(trial, name, check) for name, check in _CHECKS.items()))


def told(trial: Trial) -> str:
    """What the app did so far, for a test that fails in its own body: how each run ended, and the verdicts on all."""
    lines = []
    for number, run in enumerate(trial.runs, 1):
        ended = "did not end within its time" if run.status is None else f"ended with status {run.status}"
        asked = ", ".join(str(request.status or "none yet") for request in run.requests) or "none"
        lines.append(
            f"run {number} {ended} after {run.seconds:.1f} s; answers of the endpoint: {asked}; wrote{_last(run)}"
        )
    lines += [f"{verdict.name}: {verdict.outcome}: {verdict.reason}" for verdict in judge(trial).verdicts]
    return trial.cloud.api_key.hidden_in("\n".join(lines) + "\n")


def _verdict(trial: Trial, name: str, check: Callable[[Trial, AppRun], Iterator[str]]) -> Verdict:
    wrong = list(dict.fromkeys(problem for run in trial.runs for problem in check(trial, run)))
    outcome: Outcome = "fail" if wrong else "pass"
    passed = "passed via the cloud" if trial.served_by else "passed, with an endpoint that was told to fail"
    reason = "; ".join(wrong) or f"{passed}, on {trial.chip}"
    if trial.not_applied:
        reason += f"; not applied, because the cloud answers: {', '.join(trial.not_applied)}"
    return Verdict(
        outcome=outcome,
        figure=None,
        name=name,
        limit=None,
        unit="",
        better="lower",
        margin=None,
        reason=trial.cloud.api_key.hidden_in(reason),
        look_at=_LOOK_AT[name],
        limit_source=_source(trial.marker),
    )


def _source(marker: FallsBack) -> str:
    return f"marker falls_back on the {next(iter(marker.sources.values()), 'test')}"


def _package_opened(trial: Trial, run: AppRun) -> Iterator[str]:
    if run.blind:
        yield run.blind
    if run.opened:
        shown = ", ".join(run.opened[:_MOST_NAMES])
        more = len(run.opened) - _MOST_NAMES
        yield f"the app opened the package on {trial.chip}: {shown}" + (f" and {more} more" if more > 0 else "")


def _cloud_missed(trial: Trial, run: AppRun) -> Iterator[str]:
    asked = [request for request in run.requests if request.asks]
    right = [request for request in asked if request.is_right]
    if not asked:
        yield "no request reached the endpoint"
    elif not right:
        yield f"the endpoint refused what the app asked: HTTP {', '.join(str(request.status) for request in asked)}"
    elif run.sends is not None and not any(run.sends in text for request in right for text in request.texts):
        yield f"what reached the endpoint does not hold the prompt {run.sends!r}"


def _app_failed(trial: Trial, run: AppRun) -> Iterator[str]:
    if run.status is None:
        yield f"the app did not end within its time; after {run.seconds:.1f} s it had written{_last(run)}"
    elif run.status < 0 or run.status >= _LEAST_NTSTATUS:
        yield f"the app crashed with {describe_exit(run.status)} and wrote{_last(run)}"
    elif run.status != 0 and not run.excused:
        yield f"the app ended with status {run.status} and wrote{_last(run)}"


def _key_shown(trial: Trial, run: AppRun) -> Iterator[str]:
    for name, text in (("standard output", run.stdout), ("standard error", run.stderr), ("its log", run.logged)):
        if trial.cloud.api_key.is_in(text):
            yield f"the app wrote the API key to {name}"


_CHECKS: Mapping[str, Callable[[Trial, AppRun], Iterator[str]]] = {
    "package_unopened": _package_opened,
    "cloud_reached": _cloud_missed,
    "app_ended": _app_failed,
    "key_kept": _key_shown,
}


def _last(run: AppRun) -> str:
    lines = (run.stderr.strip() or run.stdout.strip()).splitlines()[-_LAST_LINES:]
    return "".join(f"\n    | {line}" for line in lines) or " nothing"
