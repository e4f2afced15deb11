"""NPU tests from set-up to report: what passes, what fails and how it reads, what is not run, what travels where."""

import json

import junitparser
import pytest

NPU = "@pytest.mark.npu(**NPU)\n"
TEST = "def test_it(npu): npu.chat('What is the capital of France?', max_new_tokens=8)\n"
LATENCY = "@pytest.mark.token_latency(decode_ms={}, ttft_ms={})\n"


def report_of(pytester, name="report.json"):
    return json.loads(pytester.path.joinpath(name).read_text(encoding="utf-8"))


def records_of(pytester):
    return {test["nodeid"]: test for test in report_of(pytester)["tests"]}


def test_everything_within_its_limits_passes(npu_tests, pytester):
    npu_tests(
        NPU
        + LATENCY.format(20.5, 101)
        + "@pytest.mark.memory_ceiling(load='100MiB', peak='150MiB', kv_per_token='1KiB')\n"
        + "@pytest.mark.parity(kl_mean=1e-9, top1=1.0)\n"
        + "@pytest.mark.refuses_load(cann='6.0.1.0')\n"
        + TEST,
        client="capabilities=('logits', 'modelled_timing')",
    )
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    test = records_of(pytester)["test_it.py::test_it"]
    assert {verdict["name"]: verdict["outcome"] for verdict in test["verdicts"]} == dict.fromkeys(
        ["decode_ms", "ttft_ms", "kl_mean", "top1", "refuses_load at gate", "load", "peak", "kv_per_token"], "pass"
    )
    assert (test["category"], test["simulated"], test["chip"], test["cann"]) == ("judged", True, "KirinX90", "6.1.1.0")
    assert {verdict["figure"]["kind"] for verdict in test["verdicts"] if verdict["figure"]} == {"modelled"}
    assert "tpot" in {verdict["figure"]["name"] for verdict in test["verdicts"] if verdict["figure"]}
    assert "decode_tps" in {figure["name"] for figure in test["figures"]}
    result.stdout.fnmatch_lines(
        ["*= NPU tests =*", "*decode_ms*20 ms/token*20.5 ms/token*modelled*pass*", "NPU: 1 tests: 1 judged"]
    )
    assert result.outlines[-1] == "NPU: 1 tests: 1 judged"


OWN_LOGITS = "__import__('fake_npu').scripted_logits"
UNSEEN = "__import__('fake_npu').Memory('modelled', None, None, None, None, None)"
TINY = "__import__('fake_npu').Memory('modelled', 1, 1, 1, 1, None)"
ANOTHER_CANN = "@pytest.mark.refuses_load(cann='6.0.1.0'{})\n"

