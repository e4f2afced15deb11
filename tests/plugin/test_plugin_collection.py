"""Markers at collection: every mistake is an error with file, line, signature and nearest name, device or not."""

import pytest

MARK = "@pytest.mark."
NPU = f"{MARK}npu(**NPU)\n"
TEST = "def test_it(npu): ...\n"

MISTAKES = {
    "unknown argument": (f"{MARK}npu(latency_ms_per_tokn=50)", ["has no argument 'latency_ms_per_tokn'"]),
    "near miss": (f"{MARK}npu(modle='m')", ["did you mean 'model'"]),
    "positional": (f"{MARK}npu(50)", ["takes keyword arguments only, found 50"]),
    "without call": (f"{MARK}npu", ["names no model"]),
    "zero limit": (f"{NPU}{MARK}token_latency(decode_ms=0)", ["decode_ms=0", "above 0"]),
    "negative limit": (f"{NPU}{MARK}token_latency(decode_ms=-1)", ["decode_ms=-1"]),
    "nan limit": (f"{NPU}{MARK}token_latency(decode_ms=float('nan'))", ["decode_ms=nan"]),
    "true limit": (f"{NPU}{MARK}token_latency(decode_ms=True)", ["decode_ms=True"]),
    "text limit": (f"{NPU}{MARK}token_latency(decode_ms='fifty')", ["decode_ms='fifty'"]),
    "no limit": (f"{NPU}{MARK}token_latency(decode_ms=None)", ["limits nothing"]),
    "bare size": (f"{NPU}{MARK}memory_ceiling(peak=400)", ["peak=400", "unit"]),
    "unprovable percentile": (f"{NPU}{MARK}token_latency(decode_ms=9, p=99)", ["299 generations"]),
    "unknown metric": (f"{NPU}{MARK}parity(kl_men=0.1)", ["did you mean 'kl_mean'"]),
    "unknown profile": (f"{NPU}{MARK}parity(profile='w4')", ["knows no profile 'w4'"]),
    "two on one function": (f"{NPU}{NPU}", ["marker npu stands twice on one function"]),
    "limit without npu": (f"{MARK}token_latency(decode_ms=9)", ["token_latency needs the marker npu"]),
    "baseline": (f"{NPU}{MARK}token_latency(decode_ms=9, max_regression='5%')", ["max_regression is not available"]),
    "nowhere to fall": (f"{NPU}{MARK}falls_back(to='cpu')", ["to='cpu'", "expected cloud"]),
    "misspelled marker": (f"{NPU}{MARK}token_latencyy(decode_ms=9)", ["did you mean 'token_latency'"]),
    "nothing wrong with the copy": (f"{NPU}{MARK}refuses_load()", ["exactly one of"]),
    "unknown chip": (f"{MARK}npu(**NPU, chips='KirinX09')", ["did you mean 'KirinX90'"]),
    "no version": (f"{NPU}{MARK}refuses_load(cann='6.O.1.0')", ["four numbers"]),
    "unknown code": (f"{NPU}{MARK}refuses_load(cann='6.0.1.0', error='CHIP_MISMATHC')", ["'CHIP_MISMATCH'"]),
    "few positions": (f"{NPU}{MARK}parity(profile='w4a16', tokens=100)", ["a profile needs 512"]),
    "model is not text": (f"{MARK}npu(model=7)", ["model=7"]),
}


