"""Load errors and crashes as a test's failure shows them, through the real agent with the scripted engine."""

import json

import pytest

NPU = "@pytest.mark.npu(**NPU)\n"
DEVICE = """
from pytest_cannlm.devices import SimulatedDevice

def pytest_cannlm_open_device(config, spec):
    return SimulatedDevice(spec, engine="engine_double:ScriptedEngine")
"""
CODES = {
    145000: "ACL_ERROR_GE_PARAM_INVALID (GE, the caller's side)*damaged file*complete and readable by the engine",
    145002: "ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID (GE, the caller's side)*path*complete and readable by the engine",
    500002: "ACL_ERROR_GE_FAILURE (aclError, inside the runtime)*another chip or CANN version*log lines*",
    507018: "ACL_ERROR_RT_AICPU_EXCEPTION (runtime, inside the runtime)*log lines*",
    100002: "ACL_ERROR_REPEAT_INITIALIZE (aclError, the caller's side)*initialised twice*once per process*",
    100012: "ACL_ERROR_DESERIALIZE_MODEL (aclError, the caller's side)*CANN version*Build the package again*",
    207001: "ACL_ERROR_RT_MEMORY_ALLOCATION (runtime, the device's resources)*memory*",
    999999: "not known (of no known family)*",
}
CLEAN = NPU + "def test_clean(npu):\n    assert npu.run.client.generate\n    assert npu.memory().load == 2\n"


@pytest.fixture
def scripted(npu_tests, pytester, monkeypatch, tmp_path):
    """Run tests on the scripted engine: ``scripted(source, script)``, one entry of ``script`` per load."""

    def run(source, script):
        npu_tests(source)
        pytester.makeconftest(DEVICE)
        file = tmp_path / "script"
        file.write_text("\n".join(map(json.dumps, script)), encoding="utf-8")
        monkeypatch.setenv("ENGINE_DOUBLE_SCRIPT", str(file))
        return pytester.runpytest("--npu-report=report.json")

    return run


@pytest.mark.parametrize("body", ["...", "assert False, 'the body failed'"])
def test_the_load_error_is_the_first_line_whatever_the_clean_up_and_the_body_do(scripted, pytester, body):
    tests = "".join(NPU + f"def test_{code}(npu): {body}\n" for code in CODES)
    script = [{"on_load": f"code:{code}", "on_unload": "raise"} for code in CODES]
    result = scripted(tests + CLEAN, script)
    result.assert_outcomes(errors=len(CODES), passed=1)
    text = result.stdout.str()
    for code, said in CODES.items():
        result.stdout.fnmatch_lines(
            [
                f"EngineError: the engine's load failed (found: {code} {said}",
                "note: cleaning up after the failed load failed too: ZeroDivisionError: asked to raise in unload",
            ],
            consecutive=True,
        )
        assert f"ERROR test_it.py::test_{code} - Failed: EngineError: the engine's load failed (found: {code} " in text
    assert "the body failed" not in text
    records = json.loads(pytester.path.joinpath("report.json").read_text(encoding="utf-8"))["tests"]
    assert [record["category"] for record in records] == ["engine"] * len(CODES) + ["unlimited"]


def test_a_clean_up_that_crashes_is_a_note_too(scripted):
    result = scripted(NPU + "def test_it(npu): ...\n" + CLEAN, [{"on_load": "code:207001", "on_unload": "crash"}])
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "EngineError: the engine's load failed (found: 207001 *",
            "note: cleaning up after the failed load crashed: SIGSEGV",
        ]
    )


LOADING = """
@pytest.fixture
def engine(npu):
    client, package = npu.run.client, npu.package.package
    try:
        client.load(package, options={{"on_load": "{load}", "on_unload": "raise"}})
        yield client
    finally:
        client.unload()
"""


def test_a_failing_body_is_told_before_the_trouble_of_its_own_fixture_s_clean_up(scripted):
    source = LOADING.format(load="") + NPU + "def test_it(engine): assert 1 == 2, 'the body failed'\n" + CLEAN
    result = scripted(source, [])
    result.assert_outcomes(failed=1, errors=1, passed=1)
    result.stdout.fnmatch_lines(
        ["FAILED test_it.py::test_it - AssertionError: the body failed", "ERROR *: asked to raise in unload"]
    )


def test_a_fixture_that_cleans_up_after_a_failed_load_does_not_hide_it(scripted):
    source = LOADING.format(load="code:145002") + NPU + "def test_it(engine): ...\n" + CLEAN
    result = scripted(source, [])
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E  *EngineError: the engine's load failed (found: 145002 *",
            "E  *EngineError: unload needs a loaded package and none is loaded "
            "(found: before: the engine's load failed, 145002 *",
        ]
    )


def test_a_load_error_in_a_fixture_of_the_user_shows_code_meaning_and_notes(scripted):
    source = NPU + (
        "def test_it(npu):\n"
        "    npu.run.client.load(npu.package.package, options={'on_load': 'code:145002', 'on_unload': 'raise'})\n"
    )
    result = scripted(source + CLEAN, [])
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E  *EngineError: the engine's load failed (found: 145002 ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID *",
            "E  *cleaning up after the failed load failed too: *",
        ]
    )


def test_a_crash_says_who_died_how_why_with_what_and_its_last_words(scripted):
    result = scripted(NPU + "def test_it(npu): ...\n" + CLEAN, [{"on_load": "abort"}])
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "EngineCrash: the engine crashed during load (found: SIGABRT). Likely cause: The engine ran out of mem*",
            "    | running: engine engine_double:ScriptedEngine, chip KirinX90, CANN 6.1.1.0, *of the package 6.1.1.0",
            "    | terminate called after throwing an instance of 'std::bad_alloc'",
        ],
        consecutive=True,
    )


def test_a_crash_of_a_package_that_the_gate_did_not_compare_names_both_versions(npu_tests, pytester):
    npu_tests(
        "@pytest.fixture\n"
        "def other(npu, tmp_path):\n"
        "    from pytest_cannlm.build import relabel\n"
        "    return relabel(npu.package, tmp_path / 'other', cann='6.0.1.0')\n"
        + NPU
        + "def test_it(npu, other):\n    npu.run.client.load(other.package, manifest=other.manifest)\n"
        + NPU
        + "def test_clean(npu): npu.chat('Hi', max_new_tokens=1)\n"
    )
    pytester.makeconftest("")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E  *EngineCrash: the engine crashed during load (found: SIG*). Likely cause: The package was built with "
            "CANN 6.0.1.0, and the device has 6.1.1.0. Build the package again *",
            "E  *running: engine simulated, chip KirinX90, CANN 6.1.1.0, *CANN of the package 6.0.1.0",
            "E  *CheckCompatibility failed*",
        ]
    )