FAILING = {
    "latency": (
        LATENCY.format(10, 50),
        "",
        ["decode_ms: fail", "limit * at most 10 ms/token", "ttft_ms: fail"],
    ),
    "prefill": (
        "@pytest.mark.token_latency(prefill_tps=1e9)\n",
        "",
        ["prefill_tps: fail"],
    ),
    "memory": (
        "@pytest.mark.memory_ceiling(load='1MiB', peak='1MiB')\n",
        "",
        ["load: fail: 100.0 MiB", "peak: fail"],
    ),
    "retained": (
        "@pytest.mark.memory_ceiling(retained='1MiB')\n",
        "retained=5 * 2**20",
        ["retained: fail: 5.0 MiB"],
    ),
    "unseen memory": (
        "@pytest.mark.memory_ceiling(peak='1GiB')\n",
        f"footprint={UNSEEN}",
        ["peak: fail: not observed"],
    ),
    "a peak without the weights": (
        "@pytest.mark.memory_ceiling(peak='1GiB')\n",
        f"footprint={TINY}",
        ["peak: fail: not observed: *below*resident weights"],
    ),
    "parity": (
        "@pytest.mark.parity(kl_mean=1e-9, top1=0.999)\n",
        f"logits=lambda t, f: -{OWN_LOGITS}(t, f)",
        ["kl_mean: fail", "top1: fail"],
    ),
    "decoding": (
        "@pytest.mark.parity(kl_mean=1e-9)\n",
        f"decoded_logits=lambda t, f: -{OWN_LOGITS}(t, f)",
        ["kl_mean: fail: *; compared 512 positions down to depth 256, 32 of them decoded"],
    ),
    "anything retained": (
        "@pytest.mark.memory_ceiling(retained='0B')\n",
        "retained=1",
        ["retained: fail: 1 B is above the limit of 0 B"],
    ),
    "nan logits": (
        "@pytest.mark.parity(kl_mean=9)\n",
        f"logits=lambda t, f: {OWN_LOGITS}(t, f) * float('nan')",
        ["nonfinite_device: fail"],
    ),
    "no logits": (
        "@pytest.mark.parity(kl_mean=9)\n",
        "capabilities=['modelled_timing']",
        ["fail*not observable: needs logits"],
    ),
    "other ids": (
        "@pytest.mark.parity(kl_mean=9)\n",
        "capabilities=['logits', 'tokenize'], tokenize=lambda text: [1, 2, 3]",
        ["prompt_ids: fail: prompt ids differ at position"],
    ),
    "greedy": (
        "@pytest.mark.parity(prefix_tokens=4)\n",
        "tokens=(0, 1, 9, 9)",
        ["prefix_tokens: fail"],
    ),
    "not refused": (
        ANOTHER_CANN.format(""),
        "gate=lambda *_: None",
        ["refuses_load at gate: fail: the gate let the copy through, and the engine loaded it"],
    ),
    "refused for another reason": (
        ANOTHER_CANN.format(", error='CHIP_MISMATCH'"),
        "",
        ["fail: refused for another reason than CHIP_MISMATCH: *CANN_VERSION_MISMATCH"],
    ),
    "loaded by the engine": (
        ANOTHER_CANN.format(", at='engine'"),
        "",
        ["fail: the engine loaded the copy"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_every_assertion_can_fail_and_says_why(npu_tests, pytester, name):
    marks, client, expected = FAILING[name]
    if "capabilities" not in client:
        client += ", capabilities=('logits', 'modelled_timing')"
    npu_tests(NPU + marks + TEST, client=client.removeprefix(", "))
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{line}*" for line in expected], consecutive=False)
    test = records_of(pytester)["test_it.py::test_it"]
    assert (test["outcome"], test["category"]) == ("failed", "judged")
    text = result.stdout.str()
    assert "running.py" not in text, "no traceback into the plugin"
    assert "on " in text
    assert "scheme w4a16, simulated KirinX90 on sim, CANN 6.1.1.0" in text


def test_a_crash_at_the_engine_fails_with_its_evidence(npu_tests, pytester):
    npu_tests(
        NPU + "@pytest.mark.refuses_load(cann='6.0.1.0', at='engine')\n" + TEST,
        conftest=(
            "def load(package):\n"
            "    if 'relabelled' in str(package):\n"
            "        raise EngineCrash('the engine crashed', found='SIGSEGV', log=('CheckCompatibility failed',))\n"
            "CLIENT.engine_load = load\n"
        ),
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*crashed with SIGSEGV; it said", "*| CheckCompatibility failed"])


def test_a_clean_engine_error_passes_at_the_engine(npu_tests, pytester):
    npu_tests(
        NPU + "@pytest.mark.refuses_load(cann='6.0.1.0', at='engine')\n" + TEST,
        conftest=(
            "def load(package):\n"
            "    if 'relabelled' in str(package):\n"
            "        raise EngineError('not this one', code='145000')\n"
            "CLIENT.engine_load = load\n"
        ),
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_nothing_retained_passes_a_limit_of_nothing(npu_tests, pytester):
    npu_tests(NPU + "@pytest.mark.memory_ceiling(retained='0B')\n" + TEST)
    pytester.runpytest().assert_outcomes(passed=1)


def test_prompts_that_were_cut_are_named_although_the_test_passes(npu_tests, pytester):
    npu_tests(
        NPU + "@pytest.mark.parity(prompts=['One two three', 'four'], tokens=4, kl_mean=1e-9)\n" + TEST,
        client="capabilities=('logits', 'modelled_timing')",
    )
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(passed=1)
    said = "compared 4 positions down to depth 2, 2 of them decoded; 2 of 2 texts were cut"
    (verdict,) = records_of(pytester)["test_it.py::test_it"]["verdicts"]
    assert said in verdict["reason"]
    assert verdict["figure"]["detail"]["texts_cut"] == 2
    assert said in result.stdout.str() + result.stderr.str()


LATE = {
    "applied": NPU + "def test_it(npu, request):\n    request.applymarker(pytest.mark.token_latency(decode_ms=1e-3))\n",
    "added": NPU + "def test_it(npu, request):\n    request.node.add_marker(pytest.mark.parity(kl_mean=1e-9))\n",
    "in a plain test": "def test_it(request):\n    request.applymarker(pytest.mark.npu(**NPU))\n",
}


@pytest.mark.parametrize("name", LATE)
def test_a_marker_that_comes_too_late_fails(npu_tests, pytester, name):
    npu_tests(LATE[name])
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["UsageError: marker * was added after collection, and so asserts nothing.*"])


def test_modelled_figures_of_a_device_that_claims_to_be_real_fail(npu_tests, pytester):
    npu_tests(
        NPU + LATENCY.format(99, 999) + TEST,
        client="kind='measured', gate=lambda *_: None",
        device="simulated=False",
        conftest=(
            "def pytest_cannlm_build(config, recipe):\n"
            "    from dataclasses import replace\n"
            "    from pytest_cannlm.harness.rooms import own_rooms\n"
            "    from pytest_cannlm.plugin.running import harness_of\n"
            "    harness = harness_of(config)\n"
            "    cache = harness.settings.cache_folder\n"
            "    return own_rooms().build(replace(recipe, converter='simulated'), cache, harness.progress)\n"
        ),
    )
    result = pytester.runpytest("--npu=local", "--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["simulated_as_device: fail: *"])
    figures = [verdict["figure"] for verdict in records_of(pytester)["test_it.py::test_it"]["verdicts"]]
    assert {figure["kind"] for figure in figures if figure} == {"modelled"}


def test_a_full_disk_counts_as_environment(npu_tests, pytester):
    npu_tests(
        NPU + TEST,
        conftest="def pytest_cannlm_build(config, recipe): raise OSError(28, 'No space left on device', 'x.weight')\n",
    )
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["EnvironmentFailure: *No space left on device (file: x.weight)*--npu-cache*"])
    assert records_of(pytester)["test_it.py::test_it"]["category"] == "environment"


def test_an_engine_that_dies_under_the_body_is_a_failure_with_its_evidence(npu_tests, pytester):
    npu_tests(
        NPU + "def test_it(npu):\n    npu.run.client.crashes += 1\n",
        client="fails={'memory': EngineCrash('the engine crashed', found='SIGKILL', log=('last words',))}",
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["engine_alive: fail: the engine was lost*SIGKILL*", "*| last words"])


def test_a_body_that_fails_is_not_judged(npu_tests, pytester):
    npu_tests(NPU + LATENCY.format(99, 999) + "def test_it(npu): assert npu.chat('Hi').text == 'Rome'\n")
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    test = records_of(pytester)["test_it.py::test_it"]
    assert (test["category"], test["verdicts"]) == ("body", [])
    assert result.outlines[-1] == "NPU: 1 tests: 1 failed in their own body"


def test_latency_is_timed_with_the_body_s_first_prompt(npu_tests, pytester):
    npu_tests(
        NPU
        + LATENCY.format(99, 999)
        + "def test_it(npu):\n    npu.generate('one two three')\n    npu.generate('four')\n"
    )
    pytester.runpytest("--npu-report=report.json").assert_outcomes(passed=1)
    (verdict, _) = records_of(pytester)["test_it.py::test_it"]["verdicts"]
    assert verdict["figure"]["detail"]["prompt_tokens"] == [9]
    assert verdict["figure"]["detail"]["new_tokens"] == [64]


def test_an_empty_body_is_judged_on_standard_prompts(npu_tests, pytester):
    npu_tests(
        NPU + LATENCY.format(99, 999) + "@pytest.mark.memory_ceiling(peak='150MiB')\ndef test_it(npu): ...\n",
        conftest="def pytest_unconfigure(config): print('calls', CLIENT.log.count('generate'))\n",
    )
    result = pytester.runpytest("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*calls 3"])


@pytest.mark.parametrize(
    ("policy", "outcome", "last"),
    [
        ("extend", {"failed": 1}, "1 inconclusive"),
        ("fail", {"failed": 1}, "1 inconclusive"),
        ("skip", {"skipped": 1}, "1 inconclusive"),
        ("xfail", {"xfailed": 1}, "1 inconclusive"),
    ],
)
def test_an_undecided_verdict_follows_the_policy_and_is_told_apart(npu_tests, pytester, policy, outcome, last):
    npu_tests(NPU + LATENCY.format(20, 999) + TEST, client="token_ms=lambda n: 18 + n % 5")
    result = pytester.runpytest(f"--npu-inconclusive={policy}", "--npu-report=report.json", "-rs")
    result.assert_outcomes(**outcome)
    assert "running.py" not in result.stdout.str(), "what is skipped is the test"
    assert records_of(pytester)["test_it.py::test_it"]["category"] == "inconclusive"
    assert last in result.outlines[-1]


def test_an_undecided_verdict_beside_a_failed_one_fails(npu_tests, pytester):
    npu_tests(NPU + LATENCY.format(20, 1) + TEST, client="token_ms=lambda n: 18 + n % 5")
    result = pytester.runpytest("--npu-inconclusive=skip")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ttft_ms: fail*"])


NOT_RUN = {
    "another chip": ("", "chip='Kirin9020'", NPU, "*is a Kirin9020, and the test runs on KirinX90 only*"),
    "a capability": (
        "",
        "",
        NPU.replace(")", ", requires='lora')"),
        "*requires lora (an interface that is not public)*",
    ),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_does_not_apply_is_skipped_counted_and_listed(npu_tests, pytester, name):
    client, device, npu, reason = NOT_RUN[name]
    npu_tests(npu + TEST + "\n" + npu + TEST.replace("test_it", "test_too"), client=client, device=device)
    result = pytester.runpytest("-rs", "--npu-report=report.json")
    result.assert_outcomes(skipped=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"NPU tests not run: 2 (2 × {reason}", f"SKIPPED*test_it.py:*{reason}"])
    assert result.outlines[-1] == "NPU: 2 tests: 2 not run"
    test = records_of(pytester)["test_it.py::test_it"]
    assert (test["outcome"], test["category"]) == ("skipped", "not-run")


@pytest.mark.parametrize("name", NOT_RUN)
def test_required_turns_it_into_a_failure_with_the_reason_first(npu_tests, pytester, name):
    client, device, npu, reason = NOT_RUN[name]
    npu_tests(npu + TEST, client=client, device=device)
    result = pytester.runpytest("--npu-required")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"ERROR test_it.py::test_it - Failed: NPU test did not run: {reason}"])


@pytest.mark.parametrize(
    ("skip", "outcome"),
    [
        ("@pytest.mark.skip(reason='tired')\n" + NPU + TEST, {"errors": 1}),
        (NPU + "def test_it(npu): pytest.skip('tired')\n", {"failed": 1}),
        ("@pytest.mark.xfail\n@pytest.mark.skip(reason='tired')\n" + NPU + TEST, {"errors": 1}),
    ],
)
def test_required_catches_every_kind_of_skip(npu_tests, pytester, skip, outcome):
    npu_tests(skip)
    assert pytester.runpytest().ret == 0
    result = pytester.runpytest("--npu-required")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines(["*NPU test did not run: tired (--npu-required)*"])


def test_a_missing_device_is_an_error_and_never_replaced(npu_tests, pytester):
    npu_tests(
        NPU + TEST + "\n" + NPU + TEST.replace("test_it", "test_too"),
        conftest="def pytest_cannlm_open_device(config, spec): raise DeviceError(f'no device {spec.text} here')\n",
    )
    result = pytester.runpytest("--npu=hdc:ABC", "--npu-report=report.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*DeviceError: no device hdc:ABC here*"])
    result.stdout.fnmatch_lines(["*NPU tests not run: 1 (1 × the device hdc:ABC failed in an earlier test*"])
    tests = records_of(pytester)
    assert {test["category"] for test in tests.values()} == {"environment", "not-run"}
    assert not any(test["simulated"] for test in tests.values())
    assert result.outlines[-1] == "NPU: 2 tests: 1 failed for the environment or device, 1 not run"


