"""What a command gives back, and how it is shown: text for people, or one JSON document on standard output.

Exit codes: 0 good, 1 judged bad, 2 wrong use, 3 the environment or a device failed, 4 inconclusive or unknown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cannlm.errors import CannlmError, EnvironmentFailure

GOOD, BAD, ENVIRONMENT, UNKNOWN = 0, 1, 3, 4


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    data: Mapping[str, Any]
    """What ``--json`` prints."""
    lines: Sequence[str] = field(default_factory=tuple)
    """What people read."""
    exit_code: int = GOOD


def show(answer: Answer, *, as_json: bool) -> int:
    """Print an answer; returns its exit code."""
    _write(_as_json(answer.data) if as_json else "\n".join(answer.lines))
    return answer.exit_code


def show_error(error: CannlmError, *, as_json: bool) -> int:
    """Print an error: as JSON on standard output where JSON was asked for, else on standard error."""
    if as_json:
        facts = error.as_dict()
        _write(_as_json({**facts, "message": str(error)}))
    else:
        print(f"cannlm: {error.with_notes()}", file=sys.stderr)
    return error.exit_code


def from_os_error(error: OSError) -> CannlmError:
    """A file or network problem that no room turned into an error of ours."""
    return EnvironmentFailure(f"the operating system refused: {error.strerror or error}", file=error.filename)


def _as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2, default=str)


def _write(text: str) -> None:
    """Print to standard output whatever its encoding; what it cannot hold becomes an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
