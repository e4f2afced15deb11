"""Run the tutorial and put what was really printed into its page, and the table of its first run into the README.

    python docs/tutorial/record.py          # needs the network once, for the demo model; takes some minutes

A recorded part stands between ``<!-- recorded: NAME -->`` and ``<!-- end -->``; NAME is a key of RUNS. Every run starts
from a fresh copy of the suite; all share one cache that is empty at first, so that the first run is a first run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUITE = HERE / "suite" / "test_smollm2.py"
PAGE = HERE / "first-budget.md"
README = HERE.parents[1] / "README.md"
PART = re.compile(r"(<!-- recorded: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SCRIPT = re.compile(r"```python\n# (read_report\.py)\n(.*?)```", re.DOTALL)
OF_THIS_MACHINE = ("platform ", "rootdir: ", "plugins: ", "cachedir: ")
QUARTERS = re.compile(r"\d+ \w+ of \d+ \w+$")
"""Lines of progress at every quarter, which only slow machines print."""
COLUMNS = "96"


@dataclass(frozen=True)
class Recording:
    """One command of the tutorial."""

    command: Sequence[str]
    edits: Sequence[tuple[str, str]] = ()
    """What the reader changed in the suite before."""


RUNS = {
    "first": Recording(["pytest"]),
    "second": Recording(["pytest", "-k", "answers"]),
    "halved": Recording(["pytest", "-k", "answers"], [("decode_ms=7.5", "decode_ms=3.75")]),
    "engine": Recording(["pytest", "-k", "refused"], [('cann="6.0.1.0"', 'cann="6.0.1.0", at="engine"')]),
    "other-device": Recording(["pytest", "-k", "refused", "--npu=sim?cann=6.0.1.0"]),
    "report": Recording(["pytest", "-q", "-k", "answers", "--npu-report=npu.json", "--junitxml=npu.xml"]),
    "read-report": Recording(["python", "read_report.py"]),
}


def run(recording: Recording, folder: Path, cache: Path) -> str:
    """What the command prints in ``folder``, without what belongs to this machine alone."""
    text = SUITE.read_text(encoding="utf-8")
    for old, new in recording.edits:
        if old not in text:
            raise SystemExit(f"the suite does not hold {old!r} any more")
        text = text.replace(old, new)
    (folder / SUITE.name).write_text(text, encoding="utf-8")
    program, *arguments = recording.command
    start = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"] if program == "pytest" else [sys.executable]
    done = subprocess.run(
        [*start, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": COLUMNS, "CANNLM_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [
        line
        for line in map(str.rstrip, done.stdout.splitlines())
        if line and not line.startswith(OF_THIS_MACHINE) and not QUARTERS.search(line)
    ]
    shown = " ".join(f'"{word}"' if "?" in word else word for word in recording.command)
    return "\n".join([f"$ {shown}", *lines]).replace(str(folder), "npu-budget")


def main() -> None:
    """Record everything, in the order of RUNS."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "npu-budget", Path(name) / "cache"
        folder.mkdir()
        for script, text in SCRIPT.findall(page):
            (folder / script).write_text(text, encoding="utf-8")
        printed = {}
        for key, recording in RUNS.items():
            print(f"recording {key}", flush=True)
            printed[key] = run(recording, folder, cache)
    printed["table"] = re.sub(r".*?\n(?==+ NPU tests)", "", printed["first"], count=1, flags=re.DOTALL)
    for target in (PAGE, README):
        text = target.read_text(encoding="utf-8")
        text = PART.sub(lambda match: f"{match[1]}\n```console\n{printed[match[2]]}\n```\n\n{match[3]}", text)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
