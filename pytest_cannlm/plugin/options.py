"""pytest's side of the settings: every option on the command line and in pytest's configuration, read once."""

from __future__ import annotations

import argparse
import os
from typing import Any

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import OPTIONS, Option, Settings, read_toml_files, resolve

_SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
_INI_TYPES: dict[str, Any] = {"words": "args", "flag": "bool", "path": "string", "choice": "string"}


def add_options(parser: pytest.Parser) -> None:
    """Register every option."""
    group = parser.getgroup("cannlm", "tests on Kirin NPUs (pytest-cannlm)")
    for option in OPTIONS:
        group.addoption(option.flag, dest=_dest(option), default=None, help=option.help, **_arguments(option))
        parser.addini(option.ini, option.help, type=_INI_TYPES[option.kind], default=None)


def explain_conflict(error: argparse.ArgumentError) -> None:
    """Raise a usage error if somebody else registers an option of ours; pytest itself would show a traceback."""
    flags = {option.flag for option in OPTIONS}
    taken = flags & set((error.argument_name or "").split("/"))
    if taken:
        raise pytest.UsageError(
            f"{', '.join(sorted(taken))} is an option of pytest-cannlm, and a conftest.py or another plugin registers "
            "an option of the same name. Rename that one, or switch pytest-cannlm off with -p no:cannlm"
        ) from None


def arguments_shown(config: pytest.Config, marker: str) -> str:
    """The arguments of a marker where ``pytest --markers`` asks for them; reading them costs other runs some time."""
    if not config.getoption("markers", False):
        return "..."
    from pytest_cannlm.markers import MARKERS

    return MARKERS[marker].signature().partition("(")[2].removesuffix(")")


def settings_of(config: pytest.Config) -> Settings:
    """The settings of this run, resolved on first use.

    :raises pytest.UsageError: for a value that a setting cannot have, naming the place that it came from.
    """
    if _SETTINGS not in config.stash:
        try:
            settings = resolve(
                command_line={option.key: config.getoption(_dest(option), None) for option in OPTIONS},
                environment=os.environ,
                files=read_toml_files(config.rootpath),
                ini={option.key: config.getini(option.ini) for option in OPTIONS},
                folder=config.rootpath,
            )
            if settings.version_pairs:  # a wrong list is wrong use, and said before anything runs
                from pytest_cannlm.compat.pairs import read_pairs

                read_pairs(settings.version_pairs)
            config.stash[_SETTINGS] = settings
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[_SETTINGS]


def anything_given(config: pytest.Config) -> bool:
    """Whether somebody set an option that asks for NPU tests, on the command line or in the environment.

    Where the cache lies is no such wish. Reads no file.
    """
    return any(
        config.getoption(_dest(option), None) is not None or os.environ.get(option.env, "").strip()
        for option in OPTIONS
        if option.key != "cache"
    )


def _dest(option: Option) -> str:
    return f"cannlm_{option.key}"


def _arguments(option: Option) -> dict[str, Any]:
    if option.kind == "flag":
        return {"action": "store_true"}
    if option.kind == "choice":
        return {"choices": option.choices}
    return {"action": "append" if option.kind == "words" else "store", "metavar": option.metavar}
