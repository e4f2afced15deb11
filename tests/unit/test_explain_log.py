import io
import tracemalloc

import pytest

from pytest_cannlm.explain import explain_text, likely_cause, lines_of

TRACEBACK = "Traceback (most recent call last):"
FRAME = '  File "x.py", line 1, in load'
ATC = """\
ATC start working now, please wait for a moment.
ATC run failed, Please check the detail log, Try 'atc --help' for more information
E19010: No parser is registered for Op [nms, optype [ai.onnx::23::Div]].
        No parser is registered for Op [a, optype [ai.onnx::23::Attention]].
        No parser is registered for Op [b, optype [com.microsoft::1::GroupQueryAttention]].
        No parser is registered for Op [c, optype [ai.onnx::23::Div]].
"""


def test_one_coded_line_and_three_that_continue_it_are_four_operators() -> None:
    first, summary = explain_text(ATC.splitlines())
    assert (first.code, first.first, first.line, first.times) == ("E19010", True, 3, 1)
    assert first.items == (
        "nms (ai.onnx::23::Div)",
        "a (ai.onnx::23::Attention)",
        "b (com.microsoft::1::GroupQueryAttention)",
        "c (ai.onnx::23::Div)",
    )
    assert len(first.lines) == 4
    assert all(item in first.sentence() for item in first.items)
    assert "ATC run failed" in summary.subject
    assert not summary.first


@pytest.mark.parametrize(
    ("line", "item"),
    [
        ("No parser is registered for Op [Resize_3]", "Resize_3"),
        ("optype [ai.onnx::23::Div]", "ai.onnx::23::Div"),
        ("    ai.onnx::23::RMSNormalization", "ai.onnx::23::RMSNormalization"),
        ("Op [x, optype[ai.onnx::11::NMS]]", "x (ai.onnx::11::NMS)"),
    ],
)
def test_operators_are_read_in_every_form(line: str, item: str) -> None:
    (found,) = explain_text(["E19010: No parser is registered for Op [first]", line])
    assert found.items == ("first", item)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "[INFO] GE(1,atc): next",
        "I/OMG_TOOL  main.cpp main(24)::next",
        "W11001: a warning",
        "ATC run success, welcome",
    ],
)
def test_a_block_ends_where_another_record_begins(end: str) -> None:
    (found,) = explain_text(["E19010: Op [a]", "  Op [b]", end, "  Op [c]"])
    assert found.items == ("a", "b")


def test_the_first_error_stays_first_even_if_no_table_knows_it() -> None:
    first, second = explain_text(["[ERROR] GE(7,atc): odd", "E20001: Operator a compilation failed. Optype is Add."])
    assert (first.first, first.known, first.sentence()) == (True, False, "[ERROR] GE(7,atc): odd: not known")
    assert (second.first, second.items) == (False, ("a (Add)",))


def test_a_later_error_never_hides_the_first() -> None:
    log = ["aclmdlLoadFromFile failed, ret = 145002", "AttributeError: no attribute 'model'", "[ERROR] ret = 500002"]
    found = [(each.code, each.first) for each in explain_text(log)]
    assert found == [("145002", True), (None, False), ("500002", False)]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([TRACEBACK, FRAME, "    raise E('ret=145000')", "RuntimeError: rtDeviceOpen failed"], "RuntimeError"),
        ([TRACEBACK, FRAME, "subprocess.TimeoutExpired: 3 s"], "subprocess.TimeoutExpired"),
        ([TRACEBACK, FRAME, "KeyboardInterrupt"], "KeyboardInterrupt"),
        ([TRACEBACK, FRAME, "RuntimeError: load failed, ret=207001"], "207001"),
        ([TRACEBACK, FRAME], TRACEBACK),
        ([TRACEBACK, FRAME, "", "a plain line"], TRACEBACK),
    ],
)
def test_a_traceback_is_one_error_that_its_last_line_names(log: list[str], said: str) -> None:
    (found,) = explain_text(log)
    assert found.subject.startswith(said)


def test_chained_tracebacks_are_told_from_the_first_one() -> None:
    between = "During handling of the above exception, another exception occurred:"
    log = [TRACEBACK, FRAME, "OSError: disk", "", between, "", TRACEBACK, FRAME, "ValueError: then"]
    assert [each.subject for each in explain_text(log)] == ["OSError: disk", "ValueError: then"]


def test_colours_hide_nothing() -> None:
    (found,) = explain_text(["\x1b[31m[ERROR]\x1b[0m odd \x1b[1;31mret = 145000\x1b[K\x1b[0m"])
    assert (found.code, found.lines) == ("145000", ("[ERROR] odd ret = 145000",))


def test_the_text_says_more_than_its_code_and_keeps_it() -> None:
    line = "EE1001: The argument is invalid. Reason: ModelCheckArchVersion failed, omArchVersion=3, archType=0"
    (found,) = explain_text([line])
    assert (found.code, found.family) == ("EE1001", "GE log")
    assert "another architecture" in found.cause


def test_repeated_lines_are_one_finding_with_everything_that_they_name() -> None:
    log = [f"Node /layer.{i}/x type MatMulNBits don't support!" for i in range(500)]
    (found,) = explain_text(log)
    assert found.times == 500
    assert found.items[:2] == ("/layer.0/x (MatMulNBits)", "/layer.1/x (MatMulNBits)")
    assert found.items[-1] == "…"
    assert len(found.items) == 101
    assert len(found.lines) == 20


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("aclmdlLoadFromFile failed, ret = 500002", "500002"),
        ("[ERROR] acl api: aclmdlLoadFromFile(145000)", "145000"),
        ("error code is 507018, task failed", "507018"),
        ("retCode=207001", "207001"),
        ("errorCode[100012]", "100012"),
        ("returned 207999", "207999"),
        ("OH_NNCompilation_Build returned 1", "1"),
        ("HMS_LLMEngineExecutor_Generate ret: 3", "3"),
        ("HMS_HiAICompatibility_CheckFromFile returned 1", "1"),
    ],
)
def test_return_codes_are_found_in_their_words(line: str, code: str) -> None:
    (found,) = explain_text([line])
    assert found.code == code


