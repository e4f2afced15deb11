import pytest

from pytest_cannlm.measure.figures import Figure, Verdict
from pytest_cannlm.measure.stats import judge
from pytest_cannlm.report.record import RunRecord, TestRecord
from pytest_cannlm.report.terminal import failure_text, render, summary, table
from pytest_cannlm.report.text import pad, shorten, visible, width


def figure(value=54.0, kind="modelled", **fields):
    detail = {
        "generations_per_round": [4] * 6,
        "prompt_tokens": [41],
        "new_tokens": [64],
        "context": 2048,
        "look": 1,
        "looks": 3,
        "void_rounds": ["throttled"],
    }
    defaults = {"lower": value - 1, "upper": value + 1, "confidence": 0.9833, "samples": 6, "detail": detail}
    return Figure("tpot", value, "ms/token", kind, **{**defaults, **fields}, statistic="median of round medians")


def verdict(value=54.0, limit=45.0, **fields):
    return judge(
        figure(value, **fields),
        limit,
        name="decode_ms",
        look_at="bytes read per token (scheme), KV length, performance mode",
        limit_source="marker at test_a.py:7",
    )


def record(nodeid="tests/test_a.py::test_a", *verdicts, category="judged", **fields):
    facts = {"model": "smollm2-135m", "scheme": "w4a16", "device": "sim", "chip": "KirinX90", "cann": "6.1.1.0"}
    return TestRecord(nodeid, "failed", category, **{**facts, "simulated": True, "verdicts": verdicts, **fields})


def run(*tests):
    return RunRecord("pytest-cannlm", "now", tests=tests)


def test_the_failure_text_tells_everything():
    assert failure_text(verdict(), record()).splitlines() == [
        "decode_ms: fail: even the lower bound 53 ms/token is above the limit of 45 ms/token",
        "  found     54 ms/token (18.52 tokens/s), modelled; median of round medians",
        "  limit     at most 45 ms/token, from marker at test_a.py:7",
        "  interval  53 ms/token to 55 ms/token, each bound at 98.33 % confidence",
        "  margin    9 ms/token beyond the limit (-20.0 %)",
        "  samples   6 rounds of 4 generations, 41 prompt tokens, 64 new tokens, context 2048, look 1 of 3, "
        "1 void rounds left out",
        "  on        model smollm2-135m, scheme w4a16, simulated KirinX90 on sim, CANN 6.1.1.0",
        "  look at   bytes read per token (scheme), KV length, performance mode",
    ]


def test_a_real_device_is_not_called_simulated():
    text = failure_text(verdict(kind="measured"), record(simulated=False, device="hdc:1", cann=None))
    assert "measured;" in text
    assert "simulated" not in text
    assert "KirinX90 on hdc:1" in text


def test_missing_data_and_guards_are_told_without_a_figure():
    unmeasured = judge(
        None, 45, name="decode_ms", unit="ms/token", missing="a generation had 1 token", limit_source="marker"
    )
    text = failure_text(unmeasured, record())
    assert "found  nothing" in text
    assert "a generation had 1 token" in text
    guard = Verdict(
        "fail", None, "constant_output", None, "", "lower", None, "2 positions", "overflow", "guard, always checked"
    )
    assert "asked by  guard, always checked" in failure_text(guard, record())


def test_a_comparison_names_the_tolerance_that_would_pass():
    found = verdict(detail={"minimum_atol": 1.5, "minimum_rtol": float("inf")})
    assert "every element passes with atol 1.5 alone, or with rtol inf alone" in failure_text(found, record())


def test_intervals_that_are_points_or_half_open():
    point = verdict(lower=54.0, upper=54.0, confidence=None, detail={"worst_position": 63})
    assert "none needed" in failure_text(point, record())
    assert "worst at position 63" in failure_text(point, record())
    alike = verdict(lower=54.0, upper=54.0)
    assert "54 ms/token to 54 ms/token, each bound at 98.33 %" in failure_text(alike, record())
    assert "unknown to 55 ms/token" in failure_text(verdict(lower=None), record())
    assert "the sample gives no bound" in failure_text(verdict(lower=None, upper=None), record())


def test_the_table_has_a_line_per_verdict_under_its_test():
    found = run(
        record("tests/test_a.py::test_a", verdict(), verdict(40.0)),
        record("tests/test_a.py::test_问[w4a16]", verdict(9.0)),
    )
    assert table(found) == [
        "  figure           found        limit   margin  kind      verdict",
        "tests/test_a.py::test_a",
        "  decode_ms  54 ms/token  45 ms/token  -20.0 %  modelled  fail",
        "  decode_ms  40 ms/token  45 ms/token  +11.1 %  modelled  pass",
        "tests/test_a.py::test_问[w4a16]",
        "  decode_ms   9 ms/token  45 ms/token  +80.0 %  modelled  pass",
    ]


