"""Every model family: both forms against transformers' logits on a small checkpoint of that family."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_form import FLOAT_ROWS, EngineForm, cut
from goldens import FOLDER, cosine, golden_arrays

from pytest_cannlm.build.engine_form import write_engine_form
from pytest_cannlm.build.quantize import Formats, write_weights
from pytest_cannlm.build.reference import float_reference
from pytest_cannlm.build.runtime_form import runtime_form
from pytest_cannlm.build.source import Source, config_from_json
from pytest_cannlm.errors import PackageError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tensors import EMBEDDING
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.simulator.session import DecoderSession, Shape

NAMES = [
    "tiny-llama-bias",
    "tiny-qwen2",
    "tiny-qwen2-untied",
    "tiny-qwen2-yarn",
    "tiny-qwen3",
    "tiny-glm",
    "tiny-glm-edge",
]
CONTEXT = 128
QUIET = SilentProgress()
WHY_SKIPPED = "compares live with transformers, which is not installed here; the stored goldens are checked anyway"


@dataclass(frozen=True)
class Case:
    """A family's checkpoint and what transformers computes from it."""

    folder: Path
    ids: list[int]
    golden: np.ndarray

    def assert_equal(self, logits):
        assert cosine(logits, self.golden).min() >= 0.99999
        assert np.abs(logits - self.golden).max() <= 2e-3


@pytest.fixture(params=NAMES)
def case(request, tiny_checkpoint):
    golden = golden_arrays(request.param)
    return Case(tiny_checkpoint(request.param), golden["ids"].tolist(), golden["logits"])


def test_the_goldens_belong_to_these_weights(case):
    known = json.loads((FOLDER / "provenance.json").read_text())["inputs_sha256"]
    file = case.folder / "model.safetensors"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == known[f"{case.folder.name}/{file.name}"]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return lambda folder: OnnxReference(float_reference(folder, context=256, cache=cache, progress=QUIET))


@pytest.mark.parametrize("step", [None, 16, 1], ids=["whole", "chunks of 16", "token by token"])
def test_the_float_reference_equals_transformers(case, references, step):
    case.assert_equal(np.concatenate(list(references(case.folder).session.evaluate(case.ids, step=step))))


def test_the_runtime_form_starts_with_a_cache_of_no_positions(case, references):
    """As a zero-size array, which some engines refuse: here it needs no placeholder and shifts no position."""
    session = references(case.folder).session
    with open_checkpoint(case.folder) as checkpoint:
        c = checkpoint.config
    count = len(case.ids)
    feeds = {
        "input_embed": session._embedding(np.array(case.ids)),
        "position_ids": np.arange(count),
        "attention_mask": np.triu(np.full((count, count), -65504, np.float32), 1),
        "cache_split": np.array([0, count]),
        "logit_rows": np.arange(count),
    }
    feeds |= {f"past_key_in{i}": np.zeros((c.kv_heads, c.head_dim, 0), np.float32) for i in range(c.layers)}
    feeds |= {f"past_value_in{i}": np.zeros((c.kv_heads, 0, c.head_dim), np.float32) for i in range(c.layers)}
    case.assert_equal(session._session.run(["lm_logits"], feeds)[0])


@pytest.mark.parametrize(
    ("prefill", "single"), [(40, 0), (16, 0), (16, 8), (1, 40)], ids=["whole", "chunks", "both", "single"]
)
def test_the_engine_form_equals_transformers(case, tmp_path, prefill, single):
    with open_checkpoint(case.folder) as checkpoint:
        path = tmp_path / "model.onnx"
        write_engine_form(checkpoint.config, CONTEXT, checkpoint.read, path)
        engine = EngineForm(path, checkpoint.config, CONTEXT, float_rows=True)
        table = checkpoint.read(EMBEDDING)
    steps = cut(case.ids, prefill=prefill, single=single)
    case.assert_equal(np.concatenate([engine.step({FLOAT_ROWS: table[step]}) for step in steps]))


