"""The coefficient file for other tools: a safetensors library reads it, and its numbers are those of the package."""

import json

import numpy as np
import pytest

from pytest_cannlm.build.coefficient_file import write_coefficients
from pytest_cannlm.build.weights import WEIGHT_FILE, Coefficients, WeightReader

safetensors = pytest.importorskip("safetensors", reason="reading the file back needs safetensors")


def exported(package, path):
    reader = WeightReader(package.package / WEIGHT_FILE, Coefficients.load(package.coefficients))
    write_coefficients(package.package, path)
    with safetensors.safe_open(path, "numpy") as file:
        return reader, {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [("w4a16", {"quantizer": "awq+gptq", "keep_8bit": 30}), ("w4a16", {"group_size": 32}), ("w8a16", {})],
)
def test_codes_scales_and_zero_points_give_the_weights_of_the_package(tiny_packages, tmp_path, scheme, recipe):
    reader, tensors, metadata = exported(tiny_packages(scheme, **recipe), tmp_path / "c.safetensors")
    assert metadata["scheme"] == scheme
    for matrix in reader.coefficients.matrices.values():
        first = 0
        for part in matrix.parts:
            codes, scales, zeros = (tensors[f"{part.tensor}.{kind}"] for kind in ("codes", "scales", "zero_points"))
            assert zeros.dtype == np.int8
            assert not zeros.any()
            wide = np.repeat(scales.astype(np.float32), codes.shape[1] // scales.shape[1], axis=1)
            expected = reader.dequantized(matrix.name, slice(first, first + part.rows))
            np.testing.assert_array_equal(codes.astype(np.float32) * wide, expected)
            facts = json.loads(metadata[part.tensor])
            assert facts["format"] == matrix.format
            assert facts["group_size"] == codes.shape[1] // scales.shape[1]
            assert (facts["sqnr_db"], facts["low"], facts["high"]) == (part.sqnr_db, part.low, part.high)
            first += part.rows
    norm = "model.layers.0.input_layernorm.weight"
    np.testing.assert_array_equal(tensors[norm], reader.array(reader.coefficients.vectors[norm]))


def test_sixteen_bit_matrices_are_themselves(tiny_packages, tmp_path):
    reader, tensors, _ = exported(tiny_packages("fp16"), tmp_path / "c.safetensors")
    name = "model.layers.0.mlp.down_proj"
    assert tensors[f"{name}.weight"].dtype == np.float16
    np.testing.assert_array_equal(tensors[f"{name}.weight"].astype(np.float32), reader.dequantized(name))


def test_the_file_is_written_in_pieces(tiny_packages, tmp_path, monkeypatch):
    _, whole, _ = exported(tiny_packages(), tmp_path / "whole.safetensors")
    monkeypatch.setattr("pytest_cannlm.build.coefficient_file._CHUNK_ELEMENTS", 300)
    _, pieces, _ = exported(tiny_packages(), tmp_path / "pieces.safetensors")
    assert whole.keys() == pieces.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(values, pieces[name])
