"""Install into .venv, then run every check: lint, format, types, tests.

python3 ci/test.py                    # everything
python3 ci/test.py tests/unit -k gate # pytest with these arguments only
"""

import sys

from environment import ROOT, python_with, run

CHECKS = (
    ("lint", ["-m", "ruff", "check", "."]),
    ("format", ["-m", "ruff", "format", "--check", "."]),
    ("types", ["-m", "mypy"]),
    ("tests", ["-m", "pytest", "--numprocesses", "2"]),
)


def main() -> None:
    """Run the checks in order; the first that fails ends the run with its exit status."""
    python = python_with("test")
    if sys.argv[1:]:
        run([python, "-m", "pytest", *sys.argv[1:]])
        return
    for name, command in CHECKS:
        print(f"== {name}: python {' '.join(command)}", flush=True)
        run([python, *command])
    print(f"all checks passed in {ROOT}")


if __name__ == "__main__":
    main()
