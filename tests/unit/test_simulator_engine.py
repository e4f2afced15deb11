"""The simulated engine, driven through the interface that every engine has."""

import json
import shutil

import numpy as np
import pytest

from pytest_cannlm.agent.protocol import GenerateRequest, TimingRequest
from pytest_cannlm.build import relabel
from pytest_cannlm.build.folder import locate_package
from pytest_cannlm.build.reference import quantized_reference
from pytest_cannlm.errors import ContainerError, EngineError, PackageError, UsageError
from pytest_cannlm.parity.reference import OnnxReference
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.simulator.engine import SimulatedEngine
from pytest_cannlm.simulator.memory import parts_of
from pytest_cannlm.simulator.package import read_package

PROMPT = "<|im_start|>user\nThe quick brown fox<|im_end|>\n<|im_start|>assistant\n"


def ignore(event):
    pass


@pytest.fixture
def engine(tiny_packages):
    made = SimulatedEngine()
    made.load(str(tiny_packages().package), {})
    return made


def logits(engine, ids, first=0):
    vocabulary = 512
    return np.concatenate([np.frombuffer(c, "<f4").reshape(-1, vocabulary) for c in engine.logits(ids, first)])


def generate(engine, text=PROMPT, max_new_tokens=8, **options):
    return engine.generate(GenerateRequest(text, max_new_tokens, **options), ignore)


def test_absolute_paths_of_an_app_are_places_in_the_package(tiny_packages, tmp_path):
    built = tiny_packages()
    package = tmp_path / "package"
    shutil.copytree(built.package, package)
    settings = json.loads((package / "executor.json").read_text(encoding="utf-8"))
    paths, tokenizer = settings["autoregressive"], settings["tokenizer"]
    for names, key in ((paths, "model_path"), (paths, "weight_path"), (tokenizer, "path")):
        names[key] = f"/data/app/qwen2/{names[key]}"
    (package / "executor.json").write_text(json.dumps(settings), encoding="utf-8")
    made = SimulatedEngine()
    made.load(str(package), {})
    assert made.tokenize("fox")
    moved = locate_package(package)
    assert (moved.model, moved.weights) == (package / built.model.name, package / built.weights.name)
    assert parts_of(read_package(package)) == parts_of(read_package(built.package))


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16", "fp16"])
def test_computes_what_the_packages_codes_stand_for(tiny_packages, scheme):
    """Gate G2: against the dequantized coefficients only fp16 rounding is left."""
    package = tiny_packages(scheme)
    engine = SimulatedEngine()
    engine.load(str(package.package), {})
    reference = OnnxReference(quantized_reference(package, cache=tiny_packages.cache, progress=SilentProgress()))
    ids = engine.tokenize("The quick brown fox jumps over the lazy dog. " * 4)[:100]
    ours, theirs = logits(engine, ids), np.concatenate(list(reference.logits(ids)))
    assert _kl(theirs, ours).mean() < 1e-4
    assert (ours.argmax(1) == theirs.argmax(1)).mean() >= 0.98


def test_rounds_to_fp16_unless_told_to_be_fast(tiny_packages):
    """The two modes differ from each other; a mode that changed nothing would be a lie."""
    engines = {mode: SimulatedEngine() for mode in ("faithful", "fast")}
    for mode, engine in engines.items():
        engine.load(str(tiny_packages().package), {"mode": mode})
    ids = engines["fast"].tokenize("The quick brown fox jumps over the lazy dog")
    faithful, fast = (logits(engine, ids) for engine in engines.values())
    assert 0 < np.abs(faithful - fast).max() < 5
    assert generate(engines["fast"]).served_by == "simulated KirinX90 (fast)"


def test_reads_the_package_folder_alone(tiny_packages, tmp_path):
    """Neither manifest nor cache nor checkpoint is needed: a copied folder runs the same."""
    original = SimulatedEngine()
    original.load(str(tiny_packages().package), {})
    shutil.copytree(tiny_packages().package, tmp_path / "copied somewhere" / "package")
    copied = SimulatedEngine()
    copied.load(str(tmp_path / "copied somewhere" / "package"), {})
    assert generate(copied).tokens == generate(original).tokens


def test_generation_is_deterministic_and_says_who_made_it(engine):
    one = generate(engine)
    engine.reset()
    two = generate(engine)
    assert one.tokens == two.tokens
    assert (one.kind, one.served_by) == ("modelled", "simulated KirinX90 (faithful)")
    assert len(one.times.tokens) == len(one.tokens) == 8
    assert list(one.times.tokens) == sorted(one.times.tokens)


