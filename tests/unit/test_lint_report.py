"""The lint as a whole: what is looked at, what is left out and said so, the command, and the build's last step."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from drafts import MODEL, ROWS, SCALES, WEIGHTS, Draft
from tiny import tiny_llama

from pytest_cannlm.build import Recipe, build, pipeline
from pytest_cannlm.cli.app import run
from pytest_cannlm.errors import BadInputError, BuildError
from pytest_cannlm.lint import facts, lint
from pytest_cannlm.lint.numbers import LEAST_NEGATIVE, Matrix, Region, look_at, values
from pytest_cannlm.lint.rules import manifest
from pytest_cannlm.progress import SilentProgress

MANIFEST_RULES = {"PKG110", "PKG111", "PKG112", "PKG113", "PKG114", "PKG115"}
WEIGHT_RULES = {f"PKG{number}" for number in range(100, 109)}


@pytest.fixture
def draft(tiny_packages, tmp_path) -> Draft:
    return Draft(tiny_packages.built().manifest.parent, tmp_path / "copy")


def not_checked(draft: Draft, **options: object) -> dict[str, str]:
    return {entry.code: entry.reason for entry in lint(draft.root, **options).not_checked}


def other_seed(draft: Draft) -> None:
    """An edit that leaves the size as it was."""
    text = draft.path("context.json").read_text(encoding="utf-8")
    draft.path("context.json").write_text(text.replace('"seed": 99', '"seed": 77'), encoding="utf-8")


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
    other_seed(draft)
    report = lint(draft.root, hashes=hashes)
    assert ("PKG112" in {finding.code for finding in report.findings}) == noticed
    assert ("PKG112" in {entry.code for entry in report.not_checked}) != noticed


def test_without_hashes_an_edit_of_equal_size_is_not_seen_and_that_is_said(draft):
    other_seed(draft)
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