def logits(folder, ids, *, config=None, change=lambda name, rows: rows):
    """By the runtime form, with another configuration or with changed weights."""
    with open_checkpoint(folder) as checkpoint:
        config = config or checkpoint.config
        weights = {name: change(name, checkpoint.read(name)) for name in checkpoint.tensors}
    path = folder / "changed.weight"
    coefficients = write_weights(
        config=config,
        read=lambda name, rows=None: weights[name][rows or slice(None)],
        rows_of=lambda name: len(weights[name]),
        formats=Formats("f32", "f32"),
        scheme="float32",
        positions=CONTEXT,
        path=path,
        label="weights",
        progress=QUIET,
    )
    session = DecoderSession(
        runtime_form(config, coefficients, location=path.name),
        weights_dir=folder,
        shape=Shape(config.layers, config.kv_heads, config.head_dim),
        embedding=lambda ids: weights[EMBEDDING][ids],
    )
    return np.concatenate(list(session.evaluate(ids)))


def zeroed(*parts):
    return lambda name, rows: rows * 0 if any(part in name for part in parts) else rows


def side_by_side(name, rows):
    """Rows of q and k with rotary pairs put side by side again, as a checkpoint of GLM has them."""
    if not ("q_proj" in name or "k_proj" in name):
        return rows
    return rows.reshape(-1, 2, 16, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiny-qwen2", zeroed("q_proj.bias")),
        ("tiny-qwen2", zeroed("v_proj.bias")),
        ("tiny-llama-bias", zeroed("o_proj.bias")),
        ("tiny-glm", zeroed("k_proj.bias")),
        ("tiny-glm-edge", side_by_side),
        ("tiny-glm", side_by_side),
        ("tiny-qwen3", lambda name, rows: rows * 0 + 1 if "q_norm" in name else rows),
        ("tiny-qwen3", lambda name, rows: rows * 0 + 1 if "k_norm" in name else rows),
    ],
)
def test_every_weight_that_sets_a_family_apart_counts(tiny_checkpoint, name, change):
    golden = golden_arrays(name)
    found = logits(tiny_checkpoint(name), golden["ids"].tolist(), change=change)
    assert np.abs(found - golden["logits"]).max() > 0.02


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("tiny-qwen2-yarn", {"yarn": None}),
        ("tiny-qwen2-untied", {"theta": 20000.0}),
        ("tiny-glm", {"rotary_dim": 32}),
        ("tiny-glm-edge", {"rotary_dim": 16}),
    ],
)
def test_every_fact_of_the_rotary_embedding_counts(tiny_checkpoint, name, rope):
    golden = golden_arrays(name)
    with open_checkpoint(tiny_checkpoint(name)) as checkpoint:
        config = replace(checkpoint.config, rope=replace(checkpoint.config.rope, **rope))
    found = logits(tiny_checkpoint(name), golden["ids"].tolist(), config=config)
    assert np.abs(found - golden["logits"]).max() > 0.02


def test_rows_behind_the_tokenizers_vocabulary_are_no_tokens(tiny_checkpoint):
    with open_checkpoint(tiny_checkpoint("tiny-qwen2")) as checkpoint:
        assert checkpoint.config.vocab_size == 520
        assert Source(checkpoint.config, checkpoint.tokenizer()).token_count() == 512


def test_a_configuration_survives_the_manifest(case, tmp_path):
    with open_checkpoint(case.folder) as checkpoint:
        source = Source(checkpoint.config, checkpoint.tokenizer())
    source.save(tmp_path)
    assert Source.load(tmp_path) == source


@pytest.mark.parametrize("data", [{"family": "llama", "rope_theta": 1e4}, {"rope": {"yarn": None}}, {"rope": None}])
def test_a_configuration_of_another_version_is_told(data):
    with pytest.raises(PackageError, match="another version") as caught:
        config_from_json(data)
    assert caught.value.remedy


def test_the_engine_form_uses_the_same_operators_for_every_family(case, tmp_path):
    with open_checkpoint(case.folder) as checkpoint:
        write_engine_form(checkpoint.config, CONTEXT, checkpoint.read, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph
    assert {node.op_type for node in graph.node} == {
        "Abs", "Add", "Cast", "Concat", "Div", "Gather", "MatMul", "Mul", "Pow", "ReduceMax", "ReduceMean", "Reshape",
        "ScatterND", "Sigmoid", "Slice", "Softmax", "Sqrt", "Transpose",
    }  # fmt: skip
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names)


def test_live_against_transformers(case, references):
    torch = pytest.importorskip("torch", reason=WHY_SKIPPED)
    transformers = pytest.importorskip("transformers", reason=WHY_SKIPPED)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        case.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = np.random.default_rng(3).integers(0, 520, 200)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
    live = Case(case.folder, ids.tolist(), theirs)
    live.assert_equal(np.concatenate(list(references(case.folder).logits(live.ids))))