@pytest.mark.parametrize("arguments", [["--collect-only"], []], ids=["collect-only", "run"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_usage_error_with_its_place(npu_tests, pytester, name, arguments):
    marks, expected = MISTAKES[name]
    npu_tests(f"{marks}\n{TEST}")
    result = pytester.runpytest(*arguments, "-Wdefault")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(errors) == 1
    assert errors[0].startswith("ERROR: test_it.py:4: test_it: ")
    assert "@pytest.mark." in errors[0], "the signature is quoted"
    for text in expected:
        assert text in errors[0]


def test_all_mistakes_are_shown_at_once(npu_tests, pytester):
    npu_tests(f"{MARK}npu(modle='m')\ndef test_a(): ...\n\n{NPU}{MARK}parity(top1=95)\ndef test_b(): ...\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: test_it.py:4: test_a: *", "ERROR: test_it.py:7: test_b: *"])


def test_mistakes_are_readable_with_xdist(npu_tests, pytester):
    npu_tests(f"{MARK}npu(modle='m')\n{TEST}")
    result = pytester.runpytest_subprocess("-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert text.count("ERROR: test_it.py:4: test_it: marker npu has no argument 'modle'; did you mean 'model'?") == 1
    assert "INTERNALERROR" not in text


def test_a_marker_on_a_fixture_is_an_error(npu_tests, pytester):
    npu_tests(f"@pytest.fixture\n{MARK}npu(**NPU)\ndef thing(): ...\n\ndef test_it(thing): ...\n")
    result = pytester.runpytest("-Wdefault")
    if pytest.version_tuple >= (9,):
        assert result.ret != 0
        result.stdout.fnmatch_lines(["*Marks cannot be applied to fixtures*"])
    else:
        result.stdout.fnmatch_lines(["*Marks applied to fixtures have no effect*"])


def test_misspelled_selection_names_the_marker(npu_tests, pytester):
    npu_tests(NPU + TEST)
    result = pytester.runpytest("-m", "npuu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: -m 'npuu' selects no test: *did you mean 'npu'*"])


def test_a_selection_of_other_markers_is_left_alone(npu_tests, pytester):
    npu_tests(NPU + TEST)
    assert pytester.runpytest("-m", "gpu").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_function_overrides_class_overrides_module_argument_by_argument(npu_tests, pytester):
    npu_tests(
        "pytestmark = [pytest.mark.npu(**NPU), pytest.mark.token_latency(decode_ms=9, ttft_ms=999)]\n"
        "@pytest.mark.token_latency(decode_ms=8)\n"
        "class TestIt:\n"
        "    @pytest.mark.token_latency(p=90)\n"
        "    def test_it(self): ...\n"
    )
    result = pytester.runpytest("--collect-only", "--npu-explain")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*test_it.py::TestIt::test_it:",
            "*npu: model=*tiny-llama' (module), context=256 (module)",
            "*token_latency: decode_ms=8.0 (class TestIt), ttft_ms=999.0 (module), p=90.0 (function)",
        ]
    )


def test_a_derived_class_overrides_its_base(npu_tests, pytester):
    npu_tests(
        "@pytest.mark.npu(**NPU)\n"
        "class Base:\n"
        "    def test_it(self): ...\n"
        "@pytest.mark.npu(scheme='fp16')\n"
        "class TestDerived(Base): ...\n"
    )
    result = pytester.runpytest("--collect-only", "--npu-explain")
    result.stdout.fnmatch_lines(["*scheme='fp16' (class TestDerived)"])


def test_marks_of_parameters_override_the_function(npu_tests, pytester):
    npu_tests(
        "@pytest.mark.npu(**NPU)\n"
        "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.npu(scheme='fp16'))])\n"
        "def test_it(x): ...\n"
    )
    result = pytester.runpytest("--collect-only", "--npu-explain")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_it[[]2]:", "*scheme='fp16' (parameter)"])


def test_a_list_on_a_parameter_cannot_fan_out(npu_tests, pytester):
    npu_tests(
        "@pytest.mark.npu(**NPU)\n"
        "@pytest.mark.parametrize('x', [pytest.param(2, marks=pytest.mark.npu(scheme=['fp16', 'w8a16']))])\n"
        "def test_it(x): ...\n"
    )
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*a list for scheme where no parameters can be made of it*"])


def ids(result):
    return [line.strip() for line in result.outlines if "::" in line]


def test_lists_become_parameters_with_readable_ids(npu_tests, pytester):
    npu_tests("@pytest.mark.npu(model=['a/b/tiny', 'smollm2-135m'], scheme=['w4a16', 'int8'])\ndef test_it(npu): ...\n")
    result = pytester.runpytest("--collect-only", "-q")
    assert ids(result) == [
        "test_it.py::test_it[tiny-w4a16]",
        "test_it.py::test_it[tiny-w8a16]",
        "test_it.py::test_it[smollm2-135m-w4a16]",
        "test_it.py::test_it[smollm2-135m-w8a16]",
    ]


def test_single_values_leave_the_id_alone(npu_tests, pytester):
    npu_tests(NPU + TEST)
    assert ids(pytester.runpytest("--collect-only", "-q")) == ["test_it.py::test_it"]


def test_kinds_of_devices_are_parameters_and_equal_kinds_a_pool(npu_tests, pytester):
    npu_tests(NPU + TEST)
    result = pytester.runpytest("--collect-only", "-q", "--npu=sim", "--npu=hdc:A", "--npu=sim:kirinx90?seed=1")
    assert ids(result) == ["test_it.py::test_it[sim]", "test_it.py::test_it[hdc]"]


@pytest.mark.parametrize(
    "odd", ["你好，世界", "🦊", "<script>alert(1)</script>", "a]b", "x" * 500, "tab\there", "\u202egnp"]
)
def test_odd_model_names_give_sane_ids(npu_tests, pytester, odd):
    npu_tests(f"@pytest.mark.npu(model=[{odd!r}, 'plain'])\ndef test_it(npu): ...\n")
    result = pytester.runpytest("--collect-only", "-q")
    assert result.ret == 0
    found = ids(result)
    assert len(found) == 2
    assert found[1] == "test_it.py::test_it[plain]"
    assert all(len(line) < 400 for line in found)