@pytest.mark.parametrize("kind", ["hdc", "adb:SERIAL", "local"])
def test_real_devices_say_that_they_cannot_be_driven_yet(npu_tests, pytester, kind):
    npu_tests(NPU + TEST)
    pytester.makeconftest("")
    result = pytester.runpytest(f"--npu={kind}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*DeviceError: this version of pytest-cannlm cannot drive the device '{kind}'*"])


def test_a_device_error_in_the_body_counts_as_environment(npu_tests, pytester):
    npu_tests(NPU + TEST, client="fails={'generate': DeviceError('unplugged')}")
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    assert records_of(pytester)["test_it.py::test_it"]["category"] == "environment"
    result.stdout.fnmatch_lines([">*npu.chat(*", "E*DeviceError: unplugged"])
    assert "npu.py" not in result.stdout.str(), "the traceback ends in the test"


def test_a_good_package_that_the_gate_refuses_is_an_error_with_its_explanation(npu_tests, pytester):
    npu_tests(
        NPU + TEST,
        device="cann='6.1.1.0'",
        client="gate=lambda p, t: (_ for _ in ()).throw(GateRefusal('no', code='CANN_VERSION_MISMATCH'))",
    )
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(errors=1)
    assert records_of(pytester)["test_it.py::test_it"]["category"] == "judged"


