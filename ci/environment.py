"""The virtual environment of this checkout, shared by the scripts beside this file. Standard library only."""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MINIMUM = (3, 11)


def python_with(extra: str) -> Path:
    """The interpreter of ``.venv`` with this project and its ``extra``; installs only what is not there yet."""
    if sys.version_info < MINIMUM:
        sys.exit(f"Python {'.'.join(map(str, MINIMUM))} or newer is needed; this is {sys.version.split()[0]}")
    python = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = VENV / f"installed-{extra}"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    if python.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"installing pytest-cannlm[{extra}] into {VENV} (once)", file=sys.stderr, flush=True)
    if not python.is_file():
        venv.create(VENV, with_pip=True)
    run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-e", f"{ROOT}[{extra}]"])
    stamp.write_text(wanted)
    return python


def run(command: list[object]) -> None:
    """Run a command in the checkout; leave with its exit status if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
