"""Errors on the wire: every error of the project crosses processes with its class, its facts and its notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytest_cannlm import errors
from pytest_cannlm.errors import CannlmError, DeviceError, EngineCrash, EngineError, EngineHang, GateRefusal

_FACTS = ("file", "field", "found", "expected", "remedy", "code")


def add_note(error: BaseException, note: str) -> None:
    """``BaseException.add_note``, which Python 3.10 does not have yet."""
    error.__notes__ = [*getattr(error, "__notes__", ()), note]


def error_to_wire(error: CannlmError) -> dict[str, Any]:
    """The error as JSON-ready data: ``error`` is the class name; facts without a value are left out."""
    data: dict[str, Any] = {"error": type(error).__name__, "message": error.message}
    for name in _FACTS:
        value = getattr(error, name)
        if value is not None:
            data[name] = str(value)
    if isinstance(error, EngineError) and error.cause is not None:
        data["cause"] = error.cause
    if isinstance(error, EngineCrash):
        ended_by = None if isinstance(error, EngineHang) else data.get("found")
        data.update(signal=ended_by, log=list(error.log), versions=error.versions)
    if isinstance(error, GateRefusal) and error.decision is not None:
        data["decision"] = dataclasses.asdict(error.decision)
    if error.notes:
        data["notes"] = list(error.notes)
    return data


def error_from_wire(data: Mapping[str, Any]) -> CannlmError:
    """Rebuild the error; a class that this side does not know becomes a :class:`DeviceError` that names it.

    A refusal's ``decision`` is left as plain data.
    """
    name = str(data.get("error"))
    known = getattr(errors, name, None)
    facts: dict[str, Any] = {fact: data.get(fact) for fact in _FACTS}
    message = str(data.get("message", "the agent reported a failure without saying which"))
    error: CannlmError
    if not (isinstance(known, type) and issubclass(known, CannlmError)):
        error = DeviceError(f"{name}: {message}", **facts)
    elif issubclass(known, EngineCrash):
        log = tuple(data.get("log", ()))
        error = known(message, cause=data.get("cause"), log=log, versions=data.get("versions"), **facts)
    elif issubclass(known, EngineError):
        error = known(message, cause=data.get("cause"), **facts)
    elif issubclass(known, GateRefusal):
        error = known(message, decision=data.get("decision"), **facts)
    else:
        error = known(message, **facts)
    for note in data.get("notes", ()):
        add_note(error, note)
    return error
