"""Errors of ours as a test shows them: from the line of the test, without what stands below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pytest_cannlm.errors import CannlmError

T = TypeVar("T")


def plainly(ask: Callable[[], T]) -> T:
    """Call ``ask``; an error of ours is raised from here, so that a test's failure shows the test and not the wire."""
    __tracebackhide__ = True
    try:
        return ask()
    except CannlmError as error:
        raise error.with_traceback(None) from None
