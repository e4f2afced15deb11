"""Engines by name. An engine's module is imported only in the worker process, and only when it is asked for."""

from __future__ import annotations

import importlib

from pytest_cannlm.agent.protocol import Engine
from pytest_cannlm.errors import EnvironmentFailure, UsageError

_BUILT_IN = {"simulated": "pytest_cannlm.simulator.engine:SimulatedEngine"}


def create_engine(name: str) -> Engine:
    """Make the engine called ``name``: a built-in one, or ``module:Class`` of anything importable.

    Raises :class:`UsageError` for a name that means nothing and :class:`EnvironmentFailure` for an engine whose module
    cannot be imported here.
    """
    module_name, colon, class_name = _BUILT_IN.get(name, name).partition(":")
    if not colon:
        raise UsageError(f"unknown engine {name!r}", expected=f"{', '.join(_BUILT_IN)} or module:Class")
    try:
        factory = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise EnvironmentFailure(
            f"the engine {name!r} cannot be loaded: {error}", remedy="Install what is missing in the agent's Python"
        ) from error
    engine: Engine = factory()
    return engine