def test_the_caller_tells_the_family_of_a_small_code() -> None:
    engine, query = explain_text(
        ["OH_NNCompilation_Build returned 1", "HMS_HiAICompatibility_CheckFromFile returned 1"]
    )
    assert (engine.name, query.name) == ("OH_NN_FAILED", "INCOMPATIBLE")


@pytest.mark.parametrize(
    "line",
    [
        "a plain line",
        "loaded 145000 tokens in 500002 us",
        "progress: 100000",
        "ret = 1450001",
        "code 145000.5",
        "2026-06-01 12:00:00.000  100  200 I C01/AI: fine",
        "0xE19010AB and xE19010y",
        "[INFO] nothing",
        "06-01 12:00:00.000  100  200 I C01/AI: fine",
        "OH_NNCompilation_Build returned 0",
        "Unknown class perfgenius_interface",
        "OMG generate offline model success.",
        "",
    ],
)
def test_what_is_no_error_is_not_shown(line: str) -> None:
    assert explain_text([line]) == []


@pytest.mark.parametrize(
    "line",
    [
        "[ERROR] x",
        "E/OMG_TOOL x.cpp",
        "2026-06-01 12:00:00.000  100  200 E C01/AI: odd",
        "06-01 12:00:00.000  100  200 E C01/AI: odd",
        "[FATAL] y",
    ],
)
def test_what_calls_itself_an_error_is_shown_although_nobody_knows_it(line: str) -> None:
    (found,) = explain_text([line])
    assert (found.known, found.lines, found.first) == (False, (line,), True)


def test_unknown_lines_are_bounded_and_what_is_known_is_found_behind_them() -> None:
    log = [f"[ERROR] word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(600)] + ["ret = 145000"]
    found = explain_text(log)
    assert len(found) == 202
    assert (found[-2].name, found[-2].times) == ("further errors", 400)
    assert found[-1].code == "145000"


def test_a_large_log_is_read_with_bounded_memory() -> None:
    class Log(io.RawIOBase):
        left = 20_000_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:
            size = min(len(buffer), self.left)
            self.left -= size
            buffer[:size] = b"x" * size
            return size

    tracemalloc.start()
    found = explain_text(lines_of(io.BufferedReader(Log())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == []
    assert peak < 2_000_000


def test_any_bytes_can_be_a_log_and_a_long_line_ends_where_it_ends() -> None:
    data = b"\xff\x00\n[ERROR] " + b"y" * 100_000 + b"\nret = 145000\r\nno end of line"
    assert list(map(len, lines_of(io.BytesIO(data)))) == [2, 4096, 14, 14]
    unknown, known = explain_text(lines_of(io.BytesIO(data)))
    assert (len(unknown.lines[0]), known.code, known.line) == (300, "145000", 3)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log_that_windows_wrote_is_read(encoding: str) -> None:
    data = "[ERROR] odd\r\nE19010: Op [a]\r\n  Op [b]\r\n".encode(encoding)
    unknown, known = explain_text(lines_of(io.BytesIO(data)))
    assert (unknown.lines, known.code, known.items) == (("[ERROR] odd",), "E19010", ("a", "b"))


def test_what_says_success_hides_no_code_of_its_line() -> None:
    (found,) = explain_text(["E19999: build done, and then it failed"])
    assert found.code == "E19999"


def test_a_code_among_the_lines_of_a_block_does_not_end_it() -> None:
    block, code = explain_text(["E19010: Op [a]", "  ret = 145000", "  Op [b]"])
    assert (block.items, code.code) == (("a", "b"), "145000")


def test_an_error_in_a_line_with_a_warning_code_counts() -> None:
    assert [each.code for each in explain_text(["W11001 then E20001: x", "W11001: y"])] == ["E20001"]


@pytest.mark.parametrize(
    ("ended_by", "log", "said"),
    [
        ("SIGABRT", ["type_error.302: type must be string, but is array"], "merges"),
        ("SIGABRT", ["Pure virtual function called!"], "another thread"),
        (
            "SIGABRT",
            ["[ERROR] odd", "terminate called after throwing an instance of 'std::bad_alloc'"],
            "out of memory",
        ),
        ("SIGKILL", ["some line"], "out of memory"),
        ("out of memory (0xC0000017)", [], "no more memory"),
        ("SIGSEGV", ["modelRecompiler Recompile failed!", "CheckCompatibility failed by cl CPUCL"], "another CANN"),
    ],
)
def test_what_a_crash_points_to(ended_by: str, log: list[str], said: str) -> None:
    found = likely_cause(log, ended_by)
    assert found is not None
    assert said in found.cause


@pytest.mark.parametrize("ended_by", ["SIGSEGV", "SIGABRT", "status 3", "145000"])
def test_how_a_process_ended_is_no_cause_of_its_own(ended_by: str) -> None:
    assert likely_cause([], ended_by) is None


def test_nothing_is_guessed_about_an_unknown_crash() -> None:
    assert likely_cause(["a line that says nothing", "[ERROR] odd"], "SIGSEGV") is None
