"""The weights that dopt adjusted: read without torch, judged by their signs, and refused where they do not fit."""

import pickle
import zipfile
from array import array
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from vendor_tools import tiny_config

from pytest_cannlm.build.convert.dopt_weights import Signs, check_signs, signs_in, weights_of
from pytest_cannlm.build.convert.torchfile import StoredTensor, TorchFile
from pytest_cannlm.errors import BadInputError, BuildError, UnsupportedModelError
from pytest_cannlm.models.tensors import EMBEDDING, expected_shapes
from pytest_cannlm.testing.pthfile import write_pth


def written(path, **tensors):
    write_pth(path, {name: (shape, array("f", values)) for name, (shape, values) in tensors.items()})
    return path


def test_tensors_come_back_as_they_were(tmp_path):
    file = TorchFile(written(tmp_path / "a.pth", a=((2, 3), [1, -2, 3, -4, 5, 6]), b=((0,), []), c=((), [-7])))
    np.testing.assert_array_equal(file.read("a"), np.array([[1, -2, 3], [-4, 5, 6]], np.float32))
    assert (file.read("b").shape, file.read("c").tolist()) == ((0,), -7.0)
    assert [file.negative(name) for name in "abc"] == [2, 0, 1]
    assert signs_in(tmp_path / "a.pth")[0] == Signs("a", 6, 2)


def test_what_torch_itself_saves(tmp_path):
    torch = pytest.importorskip("torch")
    values = {
        "plain": torch.randn(3, 4), "half": torch.randn(4).half(), "short": torch.randn(5).bfloat16(),
        "turned": torch.randn(3, 4).t(), "part": torch.randn(10)[3:7], "counts": torch.arange(3), "step": 3,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }  # fmt: skip
    torch.save(values, tmp_path / "t.pth")
    file = TorchFile(tmp_path / "t.pth")
    assert set(file.tensors) == set(values) - {"counts", "step"}
    for name in file.tensors:
        np.testing.assert_array_equal(file.read(name), values[name].detach().float().numpy())
        assert file.negative(name) == int((values[name] < 0).sum())


def test_torch_reads_what_the_double_writes(tmp_path):
    torch = pytest.importorskip("torch")
    loaded = torch.load(written(tmp_path / "a.pth", a=((2, 2), [1, 2, 3, 4])), weights_only=True)
    assert loaded["a"].tolist() == [[1, 2], [3, 4]]


class Evil:
    def __reduce__(self):
        return (print, ("this must never run",))


def archive(path, description, storage=b"", *, name="0", compress=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compress) as made:
        made.writestr("x/data.pkl", description)
        made.writestr(f"x/data/{name}", storage)
    return path


def test_nothing_in_it_is_run(tmp_path, capsys):
    with pytest.raises(BadInputError, match=r"builtins\.print"):
        TorchFile(archive(tmp_path / "a.pth", pickle.dumps({"a": Evil()})))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}." * 10])
def test_what_is_no_archive(tmp_path, content):
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(BadInputError, match="not a file of tensors"):
        TorchFile(tmp_path / "a.pth")


@pytest.mark.parametrize("description", [b"", b"garbage", pickle.dumps([1]), pickle.dumps({}) + b"x"])
def test_what_describes_no_tensors(tmp_path, description):
    path = archive(tmp_path / "a.pth", description)
    with suppress(BadInputError):
        assert TorchFile(path).tensors == {}


@pytest.mark.parametrize(
    "tensor",
    [
        StoredTensor("FloatStorage", "0", 0, (2, 2), (2, 1)),
        StoredTensor("FloatStorage", "1", 0, (1,), (1,)),
        StoredTensor("FloatStorage", "0", -1, (1,), (1,)),
        StoredTensor("FloatStorage", "0", 3, (1,), (1,)),
        StoredTensor("FloatStorage", "0", 0, (1 << 40,), (0,)),
        StoredTensor("FloatStorage", "0", 0, (3,), (-1,)),
        StoredTensor("FloatStorage", "0", 0, (3,), ()),
    ],
)
def test_numbers_that_are_not_there(tmp_path, tensor):
    file = TorchFile(written(tmp_path / "a.pth", a=((3,), [1, 2, 3])))
    file.tensors = {"a": tensor}
    with pytest.raises(BadInputError, match="not a file of tensors"):
        file.read("a")


def signs(*negative, count=20_000):
    return [Signs(f"{place}.weight", count, int(share * count)) for place, share in enumerate(negative)]


def test_intact_weights(tmp_path):
    check_signs([*signs(0.44, 0.43), Signs("norm.weight", 1536, 0), Signs("a.bias", 20_000, 0)], file=tmp_path)
    check_signs([], file=tmp_path)


@pytest.mark.parametrize("negative", [(0.13, 0.14), (0.44, 0.44, 0.0)])
def test_weights_that_lost_their_negative_half(tmp_path, negative):
    with pytest.raises(BuildError, match="negative half") as caught:
        check_signs(signs(*negative), file=tmp_path)
    assert caught.value.code == "SIGNS_COLLAPSED"


def model_weights(path, *, without=None, short=None, more=()):
    shapes = {name: shape for name, shape in expected_shapes(tiny_config()).items() if name != without}
    shapes |= dict(more)
    if short:
        shapes[short] = (1, 1)
    tensors = {}
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        tensors[name] = (shape, array("f", [len(name) / 100] * count))
    write_pth(path, tensors)
    return path


def test_the_engine_form_gets_them_by_name(tmp_path):
    tensor = weights_of(model_weights(tmp_path / "a.pth"), tiny_config())
    assert tensor(EMBEDDING)[0, 0] == np.float32(len(EMBEDDING) / 100)
    head = {"lm_head.weight": expected_shapes(tiny_config())[EMBEDDING]}
    tensor = weights_of(model_weights(tmp_path / "b.pth", more=head), tiny_config())
    assert tensor(EMBEDDING)[0, 0] == np.float32(len("lm_head.weight") / 100), "a tied head is the head's own tensor"


@pytest.mark.parametrize("change", [{"without": "model.norm.weight"}, {"short": "model.layers.1.mlp.up_proj.weight"}])
def test_weights_of_another_model(tmp_path, change):
    with pytest.raises(BadInputError, match="not those of the model") as caught:
        weights_of(model_weights(tmp_path / "a.pth", **change), tiny_config())
    assert caught.value.field in change.values()


def test_a_family_whose_rows_have_another_order(tmp_path):
    with pytest.raises(UnsupportedModelError, match="glm"):
        weights_of(model_weights(tmp_path / "a.pth"), replace(tiny_config(), family="glm"))
