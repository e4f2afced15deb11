"""Simulated Kirin models: written, recognised, relabelled."""

import os
import struct
from pathlib import Path

import pytest
from packages import WEIGHT_BYTES, write_omc

from pytest_cannlm.container.core import open_container
from pytest_cannlm.container.inspect import describe
from pytest_cannlm.container.kirin import read_simulated, relabel_omc, task_info_v2
from pytest_cannlm.container.layout import HeaderFields
from pytest_cannlm.container.modeldef import encode_model_def
from pytest_cannlm.container.taskinfo import encode_task_info
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.errors import ContainerError, PackageError


def test_simulated_model_reads_back(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc", runtime_graph=b"\0graph\xff", extra_attrs={"cannlm_scheme": "w4a16"})
    model = read_simulated(path)
    assert model.runtime_graph == b"\0graph\xff"
    assert (model.chip, model.build_version) == ("KirinX90", "6.1.1.0")
    assert model.attrs == {
        "atc_version": "6.1.1.0",
        "cannlm_scheme": "w4a16",
        "cannlm_simulated": 1,
        "framework_type": "Onnx",
        "soc_version": "KirinX90",
    }


def test_it_is_a_compiled_kirin_model_for_every_reader(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc")
    raw = path.read_bytes()
    assert raw[120:152] == b"CANNLM-SIMULATED".ljust(32, b"\0")
    facts = describe(path)
    assert facts["simulated"] is True
    assert facts["error"] is None
    assert (facts["layout"], facts["modeltype_name"]) == ("K", "HCS_PARTITION_MODEL")
    assert (facts["kirin_platform"], facts["kirin_ids"]) == (10, [])
    assert [entry[1] for entry in facts["partitions"]] == [
        "MODEL_DEF",
        "WEIGHTS_DATA",
        "TASK_INFO",
        "CANNLM_RUNTIME_GRAPH",
    ]
    container = open_container(path)
    assert container.external_weights
    assert container.external_weight_size() == WEIGHT_BYTES


def test_writing_is_deterministic(tmp_path: Path) -> None:
    assert write_omc(tmp_path / "a.omc").read_bytes() == write_omc(tmp_path / "b.omc").read_bytes()


def test_callers_attributes_cannot_replace_the_label(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc", extra_attrs={"soc_version": "Kirin9030", "cannlm_simulated": 0})
    assert read_simulated(path).attrs["soc_version"] == "KirinX90"
    assert read_simulated(path).attrs["cannlm_simulated"] == 1


def test_real_model_is_not_simulated(tmp_path: Path) -> None:
    path = tmp_path / "real.omc"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=4)
    parts = [Partition(0, model), Partition(1, b"1234"), Partition(2, task_info_v2(10))]
    write_container(path, header=HeaderFields(layout="K", modeltype=4), partitions=parts)
    with pytest.raises(PackageError, match="compiled for a real one") as caught:
        read_simulated(path)
    assert caught.value.code == "NOT_SIMULATED"
    assert "cannlm build" in str(caught.value)
    assert "simulated" not in describe(path)


def test_broken_file_keeps_its_own_error(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ContainerError) as caught:
        read_simulated(path)
    assert caught.value.code == "OM_TRUNCATED"


def test_simulated_model_without_its_label_is_damaged(tmp_path: Path) -> None:
    path = write_omc(tmp_path / "m.omc", chip="")
    with pytest.raises(PackageError) as caught:
        read_simulated(path)
    assert (caught.value.code, caught.value.field) == ("PACKAGE_DAMAGED", "soc_version")


def test_relabelling_changes_the_label_alone(tmp_path: Path) -> None:
    src = write_omc(tmp_path / "m.omc", extra_attrs={"keep": [1, 2, 3]})
    dst = tmp_path / "other.omc"
    relabel_omc(src, dst, build_version="6.0.1.0")
    before, after = open_container(src), open_container(dst)
    assert after.attributes() == {**before.attributes(), "atc_version": "6.0.1.0"}
    assert after.header == before.header
    assert [before.read(p) for p in before.partitions[1:]] == [after.read(p) for p in after.partitions[1:]]
    back = tmp_path / "back.omc"
    relabel_omc(dst, back, build_version="6.1.1.0")
    assert open_container(back).attributes() == before.attributes()


@pytest.mark.parametrize(("chip", "platform"), [("Kirin9030", 16), ("KirinX90", 10), ("Kirin9020", 10)])
def test_relabelling_the_chip_sets_attribute_and_platform(tmp_path: Path, chip: str, platform: int) -> None:
    src = write_omc(tmp_path / "m.omc")
    relabel_omc(src, tmp_path / "other.omc", chip=chip)
    container = open_container(tmp_path / "other.omc")
    assert container.attributes()["soc_version"] == chip
    assert container.kirin_platform() == (platform, ())
    assert read_simulated(tmp_path / "other.omc").build_version == "6.1.1.0"


def test_relabelling_through_a_hard_link_leaves_the_original(tmp_path: Path) -> None:
    src = write_omc(tmp_path / "m.omc")
    before = src.read_bytes()
    link = tmp_path / "copy" / "m.omc"
    link.parent.mkdir()
    os.link(src, link)
    relabel_omc(src, link, build_version="9.9.9.9")
    assert src.read_bytes() == before
    assert read_simulated(link).build_version == "9.9.9.9"


def test_real_model_without_a_version_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "real.omc"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={"target_type": "LITE"}, weight_size=4)
    parts = [Partition(0, model), Partition(1, b"1234"), Partition(2, encode_task_info(14, ids=[3]))]
    write_container(path, header=HeaderFields(layout="K", modeltype=4), partitions=parts)
    relabel_omc(path, path, build_version="6.0.1.0", chip="Kirin9030")
    container = open_container(path)
    assert container.attributes() == {
        "target_type": "LITE",
        "atc_version": "6.0.1.0",
        "soc_version": "Kirin9030",
    }
    assert container.kirin_platform() == (16, (3,))


def test_relabelling_an_unreadable_model(tmp_path: Path) -> None:
    path = tmp_path / "bad.omc"
    write_container(path, header=HeaderFields(layout="K"), partitions=[Partition(0, b"\xff" * 20)])
    with pytest.raises(ContainerError) as caught:
        relabel_omc(path, tmp_path / "out.omc", build_version="1.2.3.4")
    assert caught.value.code == "OM_MODEL_DEF_UNREADABLE"
    assert not (tmp_path / "out.omc").exists()


def test_platform_of_a_second_block_is_found(tmp_path: Path) -> None:
    bare = struct.pack("<IIII16x", 0xABCDABCD, 0, 32 + 10, 0) + struct.pack("<II", 1, 10) + b"`\1"
    path = tmp_path / "m.omc"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=0)
    parts = [Partition(0, model), Partition(2, bare + encode_task_info(16))]
    write_container(path, header=HeaderFields(layout="K", modeltype=4), partitions=parts)
    assert open_container(path).kirin_platform() == (16, ())
    assert open_container(path).task_sections() == ((1, 10), (1, 10), (5, 24))


@pytest.mark.parametrize("task", [b"", b"\x60\x01", b"\x0a\x20" + bytes(60)])
def test_bare_task_info_names_no_platform(tmp_path: Path, task: bytes) -> None:
    path = tmp_path / "m.omc"
    model = encode_model_def(name="m", inputs=[], outputs=[], attrs={}, weight_size=0)
    header = HeaderFields(layout="K", modeltype=4)
    write_container(path, header=header, partitions=[Partition(0, model), Partition(2, task)])
    assert open_container(path).kirin_platform() is None
    assert open_container(path).task_sections() == ()
    write_container(path, header=header, partitions=[Partition(0, model)])
    assert open_container(path).kirin_platform() is None
