"""What one line of a log says. :func:`judge` holds the whole order of decisions, and nothing else decides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pytest_cannlm.explain.causes import KnownText, causes
from pytest_cannlm.explain.codes import MESSAGE_CODE, explain_code
from pytest_cannlm.explain.explanation import Explanation

_TIME = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
_LEVELS = r"ERROR|FATAL|CRITICAL|WARNING|WARN|INFO|DEBUG|EVENT|TRACE"
# A record of a log has its level in front: [ERROR] of CANN, E/TAG of omg, "06-01 12:00:00.000 1 2 E" of hilog,
# "ERROR: " and "2026-06-01 12:00:00,000 - name - ERROR" of scripts.
_RECORD = re.compile(
    rf"\s{{0,40}}(?:\[({_LEVELS})\]|([DIWEF])/[A-Z]|({_LEVELS}):"
    r"|(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,6} {1,8}\d{1,10} {1,8}\d{1,10} ([DIWEF]) "
    rf"|{_TIME}(?: ?- [\w.]{{1,60}} -|(?: \[[^\]]{{0,60}}\]){{1,3}})? ?\[?({_LEVELS})\b)"
)
_BAD = {"ERROR", "FATAL", "CRITICAL", "E", "F"}
_QUIET = {"INFO", "DEBUG", "EVENT", "TRACE", "I", "D"}

# A number is a code where its digits are those of a family and the word before it says that it is one. Words that
# results have too ("status", "aclrtMalloc(") and numbers that count something ("returned 100000 rows") need a line that
# speaks of trouble.
_TROUBLE = re.compile(r"(?<!\b0 )(?<!\bno )(?:\b(?:cannot|unable|invalid)|fail|error|exception|abort)", re.IGNORECASE)
_SAID = (
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:(?P<code>ret(?:urn(?:ed|s)?|_?code|_?val(?:ue)?)?"
    r"|err(?:or)?[_ ]?(?:code|num|no|id)?|code|fail(?:ed|ure)?)"
    r"|(?:result|status)(?:_?code)?|acl\w{1,60}(?=\())[\s:=\[\]()\"'-]{0,6}(?i:is|was|with)?[\s:=\[\]()\"'-]{0,4}"
)
_RETURNED = re.compile(rf"{_SAID}(?P<number>\d{{6}}|\d{{1,2}})(?!\w|\.\d)(?P<counts> {{1,3}}[A-Za-z])?")
_OF_A_FAMILY = re.compile(r"[1235](?:00|07|45)\d{3}")
_CALL = re.compile(r"\b(?:OH_NN|HMS_)\w{1,60}")
_CALL_TO_CODE = 20
"""Most characters between the name of a call and the words of what it returned."""

# What programs print that have no levels. Everything is bounded, so that no line can make it slow.
_FAILURE = re.compile(
    r"^\s{0,40}(?:\[Fail\]|terminate called|Fatal Python error:|(?:Aborted|Killed)$"
    r"|(?:[\w./:-]{1,80}: ){0,3}(?:fatal )?[Ee]rror: (?![-+.\d])"
    r"|(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)(?:: (?![-+.\d])|$))"
    r"|\b(?:Segmentation fault|Bus error|Illegal instruction)\b|\(core dumped\)"
    r"|\b(?:OH_NN|HMS_|acl)[A-Za-z]\w{0,60}(?:\(\))? [Ff]ail(?:ed|ure)?\b"
    r"|(?<!\b0 )\b[Ff]ail(?:ed|ure)?\b.{0,80}\b(?:ret(?:urn(?:ed|s)?|[Cc]ode)?|err(?:or)?(?: ?[Cc]ode|Num|no)?|code)"
    r"\b[\s:=\[(]{1,4}(?:is )?-?(?:0x)?[1-9]"
)


@dataclass(frozen=True)
class Judged:
    """What a line is: whether it speaks of an error, what of it is known, and what it does to the open block."""

    error: bool
    block: Literal["opens", "goes on", "ends"]
    """A block is a line with a message code and the plain lines behind it, in which converters list the rest."""
    text: KnownText | None = None
    """The known text of trouble that it holds; says more than a code."""
    code: Explanation | None = None


def judge(line: str, *, inside: bool = False, raised: bool = False) -> Judged:
    """What ``line`` is; the first rule that fits decides.

    1. An error's message code: an error, and it opens a block.
    2. A known text of trouble, or a code that a call returned: an error, whatever else the line says.
    3. A text that calls itself an error and is known to be harmless: nothing.
    4. A record of level ERROR or FATAL, or what programs print when they fail: an error that nobody knows.
    5. Any other record, a warning's code, a known text of success, an empty line: nothing, and a block ends.
    6. A plain line: belongs to the block, if one is open.

    Records of INFO, DEBUG and the like hold no codes: there they are help texts, sizes and counts.

    :param inside: whether a block is open, to which lines that are set in belong whatever they say.
    :param raised: the line ends a traceback of Python, so that it is an error whatever it says.
    """
    level = next((level for level in record.groups() if level), None) if (record := _RECORD.match(line)) else None
    text = causes().text_in(line)
    trouble = None if text is None or text.noise else text
    bad = level in _BAD or raised
    messages = [] if level in _QUIET else _message_codes(line, bad=bad)
    error = next((code for code in messages if code[0] == "E"), None)
    if error:
        return Judged(True, "opens", trouble, explain_code(error, "message"))
    code = None if level in _QUIET else _returned_code(line, bad=bad)
    if trouble or code:
        return Judged(True, "ends" if level else "goes on", trouble, code)
    if text and text.harmless:
        return Judged(False, "ends")
    if bad or (level is None and not (inside and line[:1].isspace()) and _FAILURE.search(line)):
        return Judged(True, "ends")
    return Judged(False, "ends" if level or messages or text or not line else "goes on")


def _message_codes(line: str, *, bad: bool) -> list[str]:
    """Message codes where messages have them: in front, before a colon or a bracket, or in words about trouble."""
    codes = list(MESSAGE_CODE.finditer(line))
    if codes and not bad:
        bad = bool(_TROUBLE.search(line))
    return [
        match[0]
        for match in codes
        if bad or line[match.end() :].lstrip()[:1] in (":", "[", "(") or _in_front(line[: match.start()].rstrip())
    ]


def _in_front(before: str) -> bool:
    return not before or before[-1] in "])}:|>" or _RECORD.fullmatch(before) is not None


def _returned_code(line: str, *, bad: bool) -> Explanation | None:
    """The code that a line says was returned; a small one only where the call before it tells the family."""
    found = list(_RETURNED.finditer(line))
    if not found:
        return None
    bad = bad or _TROUBLE.search(line) is not None
    calls = list(_CALL.finditer(line))
    for match in found:
        number, says_code = match["number"], match["code"] is not None
        if not bad and (match["counts"] or not says_code):
            continue
        if _OF_A_FAMILY.fullmatch(number):
            return explain_code(number)
        near = [call[0] for call in calls if 0 <= match.start() - call.end() <= _CALL_TO_CODE]
        if near and says_code and len(number) <= 2 and int(number):
            return explain_code(int(number), "HiAI compatibility" if "HiAICompatibility" in near[-1] else "OH_NN")
    return None