def test_too_long_a_text_is_an_overflow_whatever_the_engine_returns(npu_tests, pytester):
    npu_tests(NPU + "def test_it(npu): npu.generate('word ' * 255)\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*KVCacheOverflow: *found: 766 + 4 tokens, 769 positions*; expected: at most 256*"])


def test_user_text_does_not_become_special_tokens(npu_tests, pytester):
    npu_tests(
        NPU
        + "def test_it(npu):\n"
        + "    special = next(iter(npu.run.tokenizer.special_tokens))\n"
        + "    npu.chat(f'a {special} b', special_tokens=True)\n"
        + "    npu.chat(f'a {special} b')\n"
    )
    result = pytester.runpytest()
    result.stdout.fnmatch_lines([">*npu.chat(f'a {special} b')", "E*UsageError: the text spells special tokens*"])


def test_misspelled_sampling_arguments_are_refused(npu_tests, pytester):
    npu_tests(NPU + "def test_it(npu): npu.chat('Hi', temprature=0.5)\n")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["E*UsageError: unknown argument 'temprature'; did you mean 'temperature'*"])


def test_state_is_reset_before_every_test_and_nothing_is_loaded_twice(npu_tests, pytester):
    npu_tests(
        NPU + TEST + "\n" + NPU + TEST.replace("test_it", "test_too"),
        conftest="def pytest_unconfigure(config): print('log', *CLIENT.log)\n",
    )
    result = pytester.runpytest("-s")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*log load reset generate memory reset reset generate memory"])


