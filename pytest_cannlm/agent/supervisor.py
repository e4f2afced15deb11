"""What the agent does, without the wire: the gate, one worker at a time, and its death as a result."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest_cannlm
from pytest_cannlm.agent.evidence import Offer, add_evidence
from pytest_cannlm.agent.frames import Frame
from pytest_cannlm.agent.host import WorkerProcess
from pytest_cannlm.agent.protocol import AgentStatus
from pytest_cannlm.agent.wire import add_note
from pytest_cannlm.compat.gate import Target, decide
from pytest_cannlm.errors import (
    CannlmError,
    DeviceError,
    EngineCrash,
    EngineError,
    EnvironmentFailure,
    GateRefusal,
    UsageError,
)


@dataclass(frozen=True)
class AgentConfig:
    """What an agent is told when it starts."""

    chip: str
    cann: str
    engine: str
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Given to every load; a load's own options win."""


class Supervisor:
    """Holds at most one worker. Every load gets a fresh process, so that nothing of an earlier engine can reach it."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._versions = {
            "engine": config.engine,
            "chip": config.chip,
            "CANN": config.cann,
            "Python": platform.python_version(),
            "agent": pytest_cannlm.__version__,
        }
        self._worker: WorkerProcess | None = None
        self._package: str | None = None
        self._offer: Offer | None = None
        self._loads = self._crashes = 0
        self._last_failure: str | None = None
        self._engine_free = threading.Lock()
        self._busy: str | None = None
        self._closed = False

    def load(
        self,
        package: str,
        *,
        manifest: str | None,
        gate: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        timeout_s: float,
    ) -> dict[str, Any]:
        """Ask the gate (``gate`` holds fields of its Target; None switches it off), then load in a fresh worker.

        Returns a load report whose ``details["gate"]`` is the decision or ``"off"``. After a refusal the worker, if
        there is one, is as it was before.
        """
        decision = None if gate is None else self._ask_gate(package, manifest=manifest, gate=gate)
        with self._engine("load", timeout_s):
            worker = self._fresh_worker()
            self._offer = Offer(package, manifest, vouched=gate is not None and gate.get("policy") != "off")
            self._loads += 1
            args = {"package": package, "options": {**self._config.engine_options, **options}}
            try:
                report: dict[str, Any] = worker.call("load", args, timeout_s=timeout_s)
            except EngineCrash as crash:
                self._lost(crash)
                raise
            except CannlmError as error:
                for note in worker.notes_after_failed_load():
                    add_note(error, note)
                self._failed(error)
                self._drop_worker()
                raise
            self._package, self._last_failure = package, None
        return {**report, "details": {**report["details"], "gate": "off" if decision is None else decision}}

    def call(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float,
        on_event: Callable[[Frame], None] | None = None,
    ) -> Any:
        """Run one operation of the loaded engine; see :meth:`WorkerProcess.call`."""
        with self._engine(op, timeout_s):
            return self._call(self._loaded_worker(op), op, args, timeout_s=timeout_s, on_event=on_event)

    def unload(self, *, timeout_s: float) -> Any:
        """Release the model. The worker stays, so that what is left over in it can be looked at."""
        with self._engine("unload", timeout_s):
            memory = self._call(self._loaded_worker("unload"), "unload", {}, timeout_s=timeout_s)
            self._package = None
        return memory

    def capabilities(self, *, timeout_s: float) -> Any:
        """What the engine can do; known before anything is loaded."""
        with self._engine("capabilities", timeout_s):
            worker = self._worker if self._worker and self._worker.alive() else self._fresh_worker()
            return self._call(worker, "capabilities", {}, timeout_s=timeout_s)

    def status(self) -> AgentStatus:
        """What is going on; never waits for the engine."""
        worker = self._worker
        alive = worker is not None and worker.alive()
        return AgentStatus(
            supervisor=os.getpid(),
            worker=worker.pid if worker is not None and alive else None,
            package=self._package if alive else None,
            busy=self._busy,
            loads=self._loads,
            crashes=self._crashes,
            versions=dict(self._versions),
        )

    def close(self) -> None:
        """End the worker, whatever it does, and start none any more."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _ask_gate(self, package: str, *, manifest: str | None, gate: Mapping[str, Any]) -> dict[str, Any]:
        decision = decide(Path(package), _target(gate), manifest=None if manifest is None else Path(manifest))
        try:
            decision.raise_if_refused()
        except GateRefusal as refusal:
            refusal.decision = decision
            raise
        return asdict(decision)

    @contextmanager
    def _engine(self, op: str, timeout_s: float) -> Iterator[None]:
        """The engine for this thread alone; a second client waits for its turn."""
        if not self._engine_free.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise DeviceError(
                f"the engine is busy: {op} waited {timeout_s:g} s for {self._busy} of another client to end",
                code="ENGINE_BUSY",
                remedy="Give every test process a device of its own, or a longer time limit",
            )
        self._busy = op
        try:
            yield
        finally:
            self._busy = None
            self._engine_free.release()

    def _call(self, worker: WorkerProcess, op: str, args: Mapping[str, Any], **how: Any) -> Any:
        try:
            return worker.call(op, args, **how)
        except EngineCrash as crash:
            self._lost(crash)
            raise

    def _fresh_worker(self) -> WorkerProcess:
        """A worker that no engine was loaded in."""
        if self._worker is not None and (self._worker.called or not self._worker.alive()):
            self._drop_worker()
        if self._worker is None:
            if self._closed:
                raise DeviceError("the agent is shutting down")
            try:
                self._worker = WorkerProcess(self._config.engine, versions=self._versions)
            except OSError as error:
                raise EnvironmentFailure(f"the engine's process cannot be started: {error}") from error
        return self._worker

    def _loaded_worker(self, op: str) -> WorkerProcess:
        worker = self._worker
        if worker is not None and self._package is not None:
            if worker.alive():
                return worker
            crash = worker.death_before(op)
            self._lost(crash)
            raise crash
        raise EngineError(
            f"{op} needs a loaded package and none is loaded",
            code="NOT_LOADED",
            found=self._last_failure,
            remedy="Load the package first",
        )

    def _lost(self, crash: EngineCrash) -> None:
        if self._offer is not None:
            add_evidence(crash, self._offer, chip=self._config.chip, cann=self._config.cann)
        self._crashes += 1
        self._failed(crash)
        self._drop_worker()

    def _failed(self, error: CannlmError) -> None:
        """Remember it for whoever asks for the engine next: what comes after it must not hide it."""
        self._last_failure = f"before: {error.message}" + (f", {error.found}" if error.found else "")

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        self._package = self._offer = None
        if worker is not None:
            worker.close()


def _target(fields: Mapping[str, Any]) -> Target:
    """The gate's target from JSON, which knows no tuples."""
    known = dict(fields)
    try:
        if "chips" in known:
            known["chips"] = tuple(known["chips"])
        for name in ("version_pairs", "same_architecture"):
            if name in known:
                known[name] = tuple(tuple(group) for group in known[name])
        return Target(**known)
    except TypeError as error:
        raise UsageError(f"the gate's target is not complete or not known: {error}") from error
