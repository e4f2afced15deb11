"""``cannlm affinity``: its JSON, its text and its exit codes, as others rely on them."""

import json

import pytest
from onnx_models import model_of, node, plain, save, value

from pytest_cannlm.cli.app import run

FINDING = {
    "rule",
    "outcome",
    "title",
    "found",
    "expected",
    "where",
    "count",
    "why",
    "instead",
    "source",
    "confidence",
}
VERDICT = {"operator", "outcome", "count", "where", "why", "instead", "source", "confidence"}


@pytest.fixture
def affinity(capsys, monkeypatch, tmp_path):
    """``affinity(model, *options)`` -> (exit code, JSON document or text, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(model, *options):
        path = save(model, tmp_path / "model.onnx")
        capsys.readouterr()
        code = run(["affinity", str(path), *options])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in options else out, err

    return call


def refused():
    return model_of(node("MatMulInteger", "x", "x"), inputs=[value("x", dims=("S", 4))], opsets=[("", 23)])


def unknown():
    return plain(inputs=[value("x", dims=("S", 4))])


@pytest.mark.parametrize(
    ("model", "code", "answer"), [(plain, 0, "fine"), (refused, 1, "refused"), (unknown, 4, "unknown")]
)
def test_the_exit_code_is_the_answer(affinity, model, code, answer):
    exit_code, data, _ = affinity(model(), "--json")
    assert (exit_code, data["answer"]) == (code, answer)
    assert set(data) == {"answer", "file", "chip", "reports"}
    report = data["reports"]["omg"]
    assert set(report) == {"answer", "chip", "toolchain", "nodes", "counts", "operators", "findings"}
    assert all(set(finding) == FINDING for finding in report["findings"])
    assert all(set(verdict) == VERDICT for verdict in report["operators"])


def test_sizes_of_a_dimension_answer_the_question(affinity):
    assert affinity(unknown(), "--gears", "S=1,64")[0] == 0
    assert affinity(unknown(), "--shape", "x=64,4")[0] == 0


def test_both_converters_give_one_report_each_and_the_worse_answer(affinity):
    code, data, _ = affinity(plain(opsets=[("", 7)]), "--path", "both", "--json")
    assert (code, data["answer"]) == (1, "refused")
    assert {name: report["answer"] for name, report in data["reports"].items()} == {"omg": "fine", "atc": "refused"}


def test_the_text_shows_the_worst_first_and_ends_with_the_sum(affinity):
    code, text, _ = affinity(refused())
    lines = text.splitlines()
    assert code == 1
    assert lines[0] == "refused opset: the opset is none that the converter takes"
    assert "refused MatMulInteger × 1: n_y" in lines
    assert lines.index("refused MatMulInteger × 1: n_y") < lines.index(
        "unknown shape-open: a symbolic dimension without a value"
    )
    assert lines[-1].endswith("omg for KirinX90: refused; 2 refused, 1 unknown, 0 slow; 1 nodes")


def test_fine_operators_are_one_line_by_how_sure_that_is(affinity):
    model = model_of(node("Mul", "x", "x", to="m"), node("Relu", "m"))
    text = affinity(model)[1]
    assert "fine (measured): Mul × 1" in text
    assert "fine (vendor source): Relu × 1" in text


@pytest.mark.parametrize(
    "options",
    [
        ["--shape", "x=1,-1"],
        ["--shape", "x=1,12.5"],
        ["--shape", "image:0=1,2"],
        ["--gears", "S=0"],
        ["--path", "dopt"],
        ["--chip", "KirinX99"],
    ],
)
def test_wrong_use_is_exit_2(affinity, options):
    code, _, err = affinity(unknown(), *options)
    assert code == 2
    assert err.startswith("cannlm: ")


def test_what_is_no_onnx_model_is_exit_2(affinity, tmp_path, capsys):
    (tmp_path / "other.onnx").write_bytes(b"<!DOCTYPE html>")
    assert run(["affinity", str(tmp_path / "other.onnx"), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["error"] == "BadInputError"
    assert "HTML" in document["message"]
