"""The record of a run as a JSON file: the authoritative report."""

from __future__ import annotations

import contextlib
import json
import uuid
from pathlib import Path

from pytest_cannlm.errors import BadInputError, EnvironmentFailure
from pytest_cannlm.report.record import RunRecord, from_data, to_data


def json_bytes(run: RunRecord) -> bytes:
    """The record as UTF-8 JSON, readable in every script; a lone surrogate stays its JSON escape."""
    text = json.dumps(to_data(run), ensure_ascii=False, allow_nan=False, indent=2)
    return (text + "\n").encode("utf-8", "backslashreplace")


def write_json_report(run: RunRecord, path: Path) -> None:
    """Write the report so that ``path`` holds the old file or the whole new one, never half of it.

    Missing folders are made. A path that cannot be written is an :class:`EnvironmentFailure`.
    """
    content = json_bytes(run)
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise EnvironmentFailure(
            f"the report cannot be written: {error.strerror or error}",
            file=path,
            remedy="Name a path in a folder that can be written, with --npu-report",
        ) from error


def read_json_report(path: Path) -> RunRecord:
    """The record in a report file. A missing, damaged or foreign file is a :class:`BadInputError`."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise BadInputError(f"the report cannot be read: {error.strerror or error}", file=path) from error
    except ValueError as error:
        raise BadInputError(f"not a JSON report: {error}", file=path) from error
    return from_data(RunRecord, data)
