"""``falls_back``: run an app as if on a chip outside the list, and see that it asks the cloud and not the package.

Nothing is loaded and no engine is started for such a test. Its answers come from a cloud endpoint: they are no coverage
of an NPU, and limits on time, memory and outputs are not applied to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cannlm.cloud.detect import OVERRIDE
from pytest_cannlm.cloud.endpoint import CloudEndpoint
from pytest_cannlm.cloud.script import CloudRequest
from pytest_cannlm.errors import NotObservable, UsageError
from pytest_cannlm.harness.app import PYTHON, Ended, run_callable, run_process
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.judgement import Judgement
from pytest_cannlm.harness.prompts import STANDARD_PROMPTS
from pytest_cannlm.harness.scratch import place_for_a_copy
from pytest_cannlm.harness.trouble import environment_errors
from pytest_cannlm.harness.watching import watchers_of, watching
from pytest_cannlm.markers import FallsBack
from pytest_cannlm.measure.figures import Outcome, Verdict

if TYPE_CHECKING:
    from pytest_cannlm.build import PackageFolder
    from pytest_cannlm.devices.base import DeviceInfo

DEFAULT_APP = (PYTHON, "-m", "pytest_cannlm.fallback")
TIMEOUT_S = 60.0
_LAST_LINES = 6
_MOST_NAMES = 5
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
    """What reached the endpoint during the run."""
    opened: tuple[str, ...]
    """What was opened of the package, relative to the folder that holds it."""
    blind: str | None = None
    """Why openings could not be observed; None where they could."""
    sends: str | None = None
    """The text that had to reach the endpoint, where it is known."""
    disturbed: bool = False
    """Whether the endpoint had been told to fail, to be slow, to cut answers or to answer as another model."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The texts that the endpoint answered."""
        return tuple(request.answer for request in self.requests if request.answer is not None)


@dataclass
class Trial:
    """One ``falls_back`` test while it runs."""

    case: Case
    device: DeviceInfo
    """The device whose package it is. Nothing is started there."""
    chip: str
    """The chip that the app is told, or that the device has: outside the list."""
    package: PackageFolder
    marker: FallsBack
    cloud: CloudEndpoint
    relabel: Callable[..., PackageFolder]
    scratch: Path
    runs: list[AppRun] = field(default_factory=list)

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

        :param timeout: seconds within which it has to end.
        :param sends: a text that has to be in what reaches the endpoint; of the default app it is known.
        """
        app = self.marker.app
        if app is None:
            app, arguments = DEFAULT_APP, arguments or (STANDARD_PROMPTS[0],)
            sends = arguments[0] if sends is None else sends
        earlier, blind, opened = len(self.cloud.requests), None, set[str]()
        disturbed = self.cloud.script.disturbs
        with environment_errors("a copy of the package"), place_for_a_copy(self.scratch, self.package.package) as place:
            copy = self.relabel(self.package, Path(place) / "copy")
            environment = self._environment(copy.package)

            def run() -> Ended:
                if callable(app):
                    return run_callable(app, arguments, environment, timeout_s=timeout)
                return run_process((*app, *arguments), environment, timeout_s=timeout)

            try:
                with watching(*watchers_of(Path(place) / "copy", in_process=callable(app))) as opened:
                    ended = run()
            except NotObservable as error:
                blind, ended = str(error), run()
        self.runs.append(
            AppRun(
                status=ended.status,
                stdout=ended.stdout,
                stderr=ended.stderr,
                seconds=ended.seconds,
                requests=self.cloud.requests[earlier:],
                opened=tuple(sorted(opened)),
                blind=blind,
                sends=sends,
                disturbed=disturbed,
            )
        )
        return self.runs[-1]

    def _environment(self, package: Path) -> dict[str, str]:
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
            **self.cloud.environment(),
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
        :raises UsageError: the running test has no ``falls_back`` marker, or its app cannot be started.
        """
        if self._trial is None:
            raise UsageError(
                "the running test has no falls_back marker, so there is no app to run", expected=FallsBack.signature()
            )
        return self._trial.run_app(*arguments, timeout=timeout, sends=sends)


def judge(trial: Trial) -> Judgement:
    """Four verdicts over every run of the app; the app is run now if the test's body did not."""
    if not trial.runs:
        trial.run_app()
    checks = {
        "package_unopened": _package_opened,
        "cloud_reached": _cloud_missed,
        "app_ended": _app_failed,
        "key_kept": _key_shown,
    }
    return Judgement(verdicts=tuple(_verdict(trial, name, check) for name, check in checks.items()))


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
    if not asked:
        yield "no request reached the endpoint"
    elif not run.disturbed and not any(request.status == 200 for request in asked):
        yield f"the endpoint refused what the app asked: HTTP {', '.join(str(request.status) for request in asked)}"
    elif run.sends is not None and not any(run.sends in text for request in asked for text in request.texts):
        yield f"what reached the endpoint does not hold the prompt {run.sends!r}"


def _app_failed(trial: Trial, run: AppRun) -> Iterator[str]:
    if run.status is None:
        yield f"the app did not end within its time; after {run.seconds:.1f} s it had written{_last(run)}"
    elif run.status != 0 and not run.disturbed:
        yield f"the app ended with status {run.status} and wrote{_last(run)}"


def _key_shown(trial: Trial, run: AppRun) -> Iterator[str]:
    key = str(trial.cloud.api_key)
    for name, text in (("standard output", run.stdout), ("standard error", run.stderr)):
        if key in text:
            yield f"the app wrote the API key to {name}"


def _last(run: AppRun) -> str:
    lines = (run.stderr.strip() or run.stdout.strip()).splitlines()[-_LAST_LINES:]
    return "".join(f"\n    | {line}" for line in lines) or " nothing"
