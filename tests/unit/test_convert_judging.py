"""What a compiled model says of itself, against what it was asked to be."""

import os
import time

import pytest

from pytest_cannlm.build.believing import disagreements, failure, not_written, read_log
from pytest_cannlm.build.convert.judging import file_disagreements
from pytest_cannlm.build.running import ToolRun
from pytest_cannlm.compat.versions import parse
from pytest_cannlm.container.kirin import relabel_omc, task_info_v2
from pytest_cannlm.container.layout import KIRIN_COMPILED, MODEL_DEF, TASK_INFO, WEIGHTS_DATA, HeaderFields
from pytest_cannlm.container.modeldef import encode_model_def
from pytest_cannlm.container.writer import Partition, write_container
from pytest_cannlm.explain.causes import causes

VERSION = parse("6.1.1.0")
WEIGHTS = 100


def write(path, *, layout="K", kind=KIRIN_COMPILED, platform=10, inside=b"", attrs=None, mark=b"", model_def=None):
    path.with_name("SubGraph_0.weight").write_bytes(bytes(WEIGHTS))
    task = task_info_v2(platform)
    made = encode_model_def(
        name="m", inputs=[], outputs=[], attrs=attrs or {}, weight_size=WEIGHTS, task_size=len(task)
    )
    write_container(
        path,
        header=HeaderFields(layout=layout, modeltype=kind, name=b"m", userdefineinfo=mark),
        partitions=[
            Partition(MODEL_DEF, made if model_def is None else model_def),
            Partition(WEIGHTS_DATA, inside),
            Partition(TASK_INFO, task),
        ],
    )
    return path


def problems(path, *, chip="KirinX90", began=0.0, version=VERSION):
    return list(file_disagreements(path, began=began, chip=chip, version=version))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.omc"


def test_a_good_one(path):
    assert problems(write(path)) == []


def test_a_description_that_nobody_can_read_says_nothing(path):
    assert problems(write(path, model_def=b"\xff\xff\xff")) == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"layout": "A2", "kind": 0}, "for Ascend"),
        ({"kind": 3}, "not compiled"),
        ({"platform": 16}, "compiled for Kirin9030"),
        ({"mark": b"CANNLM-SIMULATED"}, "for the simulated NPU"),
        ({"inside": b"weights"}, "weights inside"),
        ({"attrs": {"soc_version": "Kirin9030"}}, "says that it is for Kirin9030"),
        ({"attrs": {"atc_version": "6.0.1.0"}}, "CANN 6.0.1.0 built it"),
    ],
)
def test_every_contradiction_is_named(path, facts, reason):
    assert any(reason in problem for problem in problems(write(path, **facts)))


def test_a_version_of_another_kind_is_no_contradiction(path):
    assert problems(write(path, attrs={"atc_version": "9.0.0"})) == []


def test_the_code_that_stands_for_unknown_chips_contradicts_known_ones_only(path):
    write(path)
    assert problems(path, chip="Kirin9020") == []
    assert problems(path, chip="Kirin9030") != []


def test_a_relabelled_model_is_noticed(path):
    write(path, attrs={"soc_version": "KirinX90"})
    relabel_omc(path, path, chip="Kirin9030")
    assert len(problems(path)) == 2


@pytest.mark.parametrize("size", [0, WEIGHTS - 1, WEIGHTS + 1])
def test_weights_of_another_size(path, size):
    write(path)
    path.with_name("SubGraph_0.weight").write_bytes(bytes(size))
    assert problems(path) != []


def test_no_weights(path):
    write(path)
    path.with_name("SubGraph_0.weight").unlink()
    assert problems(path) == ["it wrote no SubGraph_0.weight"]


def test_what_is_no_model(path):
    path.write_bytes(b"not a model at all")
    assert "no sound model" in problems(path)[0]


def test_a_file_of_an_earlier_run(path):
    write(path)
    os.utime(path, (1e9, 1e9))
    assert "older than this run" in problems(path, began=time.time())[0]


def test_times_as_coarse_as_a_file_system_s_are_fine(path):
    path.write_bytes(b"x")
    os.utime(path, (1000, 1000))
    assert not_written(path, 1001.5) is None


def told(tmp_path, text, success=("done",)):
    log = tmp_path / "log"
    log.write_text(text, encoding="utf-8")
    return read_log(log, success=success)


def test_a_status_alone_is_enough_to_doubt(tmp_path):
    said = told(tmp_path, "all done\n")
    assert disagreements(said, ToolRun(0, 0.0, 0.0, tmp_path / "log"), []) == []
    assert disagreements(said, ToolRun(3, 0.0, 0.0, tmp_path / "log"), []) == ["it ended with status 3"]
    assert disagreements(said, None, []) == []


def test_a_log_without_its_success(tmp_path):
    assert told(tmp_path, "nothing\n").missing == ("done",)
    assert told(tmp_path, "").missing == ("done",)


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(known, id=known.pattern)
        for known in causes().literals
        if known.family in ("omg log", "atc log", "dopt log") and not known.noise
    ],
)
def test_every_text_that_is_known_to_make_a_result_useless(tmp_path, known):
    said = told(tmp_path, f"I/X {known.pattern} and more\ndone\n")
    assert said.missing == ()
    assert disagreements(said, None, []) == [known.cause]
    error = failure("omg", [known.cause], said, log=tmp_path / "log", code="CONVERSION_FAILED")
    assert (error.remedy, known.pattern in error.with_notes()) == (known.next, True)


def test_noise_is_no_error(tmp_path):
    said = told(tmp_path, "W/X te_fusion cannot open it\nI/AI_FMK partition type NPU:1, CPU:0\ndone\n")
    assert (said.errors, said.unknown, said.missing) == ((), (), ())
