"""Files given to affinity: what is no ONNX model is named, and external data is looked for and never read."""

import gzip
import os
from pathlib import Path

import onnx
import pytest
from onnx_models import external, floats, graph_of, model_of, node, plain, save, value

from pytest_cannlm.affinity import AffinityReport, examine
from pytest_cannlm.errors import BadInputError

DATA = bytes(64)


def judge(path: Path) -> AffinityReport:
    return examine(path, chip="KirinX90", toolchain="omg")


def with_data(path: Path, location: str = "w.bin", data: bytes = DATA, **fields: str) -> Path:
    """A model whose weight [2, 4] lies in ``location``; ``w.bin`` is there."""
    (path.parent / "w.bin").write_bytes(data)
    tensor = external("w", [2, 4], location=location, **{"offset": "0", "length": "32", **fields})
    return save(model_of(node("Mul", "x", "w"), constants=[tensor]), path)


def external_rules(report: AffinityReport) -> set[str]:
    return {finding.rule for finding in report.findings if finding.rule.startswith("external")}


# -- what is an ONNX model


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 987654321\n", "987,654,321 bytes"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (gzip.compress(b"model", mtime=0), "gzip"),
        (b"IMOD" + bytes(300), "compiled offline model"),
        (b"GGUF" + bytes(100), "GGUF"),
        (b"\xff" * 100, "no known kind"),
        (b"\x08\x07", "no graph"),
    ],
)
def test_what_is_no_onnx_model_is_named(tmp_path, content, told):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        judge(path)
    assert told in str(caught.value)
    assert caught.value.exit_code == 2


def test_half_a_model_is_damaged(tmp_path):
    whole = plain(inputs=[value("x", dims=(2, 4))]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match="damaged"):
        judge(path)


def test_a_name_that_is_no_text_is_damage(tmp_path):
    whole = plain(inputs=[value("xxxxxxx")]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole.replace(b"xxxxxxx", b"\xff" * 7))
    with pytest.raises(BadInputError, match="damaged"):
        judge(path)


@pytest.mark.parametrize("name", ["missing.onnx", "."])
def test_no_file_is_wrong_use(tmp_path, name):
    with pytest.raises(BadInputError, match="no such file"):
        judge(tmp_path / name)


def test_fields_in_another_order_are_an_onnx_model(tmp_path):
    model = plain()
    graph, head = onnx.ModelProto(), onnx.ModelProto()
    graph.graph.CopyFrom(model.graph)
    head.CopyFrom(model)
    head.ClearField("graph")
    path = tmp_path / "model.onnx"
    path.write_bytes(graph.SerializeToString() + head.SerializeToString())
    assert judge(path).answer == "fine"


def test_2_gib_in_one_file_are_refused_unread(tmp_path, monkeypatch):
    path = save(plain(), tmp_path / "model.onnx")
    size = os.stat_result((0o100644, 0, 0, 0, 0, 0, 2**31, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda self, **_: size)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("the model was read"))
    (finding,) = judge(path).findings
    assert (finding.rule, finding.outcome) == ("file-size", "refused")


def test_a_path_that_omg_does_not_take_is_a_note(tmp_path):
    folder = tmp_path / "模型 v1"
    folder.mkdir()
    report = judge(save(plain(), folder / "model.onnx"))
    assert report.answer == "fine"
    assert [finding.rule for finding in report.findings] == ["path"]
    assert not examine(folder / "model.onnx", chip="KirinX90", toolchain="atc").findings


# -- external data


def test_external_data_is_looked_for_and_not_read(tmp_path, monkeypatch):
    path = with_data(tmp_path / "model.onnx")
    read = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or original(self))
    monkeypatch.setattr(onnx, "load", lambda *_, **__: pytest.fail("onnx.load follows external data"))
    assert external_rules(judge(path)) == set()
    assert read == [path]


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "a/../../secret.bin", "C:\\x.bin", "..\\secret.bin", "w\0.bin"]
)
def test_data_outside_the_folder_is_refused_by_tensor_and_location(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"secret")
    report = judge(with_data(folder / "model.onnx", location))
    (finding,) = (each for each in report.findings if each.rule == "external-outside")
    assert finding.where == ("initializer w",)
    assert finding.found.startswith("location ")
    assert report.answer == "refused"


def test_a_link_that_leads_out_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(DATA)
    try:
        (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    except OSError:
        pytest.skip("no links here")
    assert external_rules(judge(with_data(folder / "model.onnx", "link.bin"))) == {"external-outside"}


def test_a_path_that_stays_inside_is_fine(tmp_path):
    (tmp_path / "sub").mkdir()
    assert external_rules(judge(with_data(tmp_path / "model.onnx", "sub/../w.bin"))) == set()


@pytest.mark.parametrize("location", ["other.bin", "sub\\w.bin"])
def test_missing_data_is_named_with_its_full_path(tmp_path, location):
    report = judge(with_data(tmp_path / "model.onnx", location))
    (finding,) = (each for each in report.findings if each.rule == "external-missing")
    assert finding.found == str(tmp_path / location)
    assert "Windows" in finding.instead


def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    with_data(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    assert external_rules(judge(Path("model.onnx"))) == set()
    monkeypatch.chdir(tmp_path.parent)
    assert external_rules(judge(Path(tmp_path.name) / "model.onnx")) == set()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"offset": "40"}, "external-size"),
        ({"length": "64"}, "external-size"),
        ({"length": "16"}, "external-size"),
        ({"offset": "-1"}, "external-field"),
        ({"length": "1e3"}, "external-field"),
        ({"offset": "9" * 40}, "external-field"),
        ({"__class__": "W"}, "external-field"),
    ],
)
def test_data_that_is_not_as_described_is_refused(tmp_path, fields, rule):
    assert rule in external_rules(judge(with_data(tmp_path / "model.onnx", **fields)))


def test_half_a_data_file_is_refused(tmp_path):
    assert external_rules(judge(with_data(tmp_path / "model.onnx", data=DATA[:31]))) == {"external-size"}


def test_no_location_is_refused(tmp_path):
    model = model_of(node("Mul", "x", "w"), constants=[external("w", [2, 4])])
    assert external_rules(judge(save(model, tmp_path / "model.onnx"))) == {"external-field"}


def test_data_inside_branches_and_attributes_is_found_too(tmp_path):
    inner = graph_of(node("Mul", "x", "v"), inputs=(), constants=[external("v", [2, 4], location="branch.bin")])
    constant = node("Constant", to="c")
    constant.attribute.add(name="value", type=4, t=external("", [2, 4], location="attribute.bin"))
    branch = node("If", "c", then_branch=inner, else_branch=graph_of(node("Mul", "x", "x"), inputs=()))
    model = model_of(constant, branch, constants=[floats("unused", 2)])
    findings = judge(save(model, tmp_path / "model.onnx")).findings
    places = {each.where[0] for each in findings if each.rule == "external-missing"}
    assert places == {"initializer v", "value of n_c"}