def test_sets_fan_out_in_one_order_whatever_the_hash_seed(npu_tests, pytester, monkeypatch):
    npu_tests(
        "@pytest.mark.npu(model={'a', 'b', 'c', 'd', 'e'}, chips={'KirinX90', 'Kirin9020'})\ndef test_it(npu): ...\n"
    )
    seen = set()
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        seen.add(tuple(ids(pytester.runpytest_subprocess("--collect-only", "-q"))))
    assert seen == {tuple(f"test_it.py::test_it[{name}]" for name in "abcde")}


def test_collecting_touches_no_device_no_model_and_no_network(npu_tests, pytester):
    npu_tests(
        "@pytest.mark.npu(model='no/such/model')\n@pytest.mark.parity(against='no/such')\ndef test_it(npu): ...\n",
        conftest=(
            "import socket\n"
            "def pytest_cannlm_open_device(config, spec): raise AssertionError('device')\n"
            "def pytest_cannlm_find_model(config, model): raise AssertionError('model')\n"
            "def no_network(*_): raise AssertionError('network')\n"
            "socket.socket.connect = no_network\n"
        ),
    )
    result = pytester.runpytest_subprocess("--collect-only", "-q", "--npu=hdc:NOT-THERE")
    assert result.ret == 0
    assert ids(result) == ["test_it.py::test_it"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--npu=simm"], "unknown device kind 'simm'; did you mean 'sim'"),
        (["--npu=sim:kirin99"], "unknown chip"),
        (["--npu=sim?camn=6.0.1.0"], "unknown option 'camn'"),
        (["--npu-inconclusive=ignore"], "--npu-inconclusive"),
        (["--npu-baseline=x"], "--npu-baseline"),
        (["--npu-update-baseline"], "--npu-update-baseline"),
    ],
)
def test_wrong_options_are_usage_errors(npu_tests, pytester, arguments, expected):
    npu_tests(NPU + TEST)
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert expected in result.stderr.str()


def test_wrong_settings_elsewhere_name_their_place(npu_tests, pytester, monkeypatch):
    npu_tests(NPU + TEST)
    monkeypatch.setenv("CANNLM_INCONCLUSIVE", "ignore")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "CANNLM_INCONCLUSIVE: --npu-inconclusive cannot be 'ignore'" in result.stderr.str()


def test_every_place_of_a_setting_is_read(npu_tests, pytester, monkeypatch):
    npu_tests(NPU + TEST)
    pytester.makeini("[pytest]\nnpu_cann_policy = off\nnpu_required = true\nnpu = sim:kirinx90?seed=1\n")
    pytester.path.joinpath("cannlm.toml").write_text('cann_unknown = "load"\n')
    monkeypatch.setenv("CANNLM_REPORT", "out.json")
    result = pytester.runpytest("--collect-only", "--npu-inconclusive=skip", "--npu-explain")
    result.stdout.fnmatch_lines(
        [
            "npu: sim:kirinx90?seed=1 (simulated: its figures are modelled); CANN policy off, NPU tests are required",
            "*--npu = sim:kirinx90?seed=1  (pytest's ini)",
            "*--npu-required = yes  (pytest's ini)",
            "*--npu-report = *out.json  (CANNLM_REPORT)",
            "*--npu-inconclusive = skip  (command line)",
            "*--npu-cann-policy = off  (pytest's ini)",
            "*--npu-cann-unknown = load  (cannlm.toml)",
        ]
    )


@pytest.mark.parametrize("how", ["ini", "conftest"])
def test_another_project_s_marker_of_the_same_name_is_left_alone(npu_tests, pytester, how):
    def run(source):
        if how == "ini":
            pytester.makeini("[pytest]\nmarkers =\n    parity(kind): of GPUs\n")
            npu_tests(source)
        else:
            add = "config.addinivalue_line('markers', 'parity: of GPUs')"
            npu_tests(source, conftest=f"def pytest_configure(config): {add}\n")
        return pytester.runpytest("--strict-markers")

    theirs = f"{MARK}parity('gpu')\ndef test_theirs(): ...\n"
    result = run(theirs)
    assert result.ret == 0, result.stdout.str()
    result.assert_outcomes(passed=1)
    beside_ours = run(f"{theirs}{MARK}parity('gpu')\n{MARK}token_latency(decode_ms=9)\ndef test_ours(): ...\n")
    assert beside_ours.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_theirs" not in beside_ours.stderr.str()
    assert run(f"{NPU}{MARK}parity('gpu')\ndef test_it(npu): ...\n").ret == pytest.ExitCode.USAGE_ERROR
