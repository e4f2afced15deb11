"""An engine's return code in words, put into the error that carries it."""

from __future__ import annotations

from pytest_cannlm.errors import EngineError
from pytest_cannlm.explain import explain_code

_SMALLEST_OF_CANN = 100000
"""Smaller numbers are ``OH_NN_ReturnCode``: that is what the engine's public calls return."""


def explained(error: EngineError) -> EngineError:
    """Fill in what a numeric ``code`` means where the engine itself said nothing; other errors stay as they are."""
    if error.code is not None and error.code.isdecimal():
        meaning = explain_code(error.code, "OH_NN" if int(error.code) < _SMALLEST_OF_CANN else None)
        where = ", ".join(filter(None, (meaning.family, meaning.place))) if meaning.family else "of no known family"
        if error.found is None and error.remedy is None:  # else it knows better than a code with many causes
            error.cause = error.cause or meaning.cause
        error.found = error.found or f"{error.code} {meaning.name or 'not known'} ({where})"
        error.remedy = error.remedy or meaning.next or "Read the engine's log lines"
    return error
