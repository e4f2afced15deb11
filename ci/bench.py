"""How fast the product is: each row beside its peer or limit, measured in one run.

    python3 ci/bench.py [NAME...] [--list] [--json]

A row is {"name", "ratio", "goal", "better", "figure", "unit", "against"}; ``ratio`` is to be at most ("lower") or at
least ("higher") ``goal``. The sides of a ratio alternate, and medians are compared. Exit status: 0 every goal is met,
1 a goal is missed, 3 a row could not be measured (its ratio is null).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from environment import ROOT, VENV, python_with

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
BUILD_LIMIT_S = 20
UNUSED_LIMIT_MS = 15


@dataclass(frozen=True)
class Measured:
    """What a bench found: the ratio that is judged, and the figure that a reader knows what to do with."""

    ratio: float | None
    figure: float | None
    unit: str


@dataclass(frozen=True)
class Bench:
    """One comparison and its goal."""

    name: str
    goal: float
    better: str
    against: str
    measure: Callable[[], Measured]

    def row(self) -> dict[str, Any]:
        """The measured row; a null ratio with the reason where it could not be measured."""
        against = self.against
        try:
            measured = self.measure()
        except Exception as error:
            measured, against = Measured(None, None, ""), f"not measured: {type(error).__name__}: {error}"
        goal = {"goal": self.goal, "better": self.better}
        found = asdict(measured)
        return {
            "name": self.name, "ratio": found["ratio"], **goal,
            "figure": found["figure"], "unit": found["unit"], "against": against,
        }  # fmt: skip


def met(row: dict[str, Any]) -> bool:
    """Whether the row's goal is reached."""
    if row["ratio"] is None:
        return False
    return bool(row["ratio"] <= row["goal"] if row["better"] == "lower" else row["ratio"] >= row["goal"])


def alternating(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The median of what each side returns, the sides taking turns."""
    taken = [[side() for side in sides] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def cache_folder() -> Path:
    """The user's own cache."""
    from pytest_cannlm.settings import resolve

    return resolve(environment=os.environ).cache_folder


@cache
def checkpoint() -> Path:
    """The model's file, fetched if need be."""
    from pytest_cannlm.models.fetch import fetch
    from pytest_cannlm.progress import PlainProgress

    return fetch(MODEL, cache=cache_folder(), progress=PlainProgress())


@cache
def sessions() -> tuple[Any, Any, list[int]]:
    """The faithful engine's session on the w4a16 package, the float reference's session, and a chat prompt."""
    from pytest_cannlm.build import Recipe, build
    from pytest_cannlm.build.reference import float_reference
    from pytest_cannlm.parity.reference import OnnxReference
    from pytest_cannlm.progress import PlainProgress
    from pytest_cannlm.simulator.engine import SimulatedEngine

    progress = PlainProgress()
    package = build(Recipe(MODEL, checkpoint()), cache=cache_folder(), progress=progress)
    engine = SimulatedEngine()
    engine.load(str(package.package), {})
    reference = OnnxReference(float_reference(checkpoint(), context=2048, cache=cache_folder(), progress=progress))
    prompt = reference.tokenizer.render_chat([{"role": "user", "content": QUESTION}])
    return engine.session, reference.session, reference.tokenizer.encode(prompt)


def decode(session: Any, prompt: list[int], tokens: int = 32) -> tuple[float, float]:
    """Seconds per greedy decode step, and the part of them that is not spent inside ONNX Runtime."""
    session.rewind(0)
    logits = session.feed(prompt)
    kernels, began = session.kernel_seconds, time.perf_counter()
    for _ in range(tokens):
        logits = session.feed([int(logits.argmax())])
    seconds = time.perf_counter() - began
    return seconds / tokens, (seconds - (session.kernel_seconds - kernels)) / tokens


def faithful_decode() -> Measured:
    """Faithful w4a16 decode against our own float32 decode of the same model."""
    quantized, reference, prompt = sessions()
    ours, theirs = alternating(9, lambda: decode(quantized, prompt)[0], lambda: decode(reference, prompt)[0])
    return Measured(theirs / ours, 1 / ours, "tokens/s")


def python_share() -> Measured:
    """The share of a faithful w4a16 decode step that is spent in Python."""
    quantized, _, prompt = sessions()
    steps = [decode(quantized, prompt) for _ in range(9)]
    share = statistics.median(python / whole for whole, python in steps)
    return Measured(share, 100 * share, "% of a step")


def whole_build() -> Measured:
    """The four steps from a GGUF file that has been read once."""
    from pytest_cannlm.build import Recipe, build
    from pytest_cannlm.progress import SilentProgress

    checkpoint().read_bytes()

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            build(Recipe(MODEL, checkpoint()), cache=Path(folder), progress=SilentProgress())
            return time.perf_counter() - began

    seconds = statistics.median(once() for _ in range(3))
    return Measured(seconds / BUILD_LIMIT_S, seconds, "s")


def unused_plugin() -> Measured:
    """What the installed plugin adds to a pytest run without NPU tests; paired runs in changing order."""
    # an installed package has its byte code; a checkout gets it in the first run, unless this is set
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing(): pass\n")

        def once(*extra: str) -> float:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *extra]
            began = time.perf_counter()
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            return 1000 * (time.perf_counter() - began)

        def added_in_pair(number: int) -> float:
            if number % 2:
                return once() - once("-p", "no:cannlm")
            return -(once("-p", "no:cannlm") - once())

        added_in_pair(0)
        added = statistics.median(map(added_in_pair, range(50)))
    return Measured(added / UNUSED_LIMIT_MS, added, "ms")


BENCHES = (
    Bench("decode", 1.4, "higher", "float32 decode of the same model", faithful_decode),
    Bench("python-share", 0.05, "lower", "the whole decode step", python_share),
    Bench("build", 1.0, "lower", f"{BUILD_LIMIT_S} s on 2 cores", whole_build),
    Bench("unused-plugin", 1.0, "lower", f"{UNUSED_LIMIT_MS} ms over bare pytest", unused_plugin),
)


def show(row: dict[str, Any]) -> str:
    """A row as a line for people."""
    if row["ratio"] is None:
        return f"{row['name']:15} -       {row['against']}"
    bound = "at most" if row["better"] == "lower" else "at least"
    verdict = "met" if met(row) else "MISSED"
    return (
        f"{row['name']:15} {row['ratio']:<7.3f} {bound} {row['goal']}: {verdict}; "
        f"{row['figure']:.1f} {row['unit']}, measured against {row['against']}"
    )


def main() -> None:
    """Measure the asked-for rows and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure; all without one")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    asked = parser.parse_args()
    known = {bench.name: bench for bench in BENCHES}
    unknown = sorted(set(asked.names) - set(known))
    if unknown:
        parser.error(f"unknown row {', '.join(unknown)}; there are {', '.join(known)}")
    if asked.list:
        print("\n".join(f"{bench.name:15} {bench.measure.__doc__}" for bench in BENCHES))
        return
    if Path(sys.prefix) != VENV:
        python = python_with("test")
        sys.exit(subprocess.run([python, Path(__file__), *sys.argv[1:]], cwd=ROOT, check=False).returncode)
    rows = [known[name].row() for name in asked.names or known]
    print(json.dumps(rows, indent=1) if asked.json else "\n".join(map(show, rows)))
    sys.exit(3 if any(row["ratio"] is None for row in rows) else int(not all(map(met, rows))))


if __name__ == "__main__":
    main()
