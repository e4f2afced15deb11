"""Install into .venv, then run the tutorial's suite on a simulated Kirin X90 with a real language model.

    python3 ci/demo.py            # further arguments go to pytest

The first run fetches SmolLM2-135M-Instruct (98 MB) and builds a package from it; the second builds nothing.
"""

import sys

from environment import ROOT, python_with, run

SUITE = ROOT / "docs" / "tutorial" / "suite"


def main() -> None:
    """Run the suite; the exit status is pytest's."""
    python = python_with("test")
    run([python, "-m", "pytest", SUITE, "--rootdir", SUITE, "-v", *sys.argv[1:]])


if __name__ == "__main__":
    main()
