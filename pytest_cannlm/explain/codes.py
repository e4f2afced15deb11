"""What a code means. Small numbers mean other things in other families, so the caller says whose code it is."""

from __future__ import annotations

import re

from pytest_cannlm.errors import UsageError
from pytest_cannlm.explain.causes import KnownCode, causes
from pytest_cannlm.explain.explanation import Explanation

MESSAGE_CODE = re.compile(r"(?<![\w/\\.-])[EWI][A-Z0-9]\d{4}(?![\w/\\-])")
"""A message code of CANN: severity, the module's letter or digit, and four digits; in a word or a path it is none."""

# Of a six-digit code the first digit is where the fault lies, the next two are the part of CANN that says so.
_PLACES = {
    "1": "the caller's side",
    "2": "the device's resources",
    "3": "storage or alignment",
    "5": "inside the runtime",
}
_PARTS = {"00": "aclError", "07": "runtime", "45": "GE"}


def meanings(code: int | str, family: str | None = None) -> tuple[Explanation, ...]:
    """Every meaning of ``code`` (a number, a message code or a name), at least one: what nobody knows is shown as such.

    :param family: whose code it is, as in causes.json, in letters of any size; where it is not given, all families
        that know the code answer.
    :raises UsageError: there is no such family.
    """
    family = None if family is None else _family(family)
    text = str(code).strip()
    text = text.upper() if MESSAGE_CODE.fullmatch(text.upper()) else text
    found = [known for known in causes().named(text) if family in (None, known.family)]
    if not found:
        told, place = _by_shape(text)
        return (Explanation(family=family or told, code=text, place=place if family in (None, told) else None),)
    return tuple(explanation_of(known) for known in found)


def explain_code(code: int | str, family: str | None = None) -> Explanation:
    """What ``code`` means; where families differ and none was given, the explanation says what it means in each.

    :raises UsageError: there is no such family.
    """
    found = meanings(code, family)
    if len(found) == 1:
        return found[0]
    each = "; ".join(f"in {one.family} {one.name}" for one in found)
    return Explanation(
        None, str(code).strip(), None, f"It means another thing in each family: {each}", "Name the family"
    )


def explanation_of(known: KnownCode) -> Explanation:
    """A code of the table in words."""
    # what is known of a message code says more than its digits, which follow their own rule only roughly
    place = None if known.family == "message" else _by_shape(known.code)[1]
    return Explanation(known.family, known.code, known.name, known.cause, known.next, place=place)


def _family(name: str) -> str:
    """A family by its one spelling."""
    families = causes().families
    for family in families:
        if family.casefold() == name.casefold():
            return family
    raise UsageError(f"unknown family {name!r}", field="family", expected=", ".join(families))


def _by_shape(code: str) -> tuple[str | None, str | None]:
    """Family and place that the code's own letters and digits tell, whether or not it is known."""
    if MESSAGE_CODE.fullmatch(code):
        kind = {"E": "error", "W": "warning", "I": "information"}[code[0]]
        return "message", f"{'internal' if code[-4] == '9' else 'user'} {kind}"
    if code.isascii() and code.isdigit() and len(code) == 6 and code[0] in _PLACES and code[1:3] in _PARTS:
        return _PARTS[code[1:3]], _PLACES[code[0]]
    return None, None
