"""Every exception that pytest-cannlm raises on purpose, in one tree. Standard library only: it travels to the device.

An error carries its facts as fields, so that a report can show them and a test can check them:
what went wrong, where (file), which field, what was found, what was expected, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CannlmError(Exception):
    """Base of all errors of this project.

    ``str(error)`` is the message followed by the facts that were given and the remedy, ready to be shown to a user.
    ``exit_code`` is what ``cannlm`` exits with: 1 judged bad, 2 wrong use, 3 environment or device, 4 unknown.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        file: object | None = None,
        field: str | None = None,
        found: object | None = None,
        expected: object | None = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = None if file is None else str(file)
        self.field = field
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.code = code

    def __str__(self) -> str:
        facts = [
            f"{label}: {value}"
            for label, value in (
                ("file", self.file),
                ("field", self.field),
                ("found", self.found),
                ("expected", self.expected),
            )
            if value is not None
        ]
        text = self.message + (f" ({'; '.join(facts)})" if facts else "")
        return ". ".join([text, *self._advice()])

    def _advice(self) -> list[str]:
        """The sentences behind the facts."""
        return [self.remedy] if self.remedy else []

    @property
    def notes(self) -> tuple[str, ...]:
        """What else went wrong after it, such as clean-up trouble (``BaseException.add_note``)."""
        return tuple(getattr(self, "__notes__", ()))

    def with_notes(self) -> str:
        """``str(error)`` and behind it the notes, where nobody else prints them: a traceback does."""
        return "\n".join([str(self), *(f"note: {note}" for note in self.notes)])

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready facts; keys without a value are left out."""
        facts = {
            "error": self.code or type(self).__name__,
            "message": self.message,
            "file": self.file,
            "field": self.field,
            "found": None if self.found is None else str(self.found),
            "expected": None if self.expected is None else str(self.expected),
            "remedy": self.remedy,
            "notes": list(self.notes) or None,
        }
        return {key: value for key, value in facts.items() if value is not None}


class UsageError(CannlmError):
    """The user asked for something that cannot be: a wrong argument, option or marker."""

    exit_code = 2


class BadInputError(CannlmError):
    """A file that the user gave is not what it should be: a damaged checkpoint, a wrong config, a missing tokenizer."""

    exit_code = 2


class UnsupportedModelError(BadInputError):
    """The checkpoint is sound but names something that is not supported; the message says which name."""


class EnvironmentFailure(CannlmError):
    """The machine lacks something: network, disk space, a program, an optional dependency."""


class DeviceError(EnvironmentFailure):
    """The asked-for device is missing, is another chip, or does not answer."""


class CloudError(EnvironmentFailure):
    """A cloud endpoint refused, did not answer in time, cut its answer off, or answered with another model."""


class BothWaysFailed(CloudError):
    """Neither the NPU nor the cloud answered; the message shows both reasons, ``npu`` and ``cloud`` hold them."""

    def __init__(self, message: str, *, npu: CannlmError, cloud: CannlmError) -> None:
        super().__init__(message, remedy=None, code="BOTH_WAYS_FAILED")
        self.npu = npu
        self.cloud = cloud


class ContainerError(CannlmError):
    """An .om/.omc file that cannot be read. ``code`` is the OM_... name of the first problem found."""

    exit_code = 1


class PackageError(CannlmError):
    """A model package folder that an engine would not load, or that is not what its manifest says."""

    exit_code = 1


class GateRefusal(CannlmError):
    """The gate refused a package before anything was loaded. ``code`` names the failed check.

    ``decision`` is the gate's whole decision (``compat.gate.Decision``) where the refusal came with one.
    """

    exit_code = 1

    def __init__(self, message: str, *, decision: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.decision = decision


class BuildError(CannlmError):
    """A build step produced something that must not be used; the message names step and tensor or file."""

    exit_code = 1


class EngineError(CannlmError):
    """The engine answered with a failure. ``code`` is the engine's own code where there is one.

    ``cause`` is the likely cause in one sentence, without its full stop, where code, log or versions tell one.
    """

    exit_code = 1

    def __init__(self, message: str, *, cause: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.cause = cause

    def _advice(self) -> list[str]:
        return [*([f"Likely cause: {self.cause}"] if self.cause else []), *super()._advice()]

    def as_dict(self) -> dict[str, Any]:
        """The facts, with the likely cause where there is one."""
        return {**super().as_dict(), **({"cause": self.cause} if self.cause else {})}


class EngineCrash(EngineError):
    """The engine's process died. ``found`` names the signal or exit status; ``log`` holds its last lines.

    ``versions`` says what was running: engine, chip, CANN, Python, agent.
    """

    def __init__(
        self, message: str, *, log: tuple[str, ...] = (), versions: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.log = log
        self.versions = dict(versions or {})

    def __str__(self) -> str:
        running = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        lines = [*([f"running: {running}"] if running else []), *self.log]
        return super().__str__() + "".join(f"\n    | {line}" for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """The facts, with the last lines of the log and what was running."""
        return {**super().as_dict(), "log": list(self.log), "versions": self.versions}


class EngineHang(EngineCrash):
    """The engine did not answer within its time limit and was ended."""


class KVCacheOverflow(EngineError):
    """Prompt and generated tokens exceeded ``kv_cache_max_len``; the engine's success code means nothing then."""


class NotObservable(CannlmError):
    """The asked-for quantity cannot be observed on this engine; the message says which interface would be needed."""

    exit_code = 4