def test_fixtures_work_with_given_and_in_wider_scopes(npu_tests, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")
    npu_tests(
        "from hypothesis import given, settings, strategies as st\n"
        "@pytest.fixture(scope='module')\n"
        "def warm(npu, npu_device, npu_package, onnx_reference): return npu.chat('warm')\n"
        + NPU
        + "@settings(max_examples=5, database=None)\n"
        "@given(st.sampled_from(['a', 'b']))\n"
        "def test_it(npu, npu_device, npu_package, onnx_reference, warm, text):\n"
        "    assert npu.chat(text).text == warm.text\n"
        "    assert npu_device.info.chip == 'KirinX90'\n"
        "    assert (npu_package.folder / 'executor.json').is_file()\n"
        "    assert npu_package.manifest['build']['scheme'] == 'w4a16'\n"
        "    assert onnx_reference.logits([1, 2]).shape == (2, 512)\n"
        "    assert onnx_reference.logits('a b', against='quantized').shape[1] == 512\n"
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_the_package_follows_the_parameter(npu_tests, pytester):
    npu_tests(
        "@pytest.mark.npu(**NPU, scheme=['w4a16', 'fp16'])\n"
        "def test_it(npu, npu_package, npu_variant): "
        "assert npu_package.manifest['build']['scheme'] == npu_variant.chosen['scheme']\n"
    )
    pytester.runpytest().assert_outcomes(passed=2)


def test_tests_of_one_package_follow_each_other(npu_tests, pytester):
    fp16, w4 = "@pytest.mark.npu(**NPU, scheme='fp16')\n", NPU
    npu_tests(
        f"{w4}def test_a(): ...\n{fp16}def test_b(): ...\ndef test_plain(): ...\n"
        f"{w4}def test_c(): ...\n{fp16}def test_d(): ...\n"
    )
    result = pytester.runpytest("--collect-only", "-q")
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert names == ["test_a", "test_c", "test_plain", "test_b", "test_d"]


def test_a_fixture_without_the_marker_says_what_is_missing(npu_tests, pytester):
    npu_tests("def test_it(npu): npu.chat('Hi')\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*UsageError: no test with an npu marker is running. Put @pytest.mark.npu(model=...)*"]
    )


def test_third_parties_can_judge_too(npu_tests, pytester):
    npu_tests(
        NPU + TEST,
        conftest=(
            "from pytest_cannlm.measure.figures import Verdict\n"
            "def pytest_cannlm_judge(item, run):\n"
            "    return [Verdict('fail', None, 'house_rule', None, '', 'lower', None, 'too polite', '', 'conftest')]\n"
        ),
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["house_rule: fail: too polite*"])


def test_what_is_not_npu_s_is_left_alone(npu_tests, pytester):
    npu_tests("def test_it(): ...\n@pytest.mark.skip\ndef test_skipped(): ...\n")
    result = pytester.runpytest("--npu-required", "--npu-report=report.json")
    result.assert_outcomes(passed=1, skipped=1)
    assert report_of(pytester)["tests"] == []


def test_a_report_that_cannot_be_written_fails_the_run(npu_tests, pytester):
    npu_tests(NPU + TEST)
    pytester.path.joinpath("file").write_text("")
    result = pytester.runpytest("--npu-report=file/report.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: the report cannot be written*"])


