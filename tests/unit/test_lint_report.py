"""The lint as a whole: what is looked at, what is left out and said so, the command, and the build's last step."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from drafts import KV_HEADS, MODEL, ROWS, SCALES, WEIGHTS, Draft, like
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, pipeline
from pytest_cannlm.cli.app import run
from pytest_cannlm.container.kirin import read_simulated
from pytest_cannlm.container.modeldef import TensorIO
from pytest_cannlm.errors import BadInputError, BuildError
from pytest_cannlm.lint import facts, lint, renames
from pytest_cannlm.lint.numbers import LEAST_NEGATIVE, Matrix, Region, look_at, values
from pytest_cannlm.lint.rules import manifest
from pytest_cannlm.progress import SilentProgress

MANIFEST_RULES = {"PKG110", "PKG111", "PKG112", "PKG113", "PKG114", "PKG115", "PKG116"}
WEIGHT_RULES = {f"PKG{number}" for number in range(100, 110)}


@pytest.fixture
def draft(tiny_packages, tmp_path) -> Draft:
    return Draft(tiny_packages.built().manifest.parent, tmp_path / "copy")


def not_checked(draft: Draft, **options: object) -> dict[str, str]:
    return {entry.code: entry.reason for entry in lint(draft.root, **options).not_checked}


def other_blank(draft: Draft) -> None:
    """An edit that leaves the size as it was."""
    draft.write("executor.json", draft.path("executor.json").read_bytes().replace(b"\n", b" ", 1))


def test_the_folder_above_and_the_folder_itself_are_the_same_package(draft):
    assert lint(draft.root) == lint(draft.package)


def test_the_same_package_from_inside_it(draft, monkeypatch):
    monkeypatch.chdir(draft.package)
    assert lint(draft.package.relative_to(draft.package)).findings == lint(draft.root).findings


def test_a_package_made_elsewhere_says_what_could_not_be_checked(draft):
    draft.without_manifest()
    draft.compile_for_real()
    reasons = not_checked(draft)
    assert {code for code, reason in reasons.items() if "manifest" in reason} == MANIFEST_RULES
    assert {code for code, reason in reasons.items() if "an order of the vendor's own" in reason} >= WEIGHT_RULES


def test_compiled_flags_of_a_package_made_elsewhere_are_not_judged(draft):
    draft.without_manifest()
    draft.compile_for_real()
    draft.llm(is_kv_cache_merge=True)
    assert "is_kv_cache_merge" in not_checked(draft)["PKG024"]


def test_a_tokenizer_type_of_newer_engines_is_not_judged(draft):
    draft.set("executor.json", "tokenizer.type", "qwen3")
    assert "qwen3" in not_checked(draft)["PKG016"]


def test_weights_in_a_folder_of_their_own_are_found(draft):
    draft.without_manifest()
    (draft.package / "data").mkdir()
    for name in (WEIGHTS, ROWS, SCALES):
        draft.path(name).rename(draft.package / "data" / name)
    draft.set("executor.json", "autoregressive.weight_path", "./data/")
    assert [finding.code for finding in lint(draft.root).findings] == ["PKG083"]


def test_a_package_whose_model_cannot_be_looked_at_is_not_good(draft, command):
    draft.set("executor.json", "autoregressive.model_path", "a" * 5000)  # a name that no system takes
    draft.without_manifest()
    report = lint(draft.root)
    assert "PKG080" in {entry.code for entry in report.not_checked}
    assert not report.of("error")
    assert not report.good()
    code, said = command(draft.root)
    assert code == 1
    assert "no model could be looked at" in said


def test_caches_of_open_length_are_held_against_heads_and_size(draft):
    draft.compile(inputs=like("past_", shape=(-1, KV_HEADS, 1, 32)))
    assert "leaves an axis" in not_checked(draft)["PKG031"]
    draft.llm(enable_dynamic_kv_cache=True)
    assert "PKG031" in lint(draft.root).checked
    draft.llm(num_attention_kv_heads=1)
    assert "PKG031" in {finding.code for finding in lint(draft.root).findings}


@pytest.mark.parametrize(("text", "texts", "differ"), [("", [], False), ("a", [], True), ("", ["a"], True)])
def test_no_stop_sequence_is_written_in_two_ways(draft, text, texts, differ):
    draft.write_json("api_config.json", {"stopSeq": text})
    draft.set("context.json", "generate_options.stop_sequence", texts)
    assert ("PKG121" in {finding.code for finding in lint(draft.root).findings}) == differ


@pytest.mark.parametrize(
    ("service", "engine", "differ"),
    [("/data/q/", "/data/q", False), ("/data/q/", "/data/r/q", True), (".", "./", False), ("/data/q", "./", False)],
)
def test_folders_are_compared_where_they_are_named_in_one_way(draft, service, engine, differ):
    draft.write_json("api_config.json", {"weightDir": service})
    draft.set("executor.json", "autoregressive.weight_path", engine)
    assert ("PKG121" in {finding.code for finding in lint(draft.root).findings}) == differ


def test_a_recorded_rope_theta_is_compared_and_not_suspected(draft):
    draft.llm(model_type="qwen2", rope_theta=10000)
    draft.set("manifest.json", "model.config.rope.theta", 10000.0)
    assert not {"PKG019", "PKG115"} & {finding.code for finding in lint(draft.root).findings}
    draft.set("manifest.json", "model.config.rope.theta", 1_000_000.0)
    assert "PKG115" in {finding.code for finding in lint(draft.root).findings}
    draft.without_manifest()
    (found,) = [finding for finding in lint(draft.root).findings if finding.code == "PKG019"]
    assert found.severity == "note"


def test_logits_of_the_likeliest_tokens_are_not_the_vocabulary(draft):
    draft.llm(enable_lm_head_topk=True)
    assert "enable_lm_head_topk" in not_checked(draft)["PKG033"]


def test_names_in_the_graph_that_are_no_text_are_no_trouble(draft):
    graph = read_simulated(draft.path(MODEL)).runtime_graph
    draft.compile(graph=graph.replace(b"model.norm.weight", b"model.norm.\xff\xfeight"))
    assert "PKG107" in lint(draft.root).checked


def test_one_broken_file_hides_only_what_depends_on_it(draft):
    draft.write("executor.json", b"{")
    draft.set("context.json", "sampler.top_k", 1)
    report = lint(draft.root)
    assert {"PKG002", "PKG012"} <= {finding.code for finding in report.findings}
    assert "executor.json is no JSON" in not_checked(draft)["PKG030"]


def test_where_json_breaks_is_named(draft):
    draft.write("context.json", b'{\n  "version": 1,\n  "sampler": {]\n}')
    (found,) = [finding.found for finding in lint(draft.root).findings if finding.code == "PKG002"]
    assert "line 3, column 15" in found


def test_many_findings_of_one_rule_are_counted(draft):
    for number in range(30):
        draft.llm(**{f"mystery_of_{number}_things": 1})
    found = [finding.found for finding in lint(draft.root).findings if finding.code == "PKG013"]
    assert len(found) == 21
    assert found[-1] == "10 more like these"


def test_findings_come_errors_first(draft):
    draft.llm(mystery=1, pad_token_id=-1, eos_token_id=-1)
    order = [finding.severity for finding in lint(draft.root).findings]
    assert order == sorted(order, key=["error", "warning", "note"].index)
    assert set(order) == {"error", "warning", "note"}


@pytest.mark.parametrize(("hashes", "limit", "noticed"), [(None, 1 << 30, True), (None, 10, False), (True, 10, True)])
def test_large_packages_are_hashed_on_request_only(draft, monkeypatch, hashes, limit, noticed):
    monkeypatch.setattr(manifest, "HASHED_UNASKED", limit)
    other_blank(draft)
    report = lint(draft.root, hashes=hashes)
    assert ("PKG112" in {finding.code for finding in report.findings}) == noticed
    assert ("PKG112" in {entry.code for entry in report.not_checked}) != noticed


def test_without_hashes_an_edit_of_equal_size_is_not_seen_and_that_is_said(draft):
    other_blank(draft)
    assert "not asked for" in not_checked(draft, hashes=False)["PKG112"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", ["context.json", MODEL, WEIGHTS, ROWS])
def test_a_pipe_is_never_opened(draft, name):
    draft.path(name).unlink()
    os.mkfifo(draft.path(name))
    lint(draft.root)  # opening it would wait for ever


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_a_link_in_a_circle_is_no_trouble(draft):
    draft.path("context.json").unlink()
    draft.path("context.json").symlink_to("context.json")
    assert "PKG001" in {finding.code for finding in lint(draft.root).findings}


def test_a_folder_with_too_many_names_is_not_listed(draft, monkeypatch):
    monkeypatch.setattr(facts, "MOST_ENTRIES", 3)
    assert "more than 3 names" in not_checked(draft)["PKG120"]


def test_a_settings_file_that_is_too_large_is_not_read(draft):
    draft.write("context.json", b" " * (1 << 20) + b"{}")
    assert "more than" in not_checked(draft)["PKG070"]


def test_what_is_no_folder_is_wrong_use(tmp_path):
    with pytest.raises(BadInputError):
        lint(tmp_path / "nothing")


def test_an_empty_folder_is_a_report(tmp_path):
    assert {finding.code for finding in lint(tmp_path).findings} == {"PKG001"}


def region(path, numbers: np.ndarray) -> Matrix:
    path.write_bytes(numbers.tobytes())
    return Matrix("m", {"values": Region(path, 0, numbers.dtype.str, numbers.shape)}, values)


def test_a_large_tensor_is_sampled_over_its_whole_length(tmp_path):
    numbers = np.tile(np.array([[-1], [1]], "<f4"), (50_000, 8))
    look = look_at(region(tmp_path / "m", numbers))
    assert look.numbers < numbers.size / 10
    assert look.negative_share == pytest.approx(0.5, abs=0.05)
    numbers[-500:] = np.nan  # the last run reaches the end
    assert look_at(region(tmp_path / "m", numbers)).bad == 4000


def test_a_bad_sample_is_held_against_the_whole_tensor(tmp_path):
    numbers = np.full((100_000, 8), -1, "<f4")
    for part in range(8):  # where the sample looks
        start = part * (100_000 - 192) // 7
        numbers[start : start + 192] = 1
    look = look_at(region(tmp_path / "m", numbers))
    assert look.numbers == numbers.size
    assert look.negative_share > LEAST_NEGATIVE


# -- the command


@pytest.fixture
def command(capsys):
    def call(*arguments: object):
        code = run(["lint", *map(str, arguments)])
        return code, capsys.readouterr().out

    return call


def test_command_on_a_clean_package(draft, command):
    code, said = command(draft.root)
    assert code == 0
    assert "note PKG083" in said
    assert "not checked: PKG035: " in said
    assert "0 errors, 0 warnings, 1 note" in said


@pytest.mark.parametrize(
    ("setting", "options", "expected"),
    [("pad_token_id", (), 0), ("pad_token_id", ("--strict",), 1), ("eos_token_id", (), 1)],
)
def test_exit_code_follows_the_severity(draft, command, setting, options, expected):
    draft.llm(**{setting: -1})
    draft.without_manifest()
    assert command(draft.root, *options)[0] == expected


def test_command_says_what_why_and_what_to_do(draft, command):
    draft.llm(num_hidden_layers=3)
    _, said = command(draft.root)
    assert "error PKG030 executor.json: llm_config.num_hidden_layers: the number of layers is not the graph's" in said
    for word in ("found 3; expected 2", "why: ", "fix: "):
        assert word in said


def test_command_as_json(draft, command):
    draft.llm(num_hidden_layers=3)
    code, said = command(draft.root, "--json", "--no-hashes")
    data = json.loads(said)
    assert code == 1
    assert data["good"] is False
    first = data["findings"][0]
    assert set(first) == {"code", "severity", "title", "why", "file", "field", "found", "expected", "fix"}
    assert data["counts"]["error"] == sum(one["severity"] == "error" for one in data["findings"])
    assert "PKG112" in {entry["code"] for entry in data["not_checked"]}


def test_command_on_nothing_is_wrong_use(tmp_path, command):
    assert command(tmp_path / "nothing")[0] == 2


# -- the build


def test_a_build_with_an_error_in_its_package_stops(tmp_path, monkeypatch):
    settings = pipeline.executor_settings

    def wrong(*arguments):
        made = settings(*arguments)
        made["llm_config"]["num_attention_kv_heads"] += 1
        return made

    monkeypatch.setattr(pipeline, "executor_settings", wrong)
    recipe = Recipe("tiny", tiny_llama(), context=256)
    with pytest.raises(BuildError) as caught:
        build(recipe, cache=tmp_path, progress=SilentProgress())
    assert caught.value.code == "PKG017"
    assert not list((tmp_path / "builds" / "assemble").glob("*/package"))


@pytest.mark.parametrize("context", [64, 128])
def test_a_short_context_gets_short_answers(tmp_path, context):
    built = build(Recipe("tiny", tiny_llama(), context=context), cache=tmp_path, progress=SilentProgress())
    assert lint(built.package).good(strict=True)


def test_the_lint_leaves_the_runtime_alone():
    code = "import sys, pytest_cannlm.lint; print([m for m in ('onnxruntime', 'tokenizers') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_nothing_is_written(draft, tmp_path):
    shutil.copytree(draft.root, tmp_path / "before")
    lint(draft.root)
    for path in (tmp_path / "before").rglob("*"):
        twin = draft.root / path.relative_to(tmp_path / "before")
        assert not path.is_file() or twin.read_bytes() == path.read_bytes()
    assert len(list(draft.root.rglob("*"))) == len(list((tmp_path / "before").rglob("*")))


@pytest.mark.parametrize("name", [MODEL, "tokenizer.json", "context.json", "executor.json", "SubGraph_0.weight"])
@pytest.mark.parametrize("change", [str.upper, str.title, lambda name: f"old.{name}"])
@pytest.mark.parametrize("manifest", [True, False])
def test_a_renamed_file_is_to_be_renamed_back_and_not_to_be_taken_out(draft, name, change, manifest):
    if not manifest:
        draft.without_manifest()
    other = change(name)
    draft.path(name).rename(draft.path(other))
    findings = lint(draft.root).findings
    known = manifest or other.casefold() == name.casefold()  # only the manifest tells the size
    if not known:
        assert next(each.fix for each in findings if each.code == "PKG001").startswith("Copy or build")
    elif name != "executor.json" or manifest:
        (missing,) = [each for each in findings if each.code == "PKG001"]
        assert (missing.file, missing.fix) == (name, f"Rename {other} to {name}")
        assert not {"PKG111", "PKG113", "PKG120"} & {each.code for each in findings}


def test_what_fits_twice_is_not_taken_for_renamed():
    wanted = {"a": 5, "b": None}
    assert renames.pairs(wanted, {"c": 5}) == {"a": "c"}
    assert renames.pairs(wanted, {"A": 7, "c": 5}) == {"a": "A"}
    assert renames.pairs(wanted, {"c": 5, "d": 5}) == {}
    assert renames.pairs({"a": 5, "b": 5}, {"c": 5}) == {}
    assert renames.pairs({"a": 0}, {"c": 0}) == {}
    assert renames.pairs(wanted, {"a": 5, "b": 1, "c": 5}) == {}


def test_a_deleted_file_is_missing_and_has_not_changed_in_size(draft):
    draft.path("tokenizer.json").unlink()
    found = {finding.code for finding in lint(draft.root).findings if finding.file == "tokenizer.json"}
    assert found == {"PKG001"}


def test_of_a_pointer_nothing_is_said_about_its_inside(draft):
    draft.write("SubGraph_0.weight", b"version https://git-lfs.github.com/spec/v1\n")
    report = lint(draft.root)
    found = [finding.code for finding in report.of("error")]
    assert found == ["PKG003", "PKG088", "PKG111"]
    assert {code for code in WEIGHT_RULES if "is shorter than" in not_checked(draft).get(code, "")} >= {
        "PKG100", "PKG104", "PKG108", "PKG109",
    }  # fmt: skip


def test_a_changed_way_to_generate_is_a_note(draft):
    draft.set("context.json", "generate_options.max_gen_tokens", 7)
    report = lint(draft.root)
    assert {finding.code for finding in report.findings} == {"PKG083", "PKG116"}
    assert report.good(strict=True)


def test_a_model_for_something_else_is_an_error_and_a_code_without_a_name_is_shown(draft):
    draft.without_manifest()
    draft.compile_for_real(inputs=lambda _: [TensorIO("image", "float", (1, 3))], outputs=lambda _: [])
    found = {finding.code: finding for finding in lint(draft.root).findings}
    assert found["PKG089"].severity == "error"
    assert "image" in found["PKG089"].found
    assert "PKG036" not in found
    assert "platform code 7, a code without a known name" in found["PKG085"].found


def test_zeros_apart_are_empty_layers(draft):
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
        draft.array(name, np.zeros_like)
    assert "PKG109" not in {finding.code for finding in lint(draft.root).findings}