def test_token_events_add_up_to_the_text(engine):
    events = []
    made = engine.generate(GenerateRequest(PROMPT, 12, ignore_eos=True), events.append)
    assert [event.token for event in events] == list(made.tokens)
    assert made.text.startswith("".join(event.text for event in events))
    assert [event.time_ms for event in events] == list(made.times.tokens)


def test_greedy_decoding_equals_teacher_forcing(engine):
    made = generate(engine, ignore_eos=True)
    ids = engine.tokenize(PROMPT)
    rows = logits(engine, [*ids, *made.tokens], first=len(ids) - 1)[:-1]
    ends = engine._loaded._end_ids
    rows[:, sorted(ends)] = -np.inf
    assert tuple(rows.argmax(1)) == made.tokens


@pytest.mark.parametrize("number", [0, 1])
def test_every_end_of_text_id_stops_a_generation(engine, monkeypatch, number):
    """Scripted logits emit one of the end-of-text ids at step 4: the generation ends there, for each of them."""
    from pytest_cannlm.simulator.sampling import TokenChooser

    end = sorted(engine._loaded._end_ids)[number]
    script = iter([40, 41, 42, end, 43, 44])
    monkeypatch.setattr(TokenChooser, "choose", lambda self, logits, seen: next(script))
    made = generate(engine, max_new_tokens=6)
    assert (made.finish, len(made.tokens), made.tokens[-1]) == ("stop", 4, end)
    assert "<|" not in made.text


def test_stop_sequence_is_cut_from_the_text(engine):
    whole = generate(engine, ignore_eos=True, max_new_tokens=12).text
    stop = whole[4:7]
    engine.reset()
    made = generate(engine, stop=(stop,), max_new_tokens=12)
    assert made.finish == "stop"
    assert made.text == whole[: whole.index(stop)]


def test_shared_beginning_is_not_computed_again(engine):
    first = generate(engine)
    again = generate(engine, PROMPT + first.text + "<|im_end|>\nmore")
    assert first.cached_prefix_tokens == 0
    assert again.cached_prefix_tokens > len(engine.tokenize(PROMPT)) - 1
    engine.reset()
    fresh = generate(engine, PROMPT + first.text + "<|im_end|>\nmore")
    assert fresh.cached_prefix_tokens == 0
    assert fresh.tokens == again.tokens


def test_empty_prompt_returns_code_1(engine):
    with pytest.raises(EngineError) as caught:
        generate(engine, "")
    assert caught.value.code == "1"