def properties_of(path):
    """Properties of every test case by its name, and those of the suite, as a JUnit library reads them."""
    suites = list(junitparser.JUnitXml.fromfile(str(path)))
    cases = {
        case.name: [(p.name, p.value) for p in case.child(junitparser.Properties) or ()]
        for suite in suites
        for case in suite
    }
    return cases, {p.name: p.value for suite in suites for p in suite.properties()}


@pytest.mark.parametrize("family", ["xunit1", "xunit2", "legacy"])
@pytest.mark.parametrize("parallel", [[], ["-n2"]], ids=["serial", "parallel"])
def test_junit_holds_figures_and_verdicts_in_every_mode(npu_tests, pytester, family, parallel):
    npu_tests(
        NPU
        + LATENCY.format(99, 999)
        + "@pytest.mark.memory_ceiling(peak='200MiB')\n"
        + TEST
        + "def test_plain(): ...\n"
    )
    result = pytester.runpytest_subprocess("--junitxml=out.xml", "-o", f"junit_family={family}", *parallel)
    assert result.ret == 0
    cases, suite = properties_of(pytester.path / "out.xml")
    assert cases["test_plain"] == []
    facts = dict(cases["test_it"])
    assert len(facts) == len(cases["test_it"]), "no property twice"
    assert facts["cannlm.chip"] == "KirinX90"
    assert facts["cannlm.cann"] == "6.1.1.0"
    assert facts["cannlm.simulated"] == "true"
    assert facts["cannlm.decode_ms.verdict"] == "pass"
    assert facts["cannlm.decode_ms.value"] == "20.0"
    assert facts["cannlm.decode_ms.kind"] == "modelled"
    assert float(facts["cannlm.peak.value"]) == 150 * 2**20
    assert suite["cannlm.device0.chip"] == "KirinX90"