def test_long_ids_are_cut_in_the_middle_to_keep_within_the_terminal():
    nodeid = "tests/very/long/" + "x" * 500 + "::test_answers[w4a16]"
    lines = table(run(record(nodeid, verdict())), columns=100)
    assert max(width(line) for line in lines) <= 100
    assert lines[1].startswith("tests/")
    assert "[w4a16]" in lines[1]


def test_ids_with_control_characters_stay_on_their_line():
    lines = table(run(record("a\nb\x1b[31m\x00\u202e", verdict())))
    assert len(lines) == 3
    assert "a\\nb\\x1b[31m\\x00\\u202e" in lines[1]


def test_a_verdict_without_figure_or_limit_has_dashes():
    guard = Verdict("fail", None, "constant_output", None, "", "lower", None, "2 positions", "", "guard")
    assert table(run(record("t", guard)))[2].split() == ["constant_output", "–", "–", "–", "–", "fail"]


def test_counts_cannot_hide():
    lines = summary(
        run(
            record("a", verdict(), verdict(40.0)),
            record("b", verdict(45.5), category="inconclusive"),
            record("c", category="environment"),
            *(record(f"n{n}", category="not-run", not_run_reason="no device") for n in range(11)),
            record("m", category="not-run", not_run_reason="needs lora"),
        )
    )
    assert lines == [
        "3 verdicts: 1 passed, 1 failed, 1 inconclusive",
        "all figures modelled (simulated KirinX90): predictions, not measurements",
        "NPU tests not run: 12 (1 × needs lora; 11 × no device)",
        "inconclusive: 1 tests; their samples cannot decide",
        "environment or device failed: 1 tests; nothing was judged there",
    ]


def test_what_the_cloud_answered_is_counted_apart():
    passed = Verdict("pass", None, "cloud_reached", None, "", "lower", None, "passed via the cloud", "", "marker")
    fallen = record("a", passed, category="fallback", served_by=("cloud: m at h",), not_applied=("parity",))
    found = run(fallen, record("b", category="unlimited", served_by=("npu: cloud: odd name",)))
    assert "  on        model smollm2-135m, scheme w4a16, as if on KirinX90: nothing was loaded" in failure_text(
        verdict(), fallen
    )
    assert table(found)[-1] == "  not applied to what the cloud answers: parity"
    assert "answered by the cloud: 1 tests; no NPU coverage" in summary(found)


def test_measured_figures_are_not_called_modelled():
    measured = record("a", verdict(kind="measured"), simulated=False)
    assert not [line for line in summary(run(measured)) if "modelled" in line]
    assert "partly measured, partly modelled" in "\n".join(summary(run(measured, record("b", verdict()))))


def test_nothing_is_written_where_no_test_used_an_npu():
    lines = []
    render(run(), lines.append)
    assert lines == []
    render(run(record("a", category="not-run", not_run_reason="no device")), lines.append)
    assert lines == ["NPU tests not run: 1 (1 × no device)"]
    render(run(record("a", verdict())), lines.append)
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("你好", 4), ("e\u0301", 1), ("🎉", 2), ("", 0), ("\u200d", 0)]
)
def test_widths(text, columns):
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "columns", "short"),
    [
        ("abcdefghij", 10, "abcdefghij"),
        ("abcdefghij", 5, "ab…ij"),
        ("abcdefghij", 4, "a…ij"),
        ("你好世界你好", 6, "你…好"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_shortening(text, columns, short):
    assert shorten(text, columns) == short
    assert width(short) <= columns or text == short


def test_padding_counts_columns():
    assert pad("你", 4) == "你  "
    assert pad("你", 4, right=True) == "  你"
    assert pad("abc", 2) == "abc"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("你好 🎉 é", "你好 🎉 é"),
        ("a\tb\r\n", r"a\tb\r\n"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("\u200f\u2028\ufffe", r"\u200f\u2028\ufffe"),
        ("\udc80", r"\udc80"),
        ("\U000e0001", r"\U000e0001"),
        ("👩‍🔬", "👩‍🔬"),
    ],
)
def test_what_cannot_be_seen_is_shown(text, seen):
    assert visible(text) == seen
