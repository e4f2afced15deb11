"""What a folder of dopt knows of the runs in it: the job that it is for, and which stages are believed to be done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_cannlm.build.cache import key_of
from pytest_cannlm.errors import UsageError
from pytest_cannlm.models.hashing import file_sha256, write_atomically

_JOB = "dopt-job.json"


@dataclass(frozen=True)
class Seal:
    """The mark of a stage that was believed: written after that, and by nothing else.

    Logs and times of files do not tell it. A stage that failed leaves both, and its exit status is gone with it.

    Attributes:
        file: where the mark is kept.
        made_from: key of everything that the stage depends on.
        outputs: what it wrote.
    """

    file: Path
    made_from: str
    outputs: tuple[Path, ...]

    def holds(self) -> bool:
        """Whether the stage was believed, from the same inputs, and its files are those that it wrote."""
        try:
            return bool(json.loads(self.file.read_text(encoding="utf-8")) == self._content())
        except (OSError, ValueError):
            return False

    def put(self) -> None:
        """Note that the stage is believed."""
        write_atomically(self.file, json.dumps(self._content(), indent=1).encode())

    def key(self) -> str:
        """What the next stage is made from."""
        return key_of(self._content())

    def _content(self) -> dict[str, Any]:
        return {"made_from": self.made_from, "sha256": {file.name: file_sha256(file) for file in self.outputs}}


def claim(folder: Path, facts: Mapping[str, Any], *, strategies: Path) -> None:
    """Take the folder for the job with these facts; one that holds another job's results stays as it is.

    Raises:
        UsageError: it holds another job's, or ``strategies`` that nobody noted the job of.
    """
    record = folder / _JOB
    before = _recorded(record) if record.is_file() or strategies.is_file() else facts
    if before != facts:
        other = sorted(key for key in {*facts, *before} if before.get(key) != facts.get(key))
        raise UsageError(
            "the folder holds another run of dopt",
            file=folder,
            field=", ".join(other),
            found=", ".join(str(before.get(key)) for key in other),
            expected=", ".join(str(facts.get(key)) for key in other),
            remedy="Name a new folder",
        )
    write_atomically(record, json.dumps(facts, indent=1).encode())


def _recorded(record: Path) -> Mapping[str, Any]:
    """What an earlier run noted of itself; nothing where the vendor's own script ran, or the note cannot be read."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