def test_strict_readers_get_no_properties(npu_tests, pytester):
    npu_tests(NPU + LATENCY.format(99, 999) + TEST)
    pytester.runpytest("--junitxml=out.xml", "--npu-no-junit").assert_outcomes(passed=1)
    assert properties_of(pytester.path / "out.xml") == ({"test_it": []}, {})


def test_parallel_and_serial_runs_report_the_same(npu_tests, pytester):
    npu_tests(
        NPU + LATENCY.format(99, 999) + TEST
        + "\n@pytest.mark.npu(**NPU, scheme=['fp16', 'w8a16'])\ndef test_fan(npu): npu.chat('Hi')\n"
        + "\n@pytest.mark.npu(**NPU, requires='lora')\ndef test_not(npu): ...\n"
    )  # fmt: skip
    reports = []
    for arguments in ([], ["-n2"], ["-n2", "--dist=loadfile"]):
        result = pytester.runpytest_subprocess("--npu-report=report.json", *arguments)
        result.assert_outcomes(passed=3, skipped=1)
        assert result.outlines[-1] == "NPU: 4 tests: 1 judged, 2 ran without a limit, 1 not run"
        report = report_of(pytester)
        for test in report["tests"]:
            del test["duration_s"]
        reports.append((report["tests"], report["devices"]))
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.parametrize("odd", ["你好，世界", "🦊", "<b>&]]>", "nul\0", "a\x1b[31m", "\ud800", "x" * 500], ids=ascii)
def test_odd_ids_and_texts_survive_every_report(npu_tests, pytester, odd):
    npu_tests(
        "@pytest.mark.parametrize('prompt', [" + ascii(odd) + "])\n" + NPU + LATENCY.format(1, 999)
        + "def test_it(npu, prompt):\n    print(prompt)\n    npu.generate('x')\n"
    )  # fmt: skip
    result = pytester.runpytest("--junitxml=out.xml", "--npu-report=report.json")
    result.assert_outcomes(failed=1)
    (test,) = report_of(pytester)["tests"]
    assert test["nodeid"].startswith("test_it.py::test_it[")
    cases, _ = properties_of(pytester.path / "out.xml")
    assert len(cases) == 1


@pytest.mark.parametrize("fixture", ["npu", "npu_device", "npu_package", "onnx_reference"])
def test_a_fixture_of_ours_without_the_marker_is_a_failure_although_nothing_was_asked(npu_tests, pytester, fixture):
    npu_tests(f"def test_it({fixture}): ...\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*the test uses {fixture}* but has no npu marker*"])


def test_a_fixture_of_the_same_name_is_left_alone(npu_tests, pytester):
    own = "import pytest\n@pytest.fixture\ndef npu_device(): return 1\ndef test_own(npu_device): ...\n"
    npu_tests(own + NPU + TEST)
    pytester.runpytest().assert_outcomes(passed=2)


@pytest.mark.parametrize(("policy", "outcome"), [("skip", "skipped"), ("xfail", "xfailed"), ("fail", "failed")])
def test_the_policy_for_inconclusive_verdicts_holds_for_parity_too(npu_tests, pytester, policy, outcome):
    npu_tests(
        NPU + "@pytest.mark.parity(top1=0.5, tokens=64)\ndef test_it(npu): ...\n",
        reference="noise=0.4",
        client="capabilities=['logits']",
    )
    result = pytester.runpytest(f"--npu-inconclusive={policy}")
    result.assert_outcomes(**{outcome: 1})
    assert result.outlines[-1] == "NPU: 1 tests: 1 inconclusive"


def test_an_autouse_fixture_that_takes_npu_leaves_plain_tests_alone(npu_tests, pytester):
    own = "import pytest\n@pytest.fixture(autouse=True)\ndef clean(npu): yield\ndef test_plain(): ...\n"
    npu_tests(own + NPU + TEST)
    pytester.runpytest().assert_outcomes(passed=2)
