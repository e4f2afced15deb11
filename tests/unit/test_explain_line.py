"""The order in which one line is judged: noise hides no error, success lines invent none, plain failures are seen."""

import time

import pytest

from pytest_cannlm.explain import explain_text
from pytest_cannlm.explain.line import Judged, judge

ERROR, OPENS, ENDS, GOES_ON = (True, "ends"), (True, "opens"), (False, "ends"), (False, "goes on")


def verdict(judged: Judged) -> tuple[bool, str]:
    return judged.error, judged.block


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 1. a message code, whatever else the line says
        ("E19999: build done, and then it failed", OPENS),
        ("[ERROR] te_fusion load failed E19999", OPENS),
        ("E10001 Value x is invalid", OPENS),
        ("[ACL ERROR] EE1001: The argument is invalid", OPENS),
        # 2. a text of trouble, or a returned code
        ("[INFO] partition type NPU:0, CPU:1", ERROR),
        ("std::bad_alloc", (True, "goes on")),
        ("E/RL cannot load librl_search.so, ret = 500002", ERROR),
        ("OMG generate offline model success but 3 ops fell back ret = 500002", (True, "goes on")),
        ("OMG generate offline model success, std::bad_alloc", (True, "goes on")),
        ("SaveCompiledModelToFile SUCCESS, partition type NPU:0, CPU:1", (True, "goes on")),
        # 3. harmless
        ("E/RL cannot load librl_search.so: no such file", ENDS),
        ("E/AI Unknown class perfgenius_interface", ENDS),
        # 4. an error that nobody knows
        ("[ERROR] MatMul_12_dequant_s16s4 compile failed: out of memory", ERROR),
        ("[ERROR] te_fusion/parallel_compilation.py: [Errno 28] No space left on device", ERROR),
        ("E/AI_NPUCL MatMuls16s4Gen tiling failed", ERROR),
        ("RuntimeError: build done but no weights were written", ERROR),
        # 5. what ends a block
        ("[INFO] next", ENDS),
        ("[WARNING] W19999: odd", ENDS),
        ("W11001: odd", ENDS),
        ("I/AI_NPUCL MatMuls16s4Gen", ENDS),
        ("ATC run success, welcome", ENDS),
        ("", ENDS),
        # 6. plain
        ("  Op [a]", GOES_ON),
    ],
)
def test_the_first_rule_that_fits_decides(line: str, expected: tuple[bool, str]) -> None:
    assert verdict(judge(line)) == expected


def test_what_is_set_in_belongs_to_the_open_block() -> None:
    assert verdict(judge("    error: the reason", inside=True)) == GOES_ON
    assert verdict(judge("    error: the reason")) == ERROR
    assert verdict(judge("Segmentation fault (core dumped)", inside=True)) == ERROR


def test_what_ends_a_traceback_is_an_error_whatever_it_says() -> None:
    assert verdict(judge("StopIteration", raised=True)) == ERROR
    assert judge("Odd: result 145000", raised=True).code is not None


@pytest.mark.parametrize(
    "line",
    [
        "OH_NNTensor_Create ok, size=4",
        "OH_NNExecutor_RunSync ok, cost=12 ms",
        "OH_NNDevice_GetAllDevicesID count = 2",
        "OH_NNDevice_GetAllDevicesID returned 2 devices",
        "OH_NNCompilation_Build returned 0",
        "HMS_HiAI_GetVersion ret 108.631.120.010",
        "OH_NN_SUCCESS code 0, took = 3 ms",
        "aclrtMalloc(200000) ok",
        "aclrtMalloc size=145000",
        "benchmark result: 145000 tokens",
        "returned 100000 rows",
        "code 100000 samples",
        "status 500000 requests served",
        "no error, 145000 tokens",
        "0 failed, retries: 3",
        "interpreter 100000",
        "acl error code is 0",
        "[INFO] GE: load model ret=0 code 100000 samples",
        "[INFO] load ret = 145000",
        "2026-01-01 10:00:00,123 - model - INFO - error code: 145000",
        "INFO: E10001 means a wrong value",
        "[DEBUG] E10001: a help text",
        "saved to /tmp/E10001/log and run id E20001",
        "model code EA1234 shipped",
        "10 tests, 0 errors, 0 failed",
        "a core of 2 and an error rate of 3",
        "error: 0.02",
        "MeanSquaredError: -1.5e-3",
        "max error: high",
        "UserWarning: the error: of others",
    ],
)
def test_success_is_no_error(line: str) -> None:
    assert not judge(line).error


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'std::runtime_error'",
        "terminate called without an active exception",
        "Segmentation fault (core dumped)",
        "run.sh: line 3: 12345 Segmentation fault      (core dumped) ./omg",
        "Aborted (core dumped)",
        "Aborted",
        "Bus error",
        "Fatal Python error: Aborted",
        "[Fail]something new",
        "ERROR: cannot open /dev/npu0: Permission denied",
        "omg: error: no such option",
        "x.cpp:3:1: fatal error: y.h: No such file",
        "ValueError: odd",
        "torch.cuda.OutOfMemoryError: CUDA",
        "2026-01-01 10:00:00 ERROR foo",
        "2026-01-01 10:00:00,123 - name - ERROR - foo",
        "[2026-01-01T10:00:00.5Z] [main] [ERROR] foo",
        "aclnnAdd failed, ret=161002",
        "aclrtSetDevice failed",
        "OH_NNTensor_Create failed",
        "load failed, error code: -3",
    ],
)
def test_a_plain_failure_is_shown_although_nobody_knows_it(line: str) -> None:
    judged = judge(line)
    assert (judged.error, judged.text, judged.code) == (True, None, None)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("aclmdlLoadFromFile failed 145002", "145002"),
        ("load failed with error 507018 while loading", "507018"),
        ("[ERROR] load result: 145000", "145000"),
        ("modelRet = 500002", "500002"),
        ('{"error_code": 507018}', "507018"),
        ("task failed, ret=-507018", "507018"),
        ("OH_NNTensor_Create failed: 3", "3"),
    ],
)
def test_codes_are_read_where_words_say_so(line: str, code: str) -> None:
    found = judge(line).code
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    "piece",
    [
        "OH_NN", "HMS_ret", "HMS_x ret ", "OH_NNret=", "ret", "ret 100000 ", "err code is 100000 ", "acl(",
        "failed err ", "E19010 ", "Xx.", "error: ", "load te_fusion ", "librl_search load ", "SetInitTokenLen", "a: ",
        "1", "[ ", "\x1b[1",
    ],
)  # fmt: skip
def test_no_line_is_slow(piece: str) -> None:
    line = piece * (4096 // len(piece))
    began = time.perf_counter()
    for _ in range(5):
        explain_text([line])
    assert time.perf_counter() - began < 5 * 0.05


def test_a_long_log_is_read_quickly() -> None:
    line = "I/AI_NPUCL graph_optimizer.cc Run(120)::Node /model/layers.3/self_attn/MatMul optimized in 12 ms"
    began = time.perf_counter()
    explain_text([line] * 2000)
    assert time.perf_counter() - began < 1
