"""How fast the product is, each row beside its peer or limit, measured in one run.

    python3 ci/bench.py [NAME...] [--list] [--json]

A row is {"name", "ratio", "goal", "better", "figure", "unit", "against"}: ``ratio`` is to be at most (``"lower"``) or at
least (``"higher"``) ``goal``. Both sides of a ratio alternate, and medians are compared. Exit status: 0 all goals met,
1 a goal missed, 3 a row could not be measured (its ratio is null).
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
from pathlib import Path

from environment import ROOT, VENV, python_with

MODEL = "smollm2-135m"
PROMPT = "What is the capital of France?"


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    ratio: float | None
    goal: float
    better: str
    figure: float | None
    unit: str
    against: str

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        if self.ratio is None:
            return False
        return self.ratio <= self.goal if self.better == "lower" else self.ratio >= self.goal


def alternating(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The median of what each side returns, the sides taking turns."""
    taken = [[side() for side in sides] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def cache_folder() -> Path:
    """The user's own cache, where the model is fetched to."""
    from pytest_cannlm.settings import resolve

    return resolve(environment=os.environ).cache_folder


def checkpoint() -> Path:
    """The model's file, fetched if need be."""
    from pytest_cannlm.models.fetch import fetch
    from pytest_cannlm.progress import PlainProgress

    return fetch(MODEL, cache=cache_folder(), progress=PlainProgress())


def sessions():  # type: ignore[no-untyped-def]
    """The faithful engine's session on the w4a16 package and the float reference's."""
    from pytest_cannlm.build import Recipe, build
    from pytest_cannlm.build.reference import float_reference
    from pytest_cannlm.parity.reference import OnnxReference
    from pytest_cannlm.progress import PlainProgress
    from pytest_cannlm.simulator.engine import SimulatedEngine

    source, cache, progress = checkpoint(), cache_folder(), PlainProgress()
    package = build(Recipe(MODEL, source), cache=cache, progress=progress)
    engine = SimulatedEngine()
    engine.load(str(package.package), {})
    reference = OnnxReference(float_reference(source, context=2048, cache=cache, progress=progress))
    prompt = reference.tokenizer.encode(reference.tokenizer.render_chat([{"role": "user", "content": PROMPT}]))
    return engine.session, reference.session, prompt


def decode_seconds(session, prompt: list[int], tokens: int = 32) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Seconds per greedy decode step, and those of them that are not spent inside ONNX Runtime."""
    session.rewind(0)
    logits = session.feed(prompt)
    kernels, began = session.kernel_seconds, time.perf_counter()
    for _ in range(tokens):
        logits = session.feed([int(logits.argmax())])
    seconds = time.perf_counter() - began
    return seconds / tokens, (seconds - (session.kernel_seconds - kernels)) / tokens


def bench_decode() -> Row:
    """Faithful w4a16 decode against our own float32 decode of the same model."""
    quantized, reference, prompt = sessions()
    ours, theirs = alternating(
        9, lambda: decode_seconds(quantized, prompt)[0], lambda: decode_seconds(reference, prompt)[0]
    )
    return Row("decode", theirs / ours, 1.4, "higher", 1 / ours, "tokens/s", "float32 decode of the same model")


def bench_python_share() -> Row:
    """Share of a faithful w4a16 decode step that is spent in Python."""
    quantized, _, prompt = sessions()
    steps = [decode_seconds(quantized, prompt) for _ in range(9)]
    share = statistics.median(python / whole for whole, python in steps)
    return Row("python-share", share, 0.05, "lower", 100 * share, "% of a decode step", "the whole step")


def bench_build() -> Row:
    """The whole package from a GGUF file that was read once, against 20 s on 2 cores."""
    from pytest_cannlm.build import Recipe, build
    from pytest_cannlm.progress import SilentProgress

    source = checkpoint()
    source.read_bytes()

    def once() -> float:
        with tempfile.TemporaryDirectory() as cache:
            began = time.perf_counter()
            build(Recipe(MODEL, source), cache=Path(cache), progress=SilentProgress())
            return time.perf_counter() - began

    seconds = statistics.median(once() for _ in range(3))
    return Row("build", seconds / 20, 1.0, "lower", seconds, "s", "20 s on 2 cores")


def bench_unused_plugin() -> Row:
    """What the installed plugin adds to a pytest run without NPU tests, against 15 ms."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing(): pass\n")

        def once(*extra: str) -> float:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *extra]
            began = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            return 1000 * (time.perf_counter() - began)

        differences = [once() - once("-p", "no:cannlm") for _ in range(15)]
    added = statistics.median(differences)
    return Row("unused-plugin", added / 15, 1.0, "lower", added, "ms", "15 ms over pytest without it, paired runs")


BENCHES = {
    "decode": bench_decode,
    "python-share": bench_python_share,
    "build": bench_build,
    "unused-plugin": bench_unused_plugin,
}
GOALS = {"decode": (1.4, "higher"), "python-share": (0.05, "lower"), "build": (1.0, "lower"), "unused-plugin": (1.0, "lower")}


def measure(name: str) -> Row:
    """The row of that name; its ratio is None if it could not be measured, with the reason."""
    try:
        return BENCHES[name]()
    except Exception as error:
        goal, better = GOALS[name]
        return Row(name, None, goal, better, None, "", f"could not be measured: {type(error).__name__}: {error}")


def main() -> None:
    """Measure the asked-for rows and show them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure; all without one")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown row {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    if asked.list:
        print("\n".join(f"{name:15} {bench.__doc__}" for name, bench in BENCHES.items()))
        return
    if Path(sys.prefix) != VENV:
        python = python_with("test")
        sys.exit(subprocess.run([python, Path(__file__), *sys.argv[1:]], cwd=ROOT, check=False).returncode)
    rows = [measure(name) for name in asked.names or BENCHES]
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        for row in rows:
            shown = "-" if row.ratio is None else f"{row.ratio:.3f}"
            bound = "at most" if row.better == "lower" else "at least"
            figure = "" if row.figure is None else f"{row.figure:.1f} {row.unit}"
            print(f"{row.name:15} {shown:>7} ({bound} {row.goal}) {'met' if row.met else 'MISSED':7} {figure:25} {row.against}")
    sys.exit(3 if any(row.ratio is None for row in rows) else int(not all(row.met for row in rows)))


if __name__ == "__main__":
    main()
