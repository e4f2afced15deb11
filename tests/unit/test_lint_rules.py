"""Every rule of the lint: a package in which it fires, and packages in which it does not."""

import json
import shutil
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from drafts import CONTEXT, HIDDEN, KV_HEADS, MODEL, ROWS, SCALES, VOCAB, WEIGHTS, Draft, like, without

from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.lint import RULES, lint

QKV = "model.layers.0.self_attn.qkv"
GATE = "model.layers.1.mlp.gate_up"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"

Spoil = Callable[[Draft], object]


def executor(section: str, key: str, value: object) -> Spoil:
    return lambda draft: draft.set("executor.json", f"{section}.{key}", value)


def llm(**values: object) -> Spoil:
    return lambda draft: draft.llm(**values)


def context(field: str, value: object) -> Spoil:
    return lambda draft: draft.set("context.json", field, value)


def tokenizer(field: str, value: object) -> Spoil:
    return lambda draft: draft.set("tokenizer.json", field, value)


def token(text: str, number: object) -> Spoil:
    return lambda draft: draft.path("tokenizer.json").write_text(
        json.dumps(with_token(json.loads(draft.path("tokenizer.json").read_text(encoding="utf-8")), text, number)),
        encoding="utf-8",
    )


def with_token(data: dict, text: str, number: object) -> dict:
    data["model"]["vocab"][text] = number
    return data


def without_token(draft: Draft) -> None:
    """Id 511 is gone, and 512 is there: a gap."""
    data = json.loads(draft.path("tokenizer.json").read_text(encoding="utf-8"))
    vocab = data["model"]["vocab"]
    data["model"]["vocab"] = {text: 512 if number == 511 else number for text, number in vocab.items()}
    draft.write_json("tokenizer.json", data)


def compiled(**changes: object) -> Spoil:
    return lambda draft: draft.compile(**changes)


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    return lambda draft: draft.array(name, change)


def entry(name: str, **places: object) -> Spoil:
    """Change external-data entries of an array in the graph of the simulator."""

    def change(graph: onnx.GraphProto) -> None:
        tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
        for item in tensor.external_data:
            item.value = str(places.get(item.key, item.value))

    return lambda draft: draft.graph(change)


