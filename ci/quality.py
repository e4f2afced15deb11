"""How close quantized packages of SmolLM2-135M come to float32, on channel-shuffled weights; rows of bench.py.

The checkpoint's weights lie on a 4-bit grid, where a 4-bit quantizer would look perfect. Shuffling its channels changes
nothing that it computes and takes the weights off that grid. Texts and shuffle are sample files; without them a row is
not measured. The calibration text is from the same sources as the evaluation text, which is kind to quantizers.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
from environment import ROOT

sys.path.insert(0, str(ROOT / "tests"))
WINDOW = 256


@dataclass(frozen=True)
class Quality:
    """Over all positions: mean KL divergence in nats from float32, and how often the likeliest token is the same."""

    kl: float
    top1: float
    seconds: float
    """Of the quantize step."""


@cache
def samples() -> Path:
    """The folder with texts and shuffle."""
    from samples import samples_dir

    folder = samples_dir()
    if folder is None or not (folder / "quality").is_dir():
        raise FileNotFoundError("there are no sample files; set CANNLM_SAMPLES")
    return folder / "quality"


@cache
def workspace() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory()


@cache
def shuffled() -> Path:
    """A Hugging Face folder with the shuffled weights, and ``calibration.txt`` in it."""
    from safetensors.numpy import save_file

    from pytest_cannlm.models.checkpoint import open_checkpoint
    from pytest_cannlm.models.tokenizer import Tokenizer

    folder = Path(workspace().name)
    with open_checkpoint(_original()) as source:
        c, spec = source.config, source.tokenizer()
        config: dict[str, Any] = {
            "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "head_dim": c.head_dim,
        }  # fmt: skip
        weights = run_path(str(samples() / "permute.py"))["permute"](
            config, {n: source.read(n) for n in source.tensors}
        )
    config |= {
        "architectures": [c.architecture], "model_type": c.family, "vocab_size": c.vocab_size, "hidden_act": "silu",
        "max_position_embeddings": c.max_position_embeddings, "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope.theta, "tie_word_embeddings": True, "torch_dtype": "float32",
        "bos_token_id": c.bos_token_id, "eos_token_id": list(c.eos_token_ids),
    }  # fmt: skip
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(spec.json_text, encoding="utf-8")
    ids = np.load(samples() / "tokens.npz")["cal"]
    (folder / "calibration.txt").write_text(Tokenizer(spec).decode(map(int, ids)), encoding="utf-8")
    return folder


@cache
def reference() -> Any:
    """The float reference of the checkpoint as it is: shuffling changes nothing that it computes."""
    from pytest_cannlm.build.reference import float_reference
    from pytest_cannlm.parity.reference import OnnxReference
    from pytest_cannlm.progress import PlainProgress

    return OnnxReference(float_reference(_original(), context=2048, cache=_cache(), progress=PlainProgress()))


def quality(*, text: Path | None = None, **recipe: Any) -> Quality:
    """Build a package of the shuffled checkpoint and hold the faithful simulated engine against float32.

    ``text`` is the calibration text; without one it is that of the sample files, for quantizers that take one.
    """
    from pytest_cannlm.build import Recipe, build
    from pytest_cannlm.parity.metrics import kl_divergence
    from pytest_cannlm.progress import PlainProgress
    from pytest_cannlm.simulator.engine import SimulatedEngine

    plan = Recipe("smollm2-135m", shuffled(), **recipe)
    if plan.calibrates:
        plan = Recipe("smollm2-135m", shuffled(), calibration=text or shuffled() / "calibration.txt", **recipe)
    divergences: list[float] = []
    same: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        built = build(plan, cache=Path(folder), progress=PlainProgress())
        engine = SimulatedEngine()
        engine.load(str(built.package), {})
        tokens = np.load(samples() / "tokens.npz")
        for window in np.concatenate([tokens["fort"], tokens["doc"]]).reshape(-1, WINDOW).tolist():
            engine.session.rewind(0)
            for exact, found in zip(reference().logits(window), engine.session.evaluate(window), strict=True):
                divergences += kl_divergence(exact, found).tolist()
                same += (exact.argmax(axis=1) == found.argmax(axis=1)).tolist()
        engine.unload()
    return Quality(float(np.mean(divergences)), float(np.mean(same)), built.steps[0].seconds)


def _original() -> Path:
    from pytest_cannlm.models.fetch import fetch
    from pytest_cannlm.progress import PlainProgress

    return fetch("smollm2-135m", cache=_cache(), progress=PlainProgress())


def _cache() -> Path:
    from pytest_cannlm.settings import resolve

    return resolve(environment=os.environ).cache_folder


if __name__ == "__main__":
    for arguments in sys.argv[1:]:  # such as quantizer=gptq,group_size=32
        given = dict(pair.split("=") for pair in arguments.split(",") if pair)
        converted = {"group_size": int, "keep_8bit": float}
        print(arguments, quality(**{key: converted.get(key, str)(value) for key, value in given.items()}), flush=True)
