import json
import math
from pathlib import Path

import numpy as np
import pytest

from pytest_cannlm.errors import BadInputError, EnvironmentFailure
from pytest_cannlm.measure.figures import Figure, Verdict
from pytest_cannlm.report.json_report import json_bytes, read_json_report, write_json_report
from pytest_cannlm.report.record import (
    DeviceFacts,
    OptionValue,
    RunRecord,
    TestRecord,
    from_data,
    to_data,
    with_tests,
)

NASTY = "你好，世界 🎉 <script>alert(1)</script> a/b\\c:d \x00\t]]>\u200f\x1b[31m \udc80"


def figure(value=20.5, **fields):
    defaults = {
        "unit": "ms/token",
        "kind": "modelled",
        "lower": None,
        "upper": math.inf,
        "confidence": 0.95,
        "samples": 5,
    }
    return Figure("tpot", value, **{**defaults, **fields}, statistic="median", detail={"rounds": [[1.0, math.nan]]})


def run(*tests):
    device = DeviceFacts("sim:kirinx90", "sim", "KirinX90", "6.1.1.0", None, True, 32 * 2**30, {"mode": "fast"})
    return RunRecord(
        created_by="pytest-cannlm 0.1.0",
        started="2026-01-02T03:04:05+00:00",
        devices=(device,),
        options={"npu": OptionValue("sim", "default")},
        tests=tests,
    )


def judged(nodeid="tests/test_a.py::test_a", **fields):
    verdict = Verdict("pass", figure(), "decode_ms", 45.0, "ms/token", "lower", 24.5, "well", "heat", "marker")
    facts = {"model": "m", "scheme": "w4a16", "chip": "KirinX90", "cann": "6.1.1.0", "simulated": True}
    return TestRecord(nodeid, "passed", "judged", **{**facts, "verdicts": (verdict,), "duration_s": 1.5, **fields})


def same(first, second):
    """Equality in which NaN equals NaN."""
    return repr(first) == repr(second)


def test_a_record_survives_the_round_trip():
    fallen = TestRecord("c", "passed", "fallback", served_by=("cloud: m at h",), not_applied=("parity",))
    broken = judged("d", error={"error": "CANN_VERSION_MISMATCH", "message": NASTY, "notes": ["one", "two"]})
    whole = run(judged(), judged(NASTY, figures=(figure(-math.inf),), not_run_reason=NASTY), fallen, broken)
    data = json.loads(json.dumps(to_data(whole), allow_nan=False))
    assert same(from_data(RunRecord, data), whole)
    assert data["schema"] == 3


def test_numbers_without_a_json_form_are_flagged_texts():
    data = to_data(figure(math.nan))
    assert data["value"] == {"nonfinite": "NaN"}
    assert data["upper"] == {"nonfinite": "Infinity"}
    assert data["detail"]["rounds"] == [[1.0, {"nonfinite": "NaN"}]]


def test_numbers_of_an_array_library_become_plain():
    data = to_data(figure(float(np.float32(2)), samples=3))
    assert data["samples"] == 3
    odd = Figure(
        "x", 1.0, "", "measured", 1.0, 1.0, None, 1, "s", {"a": np.int64(4), "b": np.float64(math.inf), "c": {1}}
    )
    assert to_data(odd)["detail"] == {"a": 4, "b": {"nonfinite": "Infinity"}, "c": [1]}


def test_details_may_be_nested_and_hold_paths():
    nested = figure()
    odd = Figure("x", 1.0, "", "measured", 1.0, 1.0, None, 1, "s", {"worst": [{"token": 3}], "at": Path("a") / "b"})
    data = to_data(odd)
    assert data["detail"]["at"] == str(Path("a") / "b")
    assert from_data(Figure, data).detail["worst"] == [{"token": 3}]
    assert same(from_data(Figure, to_data(nested)), nested)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.update(schema=1), "schema"),
        (lambda d: d.pop("tests"), "RunRecord.tests"),
        (lambda d: d.update(extra=1), "RunRecord.extra"),
        (lambda d: d.update(tests={}), "RunRecord.tests"),
        (lambda d: d["tests"][0].pop("nodeid"), "RunRecord.tests[0].nodeid"),
        (lambda d: d["tests"][0].update(outcome="great"), "RunRecord.tests[0].outcome"),
        (lambda d: d["tests"][0].update(simulated="yes"), "RunRecord.tests[0].simulated"),
        (lambda d: d["tests"][0].update(duration_s="long"), "RunRecord.tests[0].duration_s"),
        (
            lambda d: d["tests"][0]["verdicts"][0]["figure"].update(samples=True),
            "RunRecord.tests[0].verdicts[0].figure.samples",
        ),
        (
            lambda d: d["tests"][0]["verdicts"][0]["figure"].update(kind="guessed"),
            "RunRecord.tests[0].verdicts[0].figure.kind",
        ),
        (lambda d: d["options"].update(npu="sim"), "RunRecord.options.npu"),
        (lambda d: d["devices"].append(3), "RunRecord.devices[1]"),
    ],
)
def test_a_record_of_another_form_is_refused_by_field(change, field):
    data = to_data(run(judged()))
    change(data)
    with pytest.raises(BadInputError) as error:
        from_data(RunRecord, data)
    assert error.value.field == field


@pytest.mark.parametrize("data", [[], "text", None, 3, {}])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(BadInputError):
        from_data(RunRecord, data)


def test_tests_of_several_workers_come_in_one_order():
    merged = with_tests(run(judged("b"), judged("d")), [judged("c"), judged("a")])
    assert [test.nodeid for test in merged.tests] == ["a", "b", "c", "d"]


def test_the_file_is_readable_and_reads_back(tmp_path):
    whole = run(judged(NASTY))
    path = tmp_path / "new" / "报告.json"
    write_json_report(whole, path)
    content = path.read_text(encoding="utf-8")
    assert "你好，世界" in content
    assert r"\udc80" in content
    assert same(read_json_report(path), whole)
    assert [each.name for each in path.parent.iterdir()] == ["报告.json"]
    assert json_bytes(whole) == path.read_bytes()


def test_a_new_report_replaces_the_old_one_whole(tmp_path):
    path = tmp_path / "report.json"
    write_json_report(run(judged("a" * 5000)), path)
    write_json_report(run(), path)
    assert read_json_report(path) == run()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_json_report(run(), path)

    def no_space(self, data):
        open(self, "wb").close()  # noqa: PTH123 - what a full disk leaves behind
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", no_space)
    with pytest.raises(EnvironmentFailure, match="No space left") as error:
        write_json_report(run(judged()), path)
    assert error.value.file == str(path)
    assert read_json_report(path) == run()
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_path_that_is_no_place_for_a_report(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.json", tmp_path):
        with pytest.raises(EnvironmentFailure):
            write_json_report(run(), path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"<html>", b'{"schema": 2}'])
def test_a_damaged_report_is_refused(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(BadInputError):
        read_json_report(path)


def test_a_missing_report_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="cannot be read"):
        read_json_report(tmp_path / "none.json")
