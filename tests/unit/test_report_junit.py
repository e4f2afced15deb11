import math
import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import quoteattr

from pytest_cannlm.measure.figures import Figure, Verdict
from pytest_cannlm.report.junit import properties_of, suite_properties
from pytest_cannlm.report.record import DeviceFacts, RunRecord, TestRecord

NASTY = "你好 \x00 \x1b[31m ]]> <b> \ufffe \udc80 \u200f"


def record(**fields):
    figure = Figure("tpot", 54.02123456789, "ms/token", "modelled", 53.0, 55.0, 0.95, 6, "median")
    fail = Verdict("fail", figure, "decode_ms", 45.0, "ms/token", "lower", -9.0, "too slow", "heat", "marker")
    guard = Verdict("fail", None, "nonfinite_device", None, "", "lower", None, "1 NaN", "", "guard")
    facts = {"model": "m", "scheme": "w4a16", "device": "sim", "chip": "KirinX90", "cann": "6.1.1.0", "simulated": True}
    return TestRecord("id", "failed", "judged", **{**facts, "verdicts": (fail, guard), **fields})


def test_properties_name_where_it_ran_and_what_was_found():
    found = dict(properties_of(record()))
    assert found == {
        "cannlm.model": "m",
        "cannlm.scheme": "w4a16",
        "cannlm.device": "sim",
        "cannlm.chip": "KirinX90",
        "cannlm.cann": "6.1.1.0",
        "cannlm.category": "judged",
        "cannlm.simulated": "true",
        "cannlm.decode_ms.verdict": "fail",
        "cannlm.decode_ms.limit": "45.0",
        "cannlm.decode_ms.value": "54.02123456789",
        "cannlm.decode_ms.unit": "ms/token",
        "cannlm.decode_ms.kind": "modelled",
        "cannlm.decode_ms.reason": "too slow",
        "cannlm.nonfinite_device.verdict": "fail",
        "cannlm.nonfinite_device.reason": "1 NaN",
    }


def test_figures_without_a_limit_are_there_too():
    extra = Figure("mem_peak", math.inf, "bytes", "measured", None, None, None, 1, "highest")
    found = dict(properties_of(record(verdicts=(), figures=(extra,))))
    assert found["cannlm.mem_peak.value"] == "inf"
    assert found["cannlm.mem_peak.kind"] == "measured"


def test_who_answered_and_what_was_not_applied():
    found = dict(properties_of(record(served_by=("npu: a", "cloud: m at h"), not_applied=("parity", "token_latency"))))
    assert found["cannlm.served_by"] == "npu: a, cloud: m at h"
    assert found["cannlm.not_applied"] == "parity, token_latency"
    assert "cannlm.served_by" not in dict(properties_of(record()))


def test_names_have_no_blanks():
    refused = Verdict("fail", None, "refuses_load at gate", None, "", "lower", None, "it was loaded", "", "marker")
    found = dict(properties_of(record(verdicts=(refused,))))
    assert found["cannlm.refuses_load_at_gate.verdict"] == "fail"
    assert found["cannlm.refuses_load_at_gate.reason"] == "it was loaded"
    assert not [name for name in found if " " in name]


def test_an_error_is_told_by_its_code_and_facts():
    error = {"error": "CANN_VERSION_MISMATCH", "message": "refused", "found": "6.0.1.0", "log": ["a line"]}
    found = dict(properties_of(record(error=error)))
    assert found["cannlm.error"] == "CANN_VERSION_MISMATCH"
    assert (found["cannlm.error.message"], found["cannlm.error.found"]) == ("refused", "6.0.1.0")
    assert "cannlm.error.log" not in found


def test_every_value_is_a_text_that_xml_can_hold():
    pairs = properties_of(record(model=NASTY, not_run_reason=NASTY))
    device = DeviceFacts(NASTY, "sim", "KirinX90", None, "108.631.120.010", False)
    pairs += suite_properties(RunRecord(NASTY, "now", (device,)))
    xml = "".join(f"<property name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in pairs)
    parsed = ElementTree.fromstring(f"<properties>{xml}</properties>".encode())
    assert [(each.get("name"), each.get("value")) for each in parsed] == pairs
    assert "你好 \\x00" in dict(pairs)["cannlm.model"]


def test_the_run_names_its_devices():
    devices = (
        DeviceFacts("sim:kirinx90", "sim", "KirinX90", "6.1.1.0", None, True),
        DeviceFacts("hdc:1", "hdc", "KirinX90", None, "108.631.120.010", False),
    )
    found = dict(suite_properties(RunRecord("pytest-cannlm 0.1.0", "now", devices)))
    assert found["cannlm.schema"] == "3"
    assert found["cannlm.device0.cann"] == "6.1.1.0"
    assert found["cannlm.device0.simulated"] == "true"
    assert found["cannlm.device1.device_version"] == "108.631.120.010"
    assert "cannlm.device1.cann" not in found
