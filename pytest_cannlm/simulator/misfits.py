"""What the simulated engine does with a package that does not fit it, in the words that the real one was seen to use.

The real engine fails cleanly on some of them and dies on others. ``read_package`` and :func:`check_match` raise what
happens, death included; :func:`dying_as_the_engine_does` then really ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pytest_cannlm.container.kirin import SimulatedModel
from pytest_cannlm.devices.spec import OnMismatch
from pytest_cannlm.errors import EngineCrash, EngineError

EXECUTOR_NOT_MADE = 'model_manager_ndk_impl.cpp PrepareModelManager(122): "executor_" "null, return FAIL."'
MERGES_ARE_PAIRS = "nlohmann::json type_error.302: type must be string, but is array"
WEIGHTS_TOO_SHORT = "LoadPrivateWeight(419): weightFileSize - constSize >= variableSize false"
_INIT_FAILED = "engine_executor_impl.cpp Init(153): init model fail or load token"
_NOT_COMPATIBLE = "compatibleHelper CheckCompatibility failed by cl NPUCL"
_NO_RUNTIME = "no runtime support the Model."


def check_match(model: SimulatedModel, *, chip: str, cann: str, otherwise: OnMismatch) -> None:
    """Do what ``otherwise`` says if ``model`` was built for another chip or CANN version; "load" lets it pass."""
    if (model.chip, model.build_version) == (chip, cann) or otherwise == "load":
        return
    built, device = f"{model.chip}, {model.build_version}", f"{chip}, {cann}"
    log = (
        f"{_NOT_COMPATIBLE}: model {built}, runtime {device}",
        "HcsCompiledModelPreLoadProcess: false",
        "modelRecompiler Recompile failed!",
        f"HIAI_DDK_MSG: {_NO_RUNTIME}",
    )
    if otherwise == "crash":
        raise death("the model was built for another chip or CANN version", "SIGSEGV", log)
    _print(log)
    if otherwise == "hang":
        threading.Event().wait()
    raise EngineError(
        _NO_RUNTIME,
        field="chip, cann",
        found=f"built for {built}",
        expected=device,
        remedy="Build the package for this chip and this CANN version",
        code="1",
    )


def executor_not_made(file: Path, *, field: str, found: object, expected: object) -> EngineError:
    """The clean failure of an engine that lacks a setting, or has one that it cannot use."""
    _print((EXECUTOR_NOT_MADE, _INIT_FAILED))
    return EngineError(
        EXECUTOR_NOT_MADE,
        file=file,
        field=field,
        found=found,
        expected=expected,
        remedy="Build the package again, or give the setting its right value",
        code="1",
    )


def death(message: str, by: Literal["SIGSEGV", "SIGABRT"], log: tuple[str, ...], **facts: Any) -> EngineCrash:
    """The end of the engine's process by a signal, its last words ``log``."""
    return EngineCrash(message, found=by, log=log, **facts)


@contextlib.contextmanager
def dying_as_the_engine_does() -> Iterator[None]:
    """End this process where the block raises the death of the real engine's."""
    try:
        yield
    except EngineCrash as crash:
        _print(crash.log)
        if os.name == "posix":
            os.kill(os.getpid(), signal.Signals[str(crash.found)])
        os.abort()


def _print(lines: tuple[str, ...]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
