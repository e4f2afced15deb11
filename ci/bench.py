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
LARGE_BUILD_LIMIT_S = 15
LARGE_BUILD_LIMIT_BYTES = 1 << 30
UNUSED_LIMIT_MS = 15
GATE_LIMIT_MS = 5
GATE_LIMIT_BYTES = 64 * 1024
G32_KL, G32_TOP1, G64_MIXED_KL, W8_KL = 0.165, 0.80, 0.137, 0.0055
"""Limits of quality on the shuffled SmolLM2-135M against float32: mean KL in nats, share of equal likeliest tokens."""


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


def write_large_package(folder: Path) -> tuple[int, int]:
    """A package whose weights (a hole) take 4 GiB and whose MODEL_DEF takes more than 4 MB; bytes of both."""
    from pytest_cannlm.container.core import open_container
    from pytest_cannlm.container.kirin import write_simulated_omc
    from pytest_cannlm.container.modeldef import TensorIO

    vocab, hidden, context, weight_bytes = 151_936, 4096, 2048, 4 << 30
    cache = [TensorIO(f"past_{kind}_in{layer}", "float16", (context, 8, 1, 128))
             for layer in range(36) for kind in ("key", "value")]  # fmt: skip
    filler = [TensorIO(f"{number:012000d}", "float16", (1, 1)) for number in range(120)]  # long names make it
    # large, not many inputs: the device's runtime takes 200 at most, and these are 193
    model = folder / "large.omc"
    write_simulated_omc(
        model, name="large", chip="KirinX90", build_version="6.1.1.0", runtime_graph=b"",
        inputs=[TensorIO("input_embed", "int8", (1, -1, hidden)), *cache, *filler],
        outputs=[TensorIO("lm_logits", "float", (1, -1, vocab))], weight_size=weight_bytes,
    )  # fmt: skip
    llm = {
        "bos_token_id": 1, "eos_token_id": 2, "kv_cache_max_len": context, "num_attention_heads": 32,
        "num_attention_kv_heads": 8, "num_attention_head_dims": 128, "num_hidden_layers": 36, "prefill_len": 64,
        "decode_len": 1, "vocab_size": vocab, "max_io_tokens": 2 * context, "hidden_size": hidden,
        "embedding_weights": "large.embedding_weights", "embedding_dequant_scale": "large.embedding_dequant_scale",
        "embedding_input_type": "int8",
    }  # fmt: skip
    executor = {
        "version": 1, "llm_config": llm, "tokenizer": {"type": "bpe", "path": "tokenizer.json"},
        "autoregressive": {"model_path": model.name, "weight_path": "./"},
    }  # fmt: skip
    sizes = {
        "SubGraph_0.weight": weight_bytes, llm["embedding_weights"]: vocab * hidden,
        llm["embedding_dequant_scale"]: vocab * 4, "tokenizer.json": 11_000_000, "context.json": 500,
    }  # fmt: skip
    for name, size in sizes.items():
        with Path(folder, str(name)).open("wb") as file:
            file.truncate(size)
    Path(folder, "executor.json").write_text(json.dumps(executor, indent=1), encoding="utf-8")
    return sum(sizes.values()), open_container(model).partitions[0].size