def moved_to_block(draft: Draft) -> None:
    draft.write(WEIGHTS, draft.path(WEIGHTS).read_bytes() + bytes(8192))
    size = draft.path(WEIGHTS).stat().st_size
    entry("model.norm.weight", offset=(size - 4096) // 4096 * 4096 + 512)(draft)


def fewer_layers(graph: onnx.GraphProto) -> None:
    kept = [value for value in graph.input if not value.name.startswith("past_value_in1")]
    del graph.input[:]
    graph.input.extend(kept)


def scale(token_id: int, value: float) -> Spoil:
    def change(draft: Draft) -> None:
        scales = np.frombuffer(draft.path(SCALES).read_bytes(), "<f4").copy()
        scales[token_id] = value
        draft.write(SCALES, scales.tobytes())

    return change


def rows(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(draft: Draft) -> None:
        found = np.frombuffer(draft.path(ROWS).read_bytes(), np.int8)
        draft.write(ROWS, change(found).astype(np.int8).tobytes())

    return spoil


def link_out(draft: Draft) -> None:
    outside = draft.root / "outside.json"
    shutil.move(draft.path("context.json"), outside)
    try:
        draft.path("context.json").symlink_to(outside)
    except OSError:
        pytest.skip("links need a privilege here")


def second_model(draft: Draft) -> None:
    draft.compile(name="other.omc")


def made_elsewhere(draft: Draft) -> None:
    draft.without_manifest()
    draft.compile_for_real()


def several_lengths(draft: Draft) -> None:
    draft.llm(is_kv_cache_merge=False)
    draft.compile(inputs=like("past_key_in1", shape=(2 * CONTEXT, KV_HEADS, 1, 32)))


def cut(name: str) -> Spoil:
    return lambda draft: draft.write(name, draft.path(name).read_bytes()[:-1])


def edited_weights(draft: Draft) -> None:
    data = bytearray(draft.path(WEIGHTS).read_bytes())
    data[7] ^= 1
    draft.write(WEIGHTS, bytes(data))


def wiped(draft: Draft) -> None:
    """The first half of the weights is zero."""
    data = draft.path(WEIGHTS).read_bytes()
    draft.write(WEIGHTS, bytes(len(data) // 2) + data[len(data) // 2 :])


def clamped(draft: Draft) -> None:
    draft.array(f"{GATE}.codes", lambda found: np.full_like(found, 0x98))
    draft.array(f"{GATE}.scales", np.abs)


def one_number(draft: Draft) -> None:
    draft.array(f"{GATE}.codes", lambda found: np.full_like(found, 0x99))
    draft.array(f"{GATE}.scales", np.ones_like)


def half_clamped(codes: np.ndarray) -> np.ndarray:
    """Most negative numbers of a w4 matrix become zero: 8 stands for 0 in both nibbles."""
    flat = codes.copy()
    flat[: len(flat) * 3 // 4] = 0x88
    return flat


def api_config(**values: object) -> Spoil:
    return lambda draft: draft.write_json("api_config.json", values)


def same_api_config(draft: Draft) -> None:
    draft.set("context.json", "generate_options.stop_sequence", ["<|im_end|>"])
    api_config(modelPath=f"/data/app/{MODEL}", maxGenTokens=128, sampleFlag=0, stopSeq="<|im_end|>")(draft)


def qwen_with_fallback(draft: Draft) -> None:
    draft.without_manifest()
    draft.llm(model_type="qwen2", rope_theta=10000)


def recorded_fallback(draft: Draft) -> None:
    """A distillation that has 10000 in its config.json, as the manifest says."""
    draft.llm(model_type="qwen2", rope_theta=10000)
    draft.set("manifest.json", "model.config.rope.theta", 10000.0)


ON_DEVICE = "/data/storage/el2/base/haps/entry/files/qwen2"


def in_app(draft: Draft) -> None:
    """Absolute sandbox paths, as an app must name its files."""
    draft.set("executor.json", "autoregressive.model_path", f"{ON_DEVICE}/{MODEL}")
    draft.set("executor.json", "autoregressive.weight_path", f"{ON_DEVICE}/")
    draft.set("executor.json", "tokenizer.path", f"{ON_DEVICE}/tokenizer.json")


def in_app_without(name: str) -> Spoil:
    return lambda draft: (in_app(draft), draft.path(name).unlink())


def official(*flags: str, **changes: object) -> Spoil:
    """A package made elsewhere, whose graph was compiled with these flags."""

    def spoil(draft: Draft) -> None:
        draft.without_manifest()
        draft.compile_for_real(**changes)
        draft.llm(**dict.fromkeys(flags, True))

    return spoil


def shorter_cache(tensors: list) -> list:
    return like("past_value_in1", shape=(CONTEXT // 2, KV_HEADS, 1, 32))(
        like("past_key_in1", shape=(CONTEXT // 2, KV_HEADS, 1, 32))(tensors)
    )


def under_another_name(draft: Draft) -> None:
    draft.path(MODEL).rename(draft.path("my-model.omc"))
    draft.set("executor.json", "autoregressive.model_path", "my-model.omc")


FIRES: list[tuple[str, str, Spoil]] = [
    ("PKG001", "context", lambda draft: draft.path("context.json").unlink()),
    ("PKG001", "executor", lambda draft: draft.path("executor.json").unlink()),
    ("PKG001", "tokenizer", lambda draft: draft.path("tokenizer.json").unlink()),
    ("PKG001", "model", lambda draft: draft.path(MODEL).unlink()),
    ("PKG001", "scales", lambda draft: draft.path(SCALES).unlink()),
    ("PKG001", "weights", lambda draft: draft.path(WEIGHTS).unlink()),
    ("PKG001", "app-model", in_app_without(MODEL)),
    ("PKG001", "app-tokenizer", in_app_without("tokenizer.json")),
    ("PKG001", "listed", lambda draft: draft.set("manifest.json", "files.notes", {"bytes": 1, "sha256": "0" * 64})),
    ("PKG001", "app-weights", in_app_without(WEIGHTS)),
    ("PKG002", "cut", cut("executor.json")),
    ("PKG002", "list", lambda draft: draft.write("context.json", b"[]")),
    ("PKG002", "not-utf8", lambda draft: draft.write("tokenizer.json", b'{"a": "\xff"}')),
    ("PKG002", "nan", lambda draft: draft.write("context.json", b'{"a": NaN}')),
    ("PKG002", "twice", lambda draft: draft.write("context.json", b'{"version": 1, "version": 1}')),
    ("PKG002", "deep", lambda draft: draft.write("context.json", b'{"a": ' + b"[" * 100_000)),
    ("PKG003", "lfs", lambda draft: draft.write(WEIGHTS, LFS)),
    ("PKG003", "html", lambda draft: draft.write("tokenizer.json", b"<!DOCTYPE html><html>")),
    ("PKG003", "empty", lambda draft: draft.write(ROWS, b"")),
    ("PKG003", "model", lambda draft: draft.write(MODEL, b"PK\x03\x04")),
    ("PKG004", "link", link_out),
    ("PKG004", "path", executor("tokenizer", "path", "../tokenizer.json")),
    ("PKG005", "absolute", executor("tokenizer", "path", "/data/storage/tokenizer.json")),
    ("PKG005", "app", in_app),
    ("PKG006", "folder", llm(embedding_weights=f"./{ROWS}")),
    ("PKG007", "backslash", executor("autoregressive", "model_path", f".\\{MODEL}")),
    ("PKG007", "drive", executor("autoregressive", "weight_path", "C:/models")),
    ("PKG008", "no-folder", executor("autoregressive", "weight_path", "weights")),
    ("PKG009", "mixed", executor("tokenizer", "path", f"{ON_DEVICE}/tokenizer.json")),
    ("PKG009", "two-folders", lambda draft: (in_app(draft), executor("tokenizer", "path", "/data/t.json")(draft))),
    ("PKG010", "key", lambda draft: draft.drop("executor.json", "llm_config.num_attention_heads")),
    ("PKG010", "section", lambda draft: draft.drop("context.json", "sampler")),
    ("PKG011", "text", llm(num_hidden_layers="2")),
    ("PKG011", "bool", llm(prefill_len=True)),
    ("PKG011", "zero", llm(hidden_size=0)),
    ("PKG011", "list", llm(eos_token_id=[2, 0])),
    ("PKG011", "flag", llm(use_output_pos=1)),
    ("PKG011", "top-p", context("sampler.top-p", 1.5)),
    ("PKG011", "stop", context("generate_options.stop_sequence", "<|im_end|>")),
    ("PKG011", "empty-stop", context("generate_options.stop_sequence", ["<|im_end|>", ""])),
    ("PKG011", "section", context("sampler", [])),
    ("PKG012", "hyphen", context("sampler.top_k", 20)),
    ("PKG012", "plural", llm(num_hidden_layer=2)),
    ("PKG013", "unknown", llm(mystery=1)),
    ("PKG014", "version", context("version", 2)),
    ("PKG014", "type", lambda draft: draft.set("executor.json", "engine_type", "treespec")),
    ("PKG015", "mixed", context("llm_config", {})),
    ("PKG016", "type", executor("tokenizer", "type", "wordpiece")),
    ("PKG017", "heads", llm(num_attention_kv_heads=3)),
    ("PKG018", "hidden", llm(num_attention_heads=8)),
    ("PKG019", "theta", qwen_with_fallback),
    ("PKG020", "prefill", llm(prefill_len=512)),
    ("PKG021", "positions", llm(max_position_embeddings=128)),
    ("PKG022", "io", context("generate_options.max_gen_tokens", 2 * CONTEXT + 1)),
    ("PKG023", "answer", context("generate_options.max_gen_tokens", CONTEXT)),
    ("PKG024", "flag", llm(enable_lm_head_opt=False)),
    ("PKG025", "lengths", several_lengths),
    ("PKG026", "eos", llm(eos_token_id=VOCAB)),
    ("PKG026", "bos", llm(bos_token_id=-1)),
    ("PKG027", "pad", llm(pad_token_id=-1)),
    ("PKG028", "real", llm(vocab_real_size=VOCAB + 1)),
    ("PKG029", "type", llm(embedding_input_type="fp16")),
    ("PKG030", "more", llm(num_hidden_layers=3)),
    ("PKG030", "fewer", llm(num_hidden_layers=1)),
    ("PKG030", "gap", compiled(inputs=without("past_value_in0"))),
    ("PKG031", "length", llm(kv_cache_max_len=128)),
    ("PKG031", "heads", llm(num_attention_kv_heads=1)),
    ("PKG031", "one", compiled(inputs=like("past_value_in1", shape=(CONTEXT, 1, KV_HEADS, 32)))),
    ("PKG032", "hidden", llm(hidden_size=HIDDEN * 2)),
    ("PKG033", "vocab", llm(vocab_size=VOCAB - 1)),
    ("PKG034", "mask", compiled(inputs=like("attention_mask", shape=(1, 1, -1, 2 * CONTEXT)))),
    ("PKG035", "step", compiled(inputs=like("input_embed", shape=(1, 32, HIDDEN)))),
    ("PKG036", "input", compiled(inputs=without("embed_scales"))),
    ("PKG089", "no-llm", compiled(inputs=lambda _: [TensorIO("image", "float", (1, 3))], outputs=without("lm_logits"))),
    ("PKG036", "output", compiled(outputs=without("lm_logits"))),
    ("PKG037", "dtype", compiled(inputs=like("input_embed", dtype="float"))),
    ("PKG038", "wide", compiled(inputs=like("past_", dtype="float"))),
    ("PKG039", "layers", lambda draft: draft.graph(fewer_layers)),
    ("PKG039", "no-graph", lambda draft: draft.compile(graph=b"\xff\xff")),
    ("PKG039", "positions", llm(kv_cache_max_len=128)),
    ("PKG040", "rows", cut(ROWS)),
    ("PKG041", "scales", cut(SCALES)),
    ("PKG042", "nan", scale(5, float("nan"))),
    ("PKG042", "infinite", scale(5, float("inf"))),
    ("PKG042", "negative", scale(5, -0.5)),
    ("PKG042", "zero", scale(5, 0.0)),
    ("PKG043", "clamped", rows(lambda found: np.maximum(found, 0))),
    ("PKG044", "partly", rows(lambda found: np.where(np.arange(found.size) % 2 == 0, np.maximum(found, 0), found))),
    ("PKG045", "constant", rows(lambda found: np.full_like(found, 3))),
    ("PKG045", "zeros", rows(np.zeros_like)),
    ("PKG050", "pairs", tokenizer("model.merges", [["a", "b"]])),
    ("PKG051", "ignored", tokenizer("model.ignore_merges", False)),
    ("PKG052", "kind", tokenizer("model.type", "Unigram")),
    ("PKG052", "no-model", lambda draft: draft.write("tokenizer.json", b"{}")),
    ("PKG052", "no-vocabulary", tokenizer("model.vocab", [["a", 0.0]])),
    ("PKG053", "text", token("new", "7")),
    ("PKG053", "negative", token("new", -1)),
    ("PKG053", "twice", token("new", 7)),
    ("PKG054", "gap", without_token),
    ("PKG055", "beyond", token("new", VOCAB)),
    ("PKG056", "eos", llm(eos_token_id=VOCAB + 5)),
    ("PKG057", "ordinary", llm(eos_token_id=300)),
    ("PKG058", "stop", context("generate_options.stop_sequence", ["###"])),
    ("PKG059", "fewer", llm(vocab_real_size=VOCAB - 1)),
    ("PKG060", "more", llm(vocab_real_size=VOCAB + 1)),
    ("PKG061", "truncation", tokenizer("truncation", {"max_length": 128})),
    ("PKG070", "never", context("generate_options.callback_freq", 0)),
    ("PKG071", "cold", lambda draft: draft.set("context.json", "sampler", {"do_sample": True, "temperature": 0})),
    ("PKG072", "penalty", context("sampler.repetition_penalty", 0)),
    ("PKG073", "default", lambda draft: draft.drop("context.json", "sampler.seed")),
    ("PKG074", "no-stop", context("generate_options.stop_sequence", [])),
    ("PKG080", "cut", cut(MODEL)),
    ("PKG080", "head", lambda draft: draft.write(MODEL, b"IMOD" + bytes(300))),
    ("PKG081", "shared", second_model),
    ("PKG082", "second", second_model),
    ("PKG083", "simulated", lambda draft: None),
    ("PKG084", "unmarked", lambda draft: draft.header(userdefineinfo=bytes(32))),
    ("PKG085", "elsewhere", made_elsewhere),
    ("PKG086", "ascend", lambda draft: draft.header(layout="A1", platform_version=b"1.75.22.0".ljust(20, b"\0"))),
    ("PKG087", "portable", lambda draft: draft.header(modeltype=3)),
    ("PKG088", "cut", cut(WEIGHTS)),
    ("PKG088", "grown", lambda draft: draft.write(WEIGHTS, draft.path(WEIGHTS).read_bytes() + b"\0")),
    ("PKG100", "end", entry(f"{QKV}.codes", offset=1 << 40)),
    ("PKG100", "elsewhere", entry(f"{QKV}.codes", location="../weights")),
    ("PKG100", "length", entry(f"{QKV}.codes", length=1)),
    ("PKG100", "no-number", entry(f"{QKV}.codes", offset="first")),
    ("PKG101", "block", moved_to_block),
    ("PKG102", "byte", entry("model.norm.weight", offset=266240 + 4)),
    ("PKG103", "overlap", entry(f"{QKV}.scales", offset=8192)),
    ("PKG104", "clamped", clamped),
    ("PKG105", "partly", array(f"{GATE}.codes", half_clamped)),
    ("PKG106", "scales", array(f"{QKV}.scales", lambda found: np.where(found == found.flat[0], np.nan, found))),
    ("PKG106", "norm", array("model.norm.weight", lambda found: np.full_like(found, np.inf))),
    ("PKG107", "matrix", one_number),
    ("PKG108", "matrix", array(f"{QKV}.codes", lambda found: np.full_like(found, 0x88))),
    ("PKG108", "norm", array("model.norm.weight", np.zeros_like)),
    ("PKG109", "wiped", wiped),
    ("PKG110", "cut", cut("manifest.json")),
    ("PKG110", "facts", lambda draft: draft.set("manifest.json", "simulated", "yes")),
    ("PKG110", "hash", lambda draft: draft.set("manifest.json", "files", {WEIGHTS: {"bytes": 1, "sha256": 5}})),
    ("PKG111", "cut", cut(WEIGHTS)),
    ("PKG112", "edited", edited_weights),
    ("PKG113", "unlisted", lambda draft: draft.write("notes.txt", b"x")),
    ("PKG114", "chip", lambda draft: draft.set("manifest.json", "build.chip", "Kirin9020")),
    ("PKG114", "kind", lambda draft: draft.set("manifest.json", "simulated", False)),
    ("PKG115", "theta", llm(rope_theta=500_000)),
    ("PKG115", "context", lambda draft: draft.set("manifest.json", "build.context", 4096)),
    ("PKG116", "shorter", context("generate_options.max_gen_tokens", 7)),
    ("PKG116", "as-long", lambda draft: draft.write("context.json", draft.path("context.json").read_bytes()[::-1])),
    ("PKG120", "stray", lambda draft: draft.write("notes.txt", b"x")),
    ("PKG121", "tokens", api_config(maxGenTokens=7)),
    ("PKG121", "model", api_config(modelPath="/data/other.omc")),
    ("PKG121", "folder", api_config(weightDir="weights")),
    ("PKG121", "stop", api_config(stopSeq="<|end|>")),
    ("PKG122", "dash", under_another_name),
]
"""Code of a rule, a word for the case, and what to do to a clean package to make the rule fire."""

STAYS_CLEAN: list[tuple[str, Spoil]] = [
    ("untouched", lambda draft: None),
    ("elsewhere", made_elsewhere),
    ("bom", lambda draft: draft.write("context.json", b"\xef\xbb\xbf" + draft.path("context.json").read_bytes())),
    ("api-config", same_api_config),
    ("api-config-of-an-app", api_config(weightDir="/data/app/qwen2/", tokenizerPath="/data/app/qwen2/tokenizer.json")),
    ("app", in_app),
    ("keep-file", lambda draft: draft.write(".gitkeep", b"")),
    ("qwen", qwen_with_fallback),
    ("distilled-qwen", recorded_fallback),
    ("merged-caches", official("is_kv_cache_merge", inputs=shorter_cache)),
    ("dynamic-caches", official("enable_dynamic_kv_cache", inputs=like("past_", shape=(-1, KV_HEADS, 1, 32)))),
    ("open-caches", official(inputs=like("past_", shape=(-1, KV_HEADS, 1, 32)))),
    ("topk", official("enable_lm_head_topk", outputs=like("lm_logits", shape=(1, -1, 64)))),
    ("head-size-note-only", llm(num_attention_heads=8)),
    ("zero-row", lambda draft: (scale(5, 0.0)(draft), rows(zero_row)(draft))),
    ("elsewhere-flags", lambda draft: (made_elsewhere(draft), draft.llm(is_kv_cache_merge=True))),
]
"""What is no error and no warning, apart from what the manifest says of edited files."""


def zero_row(found: np.ndarray) -> np.ndarray:
    table = found.reshape(VOCAB, HIDDEN).copy()
    table[5] = 0
    return table


@pytest.fixture
def draft(tiny_packages, tmp_path) -> Draft:
    return Draft(tiny_packages.built().manifest.parent, tmp_path / "copy")


def codes(draft: Draft, *severities: str) -> set[str]:
    return {one.code for one in lint(draft.root).findings if not severities or one.severity in severities}


@pytest.mark.parametrize(("code", "spoil"), [pytest.param(c, s, id=f"{c}-{word}") for c, word, s in FIRES])
def test_rule_fires(draft, code, spoil):
    spoil(draft)
    found = [finding for finding in lint(draft.root).findings if finding.code == code]
    assert found
    for finding in found:
        assert finding.file
        assert finding.found != finding.expected
        assert finding.why
        assert finding.fix


@pytest.mark.parametrize("spoil", [pytest.param(spoil, id=word) for word, spoil in STAYS_CLEAN])
def test_nothing_is_found_where_nothing_is_wrong(draft, spoil):
    spoil(draft)
    edited = {"PKG111", "PKG112", "PKG113"}  # every edit of a listed file is one of these
    assert codes(draft, "error", "warning") <= edited


def test_every_rule_is_seen_firing():
    assert {code for code, _, _ in FIRES} == {rule.code for rule in RULES}


def test_codes_are_unique_and_rules_say_why():
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert [rule.code for rule in RULES if not rule.why.endswith(".")] == []


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16", "fp16"])
def test_a_package_of_our_own_build_is_clean(tiny_packages, scheme):
    report = lint(tiny_packages.built(scheme).package)
    assert [finding.code for finding in report.findings] == ["PKG083"]
    assert [entry.code for entry in report.not_checked] == ["PKG035"], "the gears are left open in the graph"


@pytest.mark.parametrize("scheme", ["w8a16", "fp16"])
@pytest.mark.parametrize(
    ("code", "change"),
    [("PKG104", lambda found: np.full_like(found, 0x99 if found.dtype == np.uint8 else 1.5)), ("PKG106", None)],
)
def test_weights_of_every_format_are_looked_at(tiny_packages, tmp_path, scheme, code, change):
    draft = Draft(tiny_packages.built(scheme).manifest.parent, tmp_path / "copy")
    model = f"tiny_{scheme}.omc"
    shutil.copy(draft.path(model), draft.path(MODEL))
    name = {"w8a16": "high", "fp16": "values"}[scheme]
    if code == "PKG106":
        draft.array(f"{GATE}.{'scales' if scheme == 'w8a16' else 'values'}", lambda found: np.full_like(found, np.nan))
    elif scheme == "w8a16":
        draft.array(f"{GATE}.{name}", lambda found: np.full_like(found, 0x99))
        draft.array(f"{GATE}.scales", np.abs)
    else:
        draft.array(f"{GATE}.{name}", np.abs)
    assert code in codes(draft, "error")