def test_full_cache_gives_worthless_text_with_a_success_code(engine):
    """What users met: only the content tells."""
    ids = engine.tokenize(PROMPT)
    prompt = PROMPT * (300 // len(ids) + 1)
    made = generate(engine, prompt, max_new_tokens=10)
    assert made.prompt_tokens > 256
    assert made.return_code == 0
    assert set(made.text) == {" ", "-"}


def test_cache_that_fills_during_generation_degenerates_there(engine):
    made = generate(engine, max_new_tokens=300, ignore_eos=True)
    room = 256 - made.prompt_tokens + 1
    assert set(made.text[-20:]) == {" ", "-"}
    assert len(set(made.tokens[:room])) > 2


def test_far_beyond_the_cache_the_call_fails(engine):
    ids = engine.tokenize(PROMPT)
    with pytest.raises(EngineError) as caught:
        generate(engine, PROMPT * (520 // len(ids) + 1))
    assert caught.value.code == "1"


def test_sampling_is_seeded(engine):
    texts = []
    for seed in (1, 1, 2):
        engine.reset()
        texts.append(generate(engine, do_sample=True, temperature=3.0, top_k=50, seed=seed, max_new_tokens=16).text)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("option", [{"temperature": 0.0}, {"top_k": 0}, {"top_p": 0.0}, {"repetition_penalty": -1.0}])
def test_sampling_values_out_of_range_are_refused(engine, option):
    with pytest.raises(UsageError, match=next(iter(option))):
        generate(engine, do_sample=True, **option)


def test_logits_of_later_positions_only(engine):
    ids = engine.tokenize("The quick brown fox jumps over the lazy dog. " * 10)[:150]
    np.testing.assert_array_equal(logits(engine, ids)[100:], logits(engine, ids, first=100))


@pytest.mark.parametrize("ids", [[], [1] * 257])
def test_logits_that_do_not_fit_the_cache_are_refused(engine, ids):
    with pytest.raises(EngineError, match="1 to 256"):
        list(engine.logits(ids, 0))


def test_sampled_times_are_seeded_and_spread(engine):
    request = TimingRequest(prompt_tokens=20, new_tokens=8, repeats=3, seed=5)
    times = engine.sample_times(request)
    assert times == engine.sample_times(request)
    assert len({t.tokens[-1] for t in times}) == 3
    assert times != engine.sample_times(TimingRequest(20, 8, 3, seed=6))


def test_equal_requests_with_equal_state_take_equal_times(engine):
    one = generate(engine)
    engine.reset()
    assert generate(engine).times == one.times


def test_the_devices_seed_changes_every_modelled_time(tiny_packages):
    request = TimingRequest(prompt_tokens=20, new_tokens=8, repeats=3, seed=5)
    taken = []
    for seed in (1, 2):
        engine = SimulatedEngine()
        engine.load(str(tiny_packages().package), {"seed": seed})
        taken.append((engine.sample_times(request), generate(engine).times))
    assert taken[0][0] != taken[1][0]
    assert taken[0][1] != taken[1][1]


@pytest.mark.parametrize("token", [-1, 512])
def test_ids_outside_the_vocabulary_are_refused(engine, token):
    with pytest.raises(EngineError, match="0 to 511"):
        list(engine.logits([1, token], 0))


def test_logits_fed_one_by_one_are_those_of_decoding(engine):
    ids = engine.tokenize("The quick brown fox jumps over the lazy dog")
    single = np.concatenate([np.frombuffer(c, "<f4").reshape(-1, 512) for c in engine.logits(ids, 0, 1)])
    np.testing.assert_allclose(single, logits(engine, ids), atol=0.05)


def test_memory_is_what_the_files_hold(engine, tiny_packages):
    memory = engine.memory()
    package = tiny_packages().package
    assert memory.kind == "modelled"
    assert memory.parts["weights"] == (package / "SubGraph_0.weight").stat().st_size
    assert memory.parts["kv_cache"] == 2 * 2 * 2 * 32 * 2 * 256
    assert memory.kv_per_token == 2 * 2 * 2 * 32 * 2
    assert memory.load == sum(size for part, size in memory.parts.items() if part != "workspace")
    assert memory.peak == memory.load
    generate(engine)
    assert engine.memory().peak == memory.load + memory.parts["workspace"]


def test_unload_leaves_nothing(engine):
    assert engine.unload().current == 0
    with pytest.raises(EngineError, match="no package"):
        generate(engine)


def test_device_with_too_little_memory_refuses(tiny_packages):
    with pytest.raises(EngineError) as caught:
        SimulatedEngine().load(str(tiny_packages().package), {"ram_bytes": 1 << 20})
    assert caught.value.code == "OUT_OF_MEMORY"
    assert "bytes needed" in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        ("header", ContainerError, "magic"),
        ("empty", ContainerError, "empty"),
        ("pointer", ContainerError, "not an offline model"),
        ("trailing", ContainerError, "length"),
        ("missing-weights", EngineError, "LoadPrivateWeight.*found: 0 bytes"),
        ("truncate", EngineError, "LoadPrivateWeight"),
    ],
)
def test_damaged_packages_do_not_load(tiny_packages, tmp_path, damage, error, match):
    copy = relabel(tiny_packages(), tmp_path / "damaged", damage=damage)
    with pytest.raises(error, match=match):
        SimulatedEngine().load(str(copy.package), {})


def test_weights_outside_the_package_are_refused(tiny_packages, tmp_path):
    from pytest_cannlm.build.weights import WEIGHT_FILE
    from pytest_cannlm.container.kirin import read_simulated, write_simulated_omc

    copy = relabel(tiny_packages(), tmp_path / "copy")
    path = next(copy.package.glob("*.omc"))
    graph = read_simulated(path).runtime_graph
    path.unlink()
    write_simulated_omc(
        path,
        name="tiny",
        chip="KirinX90",
        build_version="6.1.1.0",
        inputs=(),
        outputs=(),
        weight_size=1,
        runtime_graph=graph.replace(WEIGHT_FILE.encode(), b"../outside.weight"),
    )
    with pytest.raises(PackageError, match="elsewhere"):
        SimulatedEngine().load(str(copy.package), {})


def test_unknown_options_and_modes_are_refused(tiny_packages):
    for options in ({"speed": 3}, {"mode": "exact"}, {"profile": "kirin1"}, {"on_mismatch": "melt"}):
        with pytest.raises(UsageError):
            SimulatedEngine().load(str(tiny_packages().package), options)


def test_missing_capabilities_name_the_interface_that_would_be_needed(engine):
    capabilities = engine.capabilities()
    assert "logits" in capabilities.names
    assert "UpdateLora" in capabilities.notes["lora"]


def _kl(reference, device):
    def log_softmax(x):
        x = x.astype(np.float64) - x.max(1, keepdims=True)
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(device)
    return (np.exp(p) * (p - q)).sum(1)