def at_the_gate(rounds: int = 101) -> tuple[Any, float, float, str]:
    """The gate's decision on a 4 GiB package, its ms, the ms of one open and stat, and what the package is."""
    from pytest_cannlm.compat.gate import Target, decide

    target = Target(chip="KirinX90", cann="6.1.1.0", simulated=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total, model_def = write_large_package(folder)

        def gate() -> float:
            return decide(folder, target).ms

        def open_and_stat() -> float:
            began = time.perf_counter()
            with (folder / "large.omc").open("rb"):
                (folder / "large.omc").stat()
            return 1000 * (time.perf_counter() - began)

        ours, least = alternating(rounds, gate, open_and_stat)
        decision = decide(folder, target)
    if decision.answer != "load":
        raise RuntimeError(decision.explain())
    return decision, ours, least, f"a package of {total / 2**30:.1f} GiB, MODEL_DEF {model_def / 1e6:.1f} MB"


def gate_time() -> Measured:
    """What the gate takes for a 4 GiB package, beside one open and stat of its model file."""
    _, ours, least, package = at_the_gate()
    beside = f"ms ({package}; one open and stat takes {least:.3f} ms)"
    return Measured(ours / GATE_LIMIT_MS, ours, beside)


def gate_bytes() -> Measured:
    """Bytes that the gate reads of a 4 GiB package."""
    decision, _, _, package = at_the_gate(rounds=1)
    return Measured(decision.bytes_read / GATE_LIMIT_BYTES, decision.bytes_read, f"bytes read of {package}")


@cache
def package_quality(**recipe: Any) -> Any:
    """KL and top-1 of a package of the shuffled model; see quality.py. The seconds are those of its quantize step."""
    from quality import quality

    return quality(**recipe)


def nats(found: Any, limit: float) -> Measured:
    """Mean KL against its limit."""
    return Measured(found.kl / limit, found.kl, f"nats (top-1 {found.top1:.3f}, quantized in {found.seconds:.0f} s)")


def quality_g32() -> Measured:
    """KL from float32 of w4a16 by GPTQ in groups of 32, on the shuffled SmolLM2-135M."""
    return nats(package_quality(quantizer="gptq", group_size=32), G32_KL)


def quality_g32_top1() -> Measured:
    """Share of positions where that package finds float32's likeliest token."""
    top1 = package_quality(quantizer="gptq", group_size=32).top1
    return Measured(top1 / G32_TOP1, 100 * top1, "% of positions")


def quality_g64_mixed() -> Measured:
    """KL of GPTQ in groups of 64, a quarter of the projections' weights at 8 bits."""
    return nats(package_quality(quantizer="gptq", group_size=64, keep_8bit=25.0), G64_MIXED_KL)


def quality_w8() -> Measured:
    """KL of w8a16, rounded to nearest."""
    return nats(package_quality(scheme="w8a16"), W8_KL)


def rtn_throughput() -> Measured:
    """Rounding the projections of a 1.5B layer to 4 bits, against ONNX Runtime's MatMulNBits quantizer."""
    from large import matrices, round_ours, round_theirs

    weights = matrices()
    ours, theirs = alternating(9, lambda: round_ours(weights), lambda: round_theirs(weights))
    return Measured(theirs / ours, sum(2 * matrix.size for matrix in weights) / ours / 1e6, "MB/s of 16-bit weights")


def large_build() -> Measured:
    """The four steps and the start of the program for a 1.5B-shaped checkpoint of 3.1 GB that was just written."""
    from large import built

    seconds = built().seconds
    return Measured(seconds / LARGE_BUILD_LIMIT_S, seconds, "s")


def large_build_memory() -> Measured:
    """Most anonymous memory of that build."""
    from large import built

    most = built().anonymous_bytes
    if most is None:
        raise RuntimeError("this system does not tell a process's anonymous memory")
    return Measured(most / LARGE_BUILD_LIMIT_BYTES, most / 1e6, "MB")


BENCHES = (
    Bench("decode", 1.4, "higher", "float32 decode of the same model", faithful_decode),
    Bench("python-share", 0.05, "lower", "the whole decode step", python_share),
    Bench("build", 1.0, "lower", f"{BUILD_LIMIT_S} s on 2 cores", whole_build),
    Bench("rtn-throughput", 3.0, "higher", "ONNX Runtime's quantizer with its transpose", rtn_throughput),
    Bench("build-1.5b", 1.0, "lower", f"{LARGE_BUILD_LIMIT_S} s on 2 cores", large_build),
    Bench("build-memory", 1.0, "lower", "1 GiB of anonymous memory", large_build_memory),
    Bench("gate", 1.0, "lower", f"{GATE_LIMIT_MS} ms", gate_time),
    Bench("gate-bytes", 1.0, "lower", f"{GATE_LIMIT_BYTES} bytes", gate_bytes),
    Bench("quality-g32", 1.0, "lower", f"{G32_KL} nats", quality_g32),
    Bench("quality-g32-top1", 1.0, "higher", f"{100 * G32_TOP1:.0f} %", quality_g32_top1),
    Bench("quality-g64-mixed", 1.0, "lower", f"{G64_MIXED_KL} nats", quality_g64_mixed),
    Bench("quality-w8", 1.0, "lower", f"{W8_KL} nats", quality_w8),
    Bench("unused-plugin", 1.0, "lower", f"{UNUSED_LIMIT_MS} ms over bare pytest", unused_plugin),
)


def show(row: dict[str, Any]) -> str:
    """A row as a line for people."""
    if row["ratio"] is None:
        return f"{row['name']:17} -       {row['against']}"
    bound = "at most" if row["better"] == "lower" else "at least"
    verdict = "met" if met(row) else "MISSED"
    return (
        f"{row['name']:17} {row['ratio']:<7.3f} {bound} {row['goal']}: {verdict}; "
        f"{row['figure']:.5g} {row['unit']}, measured against {row['against']}"
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
        print("\n".join(f"{bench.name:17} {bench.measure.__doc__}" for bench in BENCHES))
        return
    if Path(sys.prefix) != VENV:
        python = python_with("test")
        sys.exit(subprocess.run([python, Path(__file__), *sys.argv[1:]], cwd=ROOT, check=False).returncode)
    rows = [known[name].row() for name in asked.names or known]
    print(json.dumps(rows, indent=1) if asked.json else "\n".join(map(show, rows)))
    sys.exit(3 if any(row["ratio"] is None for row in rows) else int(not all(map(met, rows))))


if __name__ == "__main__":
    main()
