"""``falls_back`` and ``cloud_llm`` inside pytest: what passes, what fails and why, and that no NPU is counted."""

import base64
import json
import re
import sys
from pathlib import Path

import pytest
from packages import write_manifest, write_package

NPU = "@pytest.mark.npu(**NPU)\n"
FALLS = "@pytest.mark.falls_back(chip='Kirin9020'{})\n"
APP = """
import os, pathlib, sys
from pytest_cannlm.fallback import CloudModel

CLOUD = CloudModel.from_environment(os.environ)
PACKAGE = pathlib.Path(os.environ["CANNLM_PACKAGE"])

def good(*arguments):
    assert os.environ["CANNLM_CHIP"] == "Kirin9020" and os.environ["CANNLM_FALLBACK"] == "cloud"
    print(CLOUD.ask("Hello").text)
"""
BODIES = {
    "opens": "good(); (PACKAGE / 'executor.json').read_bytes()",
    "lists": "good(); list(PACKAGE.iterdir())",
    "the manifest": "good(); (PACKAGE.parent / 'manifest.json').read_bytes()",
    "never asks": "print('no need')",
    "another address": (
        "import dataclasses, re; address = re.sub('/run-[0-9a-f]+', '', CLOUD.base_url); "
        "dataclasses.replace(CLOUD, base_url=address).ask('Hello')"
    ),
    "wrong key": "import dataclasses; dataclasses.replace(CLOUD, key='sk-other').ask('Hello')",
    "fails": "good(); print('last words', file=sys.stderr); sys.exit(3)",
    "hangs": "good(); print('still here', flush=True); import time; time.sleep(60)",
    "crashes": "good(); import signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "cuts the model": "good(); os.truncate(next(PACKAGE.glob('*.omc')), 0)",
    "removes it all": "good(); import shutil; shutil.rmtree(PACKAGE.parent)",
    "shows the key": "good(); print('key:', CLOUD.key)",
    "shows the key in base64": (
        "good(); import base64; print(base64.b64encode(b'user:' + CLOUD.key.encode()).decode())"
    ),
}
"""What apps do wrong; "good" alone is right."""


HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "test-the-fallback.md"


def report_of(pytester):
    return json.loads(pytester.path.joinpath("report.json").read_text(encoding="utf-8"))


def record_of(pytester):
    (record,) = report_of(pytester)["tests"]
    return record


@pytest.fixture
def falling(npu_tests, pytester):
    """Write a test whose app is a process that does this."""

    def write(app="good()", *, body="...", marks="", model=None, **more):
        npu = f"@pytest.mark.npu(model={str(model)!r})\n" if model else NPU
        pytester.makefile(".py", my_app=f"{APP}\n{app}\n")
        falls = FALLS.format(", app=['python', 'my_app.py']")
        npu_tests(f"{marks}{npu}{falls}def test_it(npu, cloud_llm):\n    {body}\n", **more)

    return write


LIMITS = """
@pytest.mark.token_latency(decode_ms=1e-6)
@pytest.mark.memory_ceiling(peak="1B")
@pytest.mark.parity(top1=1.0)
"""


@pytest.mark.parametrize("kind", ["default app", "process", "callable"])
def test_an_app_that_falls_back_passes_via_the_cloud(npu_tests, falling, pytester, kind):
    if kind == "process":
        falling()
    elif kind == "default app":
        npu_tests(NPU + FALLS.format("") + "def test_it(npu, cloud_llm): ...\n")
    else:
        pytester.makefile(".py", my_app=APP + "good()")
        app = "import runpy\ndef app():\n    runpy.run_path('my_app.py')\n"
        npu_tests(app + NPU + FALLS.format(", app=app") + "def test_it(npu): ...\n")
    result = pytester.runpytest("--npu-report=report.json", "--junitxml=junit.xml", "-v")
    assert result.ret == 0
    result.assert_outcomes(passed=1)
    record = record_of(pytester)
    assert (record["outcome"], record["category"], record["chip"]) == ("passed", "fallback", "Kirin9020")
    assert record["served_by"] == ["cloud: cloud-test-model at 127.0.0.1"]
    assert (record["device"], record["cann"], record["simulated"]) == (None, None, False), "nothing ran on a device"
    assert report_of(pytester)["devices"] == []
    assert {verdict["name"]: verdict["outcome"] for verdict in record["verdicts"]} == dict.fromkeys(
        ["package_unopened", "cloud_reached", "app_ended", "key_kept"], "pass"
    )
    assert "passed via the cloud" in record["verdicts"][0]["reason"]
    result.stdout.fnmatch_lines(
        [
            "*test_it PASSED via the cloud*",
            "answered by the cloud: 1 tests; no NPU coverage",
            "*1 passed via the cloud*",
            "NPU: 1 tests: 1 judged on the fallback to the cloud (no NPU coverage)",
        ]
    )
    xml = pytester.path.joinpath("junit.xml").read_text(encoding="utf-8")
    assert '<property name="cannlm.served_by" value="cloud: cloud-test-model at 127.0.0.1"' in xml
    assert '<property name="cannlm.category" value="fallback"' in xml


def test_nothing_is_loaded_and_no_engine_started(falling, pytester):
    falling(conftest="def pytest_unconfigure(config): print('calls', CLIENT.log, CLIENT._loads)\n")
    result = pytester.runpytest("-s")
    result.stdout.fnmatch_lines(["*calls [[]] 0"])


WRONG = {
    "opens": "package_unopened: fail: the app opened the package on Kirin9020: package/executor.json",
    "lists": "package_unopened: fail: the app opened the package on Kirin9020: package",
    "the manifest": "package_unopened: fail: the app opened the package on Kirin9020: manifest.json",
    "never asks": "cloud_reached: fail: no request reached the endpoint",
    "another address": "cloud_reached: fail: no request reached the endpoint",
    "wrong key": "cloud_reached: fail: the endpoint refused what the app asked: HTTP 401",
    "fails": "app_ended: fail: the app ended with status 3 and wrote",
    "hangs": "app_ended: fail: the app did not end within its time*",
    "crashes": "app_ended: fail: the app crashed with SIGSEGV and wrote",
    "cuts the model": ".omc (changed)",
    "removes it all": "package (changed)",
    "shows the key": "key_kept: fail: the app wrote the API key to standard output",
    "shows the key in base64": "key_kept: fail: the app wrote the API key to standard output",
}


@pytest.mark.parametrize("name", WRONG)
def test_every_assertion_can_fail_and_says_why(falling, pytester, name):
    if name == "crashes" and sys.platform == "win32":
        pytest.skip("no signal ends a process there")
    falling(BODIES[name], body="cloud_llm.run_app(timeout=3)" if name == "hangs" else "...")
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([WRONG[name] if "*" in WRONG[name] else f"*{WRONG[name]}*"])
    record = record_of(pytester)
    assert (record["outcome"], record["category"]) == ("failed", "fallback")
    if name == "fails":
        result.stdout.fnmatch_lines(["*| last words"])


def test_not_observable_is_a_failure_and_the_app_runs_once(falling, pytester):
    falling(
        "good(); print('once', file=open('runs.txt', 'a'))",
        conftest=(
            "import pytest_cannlm.harness.fallback as module\n"
            "class Blind:\n"
            "    def __enter__(self): raise NotObservable('not observable: whatever')\n"
            "    def __exit__(self, *_): ...\n"
            "WAS = module.watchers_of\n"
            "def pytest_configure(config): module.watchers_of = lambda *_, **__: [Blind()]\n"
            "def pytest_unconfigure(config): module.watchers_of = WAS\n"
        ),
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*package_unopened: fail: not observable: whatever"])
    assert pytester.path.joinpath("runs.txt").read_text() == "once\n"


def test_nothing_that_an_app_does_reaches_the_package(falling, pytester, tmp_path):
    folder = write_package(tmp_path / "mine" / "package")
    write_manifest(folder.parent / "manifest.json")
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    falling("good(); [os.truncate(file, 0) for file in PACKAGE.parent.rglob('*') if file.is_file()]", model=folder)
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["*package_unopened: fail: *manifest.json (changed)*"])
    assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == before


CALLABLES = {
    "opens": ("PACKAGE.joinpath('executor.json').read_bytes()", "package_unopened: fail: *package/executor.json"),
    "logs": ("logging.getLogger('app').warning(KEY)", "key_kept: fail: the app wrote the API key to its log"),
    "writes": ("os.write(1, KEY.encode())", "key_kept: fail: the app wrote the API key to standard output"),
    "has it written": (
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"OPENAI_API_KEY\"])'])",
        "key_kept: fail: the app wrote the API key to standard output",
    ),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_an_app_in_this_process_is_watched_too(npu_tests, pytester, name):
    does, said = CALLABLES[name]
    app = (
        "import logging, os, pathlib, subprocess, sys\n"
        "from pytest_cannlm.fallback import CloudModel\n"
        "def app():\n"
        "    CloudModel.from_environment(os.environ).ask('Hello')\n"
        "    PACKAGE, KEY = pathlib.Path(os.environ['CANNLM_PACKAGE']), os.environ['OPENAI_API_KEY']\n"
        f"    {does}\n"
    )
    npu_tests(app + NPU + FALLS.format(", app=app") + "def test_it(npu): ...\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{said}"])


def test_a_run_after_the_verdicts_is_an_error(npu_tests, pytester):
    npu_tests(
        "@pytest.fixture\ndef late(cloud_llm):\n    yield\n    cloud_llm.run_app()\n"
        + NPU
        + FALLS.format("")
        + "def test_it(late): ...\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*UsageError: the test has been judged, so what this run of the app does*"])


def test_the_loopback_interface_needs_no_proxy(falling, pytester, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    falling(
        "good(); print(os.environ['NO_PROXY'], os.environ['no_proxy'])",
        body=(
            "done = cloud_llm.run_app()\n"
            "    assert 'example.org,127.0.0.1,localhost 127.0.0.1,localhost' in done.stdout"
        ),
    )
    monkeypatch.delenv("no_proxy", raising=False)
    pytester.runpytest().assert_outcomes(passed=1)


def test_nothing_of_a_test_is_left_behind_it(falling, npu_tests, pytester):
    npu_tests(
        NPU + FALLS.format("") + "def test_it(npu): ...\n"
        "def test_next(cloud_llm):\n"
        "    with pytest.raises(Exception, match='no falls_back marker'):\n"
        "        cloud_llm.run_app()\n",
        conftest=(
            "import threading\n"
            "def pytest_unconfigure(config): print('threads', [t.name for t in threading.enumerate()])\n"
        ),
    )
    result = pytester.runpytest("-s")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*1 passed, 1 passed via the cloud*"])
    (threads,) = [line for line in result.outlines if line.startswith("threads")]
    assert "cloud_llm" not in threads


BROKEN_PACKAGES = {
    "no executor.json": lambda folder: (folder / "executor.json").unlink(),
    "a deep executor.json": lambda folder: (folder / "executor.json").write_text("[" * 20_000),
    "no vocabulary": lambda folder: (folder / "tokenizer.json").unlink(),
    "a manifest that is a list": lambda folder: (folder.parent / "manifest.json").write_text("[]"),
    "a manifest that is null": lambda folder: (folder.parent / "manifest.json").write_text("null"),
    "a deep manifest": lambda folder: (folder.parent / "manifest.json").write_text("[" * 20_000),
    "a manifest in UTF-16": lambda folder: (folder.parent / "manifest.json").write_bytes("{}".encode("utf-16")),
    "build is null": lambda folder: (folder.parent / "manifest.json").write_text('{"build": null}'),
    "files is a list": lambda folder: (folder.parent / "manifest.json").write_text('{"files": []}'),
}


@pytest.mark.parametrize("name", BROKEN_PACKAGES)
def test_a_broken_package_is_refused_and_no_traceback(falling, pytester, tmp_path, name):
    folder = write_package(tmp_path / "mine" / "package")
    write_manifest(folder.parent / "manifest.json")
    BROKEN_PACKAGES[name](folder)
    falling(model=folder)
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*GateRefusal: the gate refused the package: PACKAGE_*"])


def test_the_body_can_run_the_app_and_look_at_it(npu_tests, pytester):
    npu_tests(
        NPU
        + FALLS.format("")
        + (
            "def test_it(npu, cloud_llm):\n"
            "    cloud_llm.reply(lambda request: request.texts[0].upper())\n"
            "    done = cloud_llm.run_app('Why so blue?', timeout=30)\n"
            "    assert (done.status, done.stdout.strip()) == (0, 'WHY SO BLUE?')\n"
            "    assert done.answers == ('WHY SO BLUE?',)\n"
            "    assert 'the chip is Kirin9020' in done.stderr\n"
            "    assert len(cloud_llm.requests) == 1 and done.opened == ()\n"
        )
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_prompt_that_does_not_arrive(falling, pytester):
    falling(body="cloud_llm.run_app(sends='Good-bye')")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cloud_reached: fail: what reached the endpoint does not hold the prompt 'Good-bye'"])


RAW = """
import http.client, urllib.parse
def post(body, key):
    url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(url.netloc)
    headers = {"Authorization": f"Bearer {key}"}
    connection.request("POST", url.path + "/chat/completions", body, headers)
    connection.getresponse().read()
    connection.close()
"""
UNEXCUSED = {
    "status": ("good(); sys.exit(3)", "app_ended: fail: the app ended with status 3"),
    "signal": ("post('{}', CLOUD.key); os.abort()", "app_ended: fail: the app crashed with SIGABRT"),
    "wrong key": ("post(GOOD, 'sk-other')", "cloud_reached: fail: the endpoint refused what the app asked: HTTP 401"),
    "nonsense": ("post('nonsense', CLOUD.key)", "cloud_reached: fail: *: HTTP 400"),
    "no question": ("post('{}', CLOUD.key)", "cloud_reached: fail: *: HTTP 400"),
    "the list only": ("import openai; list(openai.OpenAI().models.list())", "cloud_reached: fail: no request reached"),
    "status after a wrong key": ("post(GOOD, 'sk-other'); sys.exit(3)", "app_ended: fail: the app ended with status 3"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="one of them ends by a signal")
@pytest.mark.parametrize("script", ["slow(0.01)", "fail(401)"])
@pytest.mark.parametrize("name", UNEXCUSED)
def test_a_script_excuses_only_what_it_did(falling, pytester, name, script):
    app, said = UNEXCUSED[name]
    if script.startswith("fail") and name in ("status", "the list only"):
        app = f"import contextlib\nwith contextlib.suppress(Exception):\n    {app}"  # told to fail: the app is good
    good = 'GOOD = \'{"model": "cloud-test-model", "messages": [{"role": "user", "content": "x"}]}\'\n'
    falling(RAW + good + app, body=f"cloud_llm.{script}")
    result = pytester.runpytest()
    if script.startswith("fail") and name == "status":
        result.assert_outcomes(passed=1)
        return
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


@pytest.mark.parametrize("script", ["fail(401)", "fail(503)", "cut(1)", "answer_as('cheap')", "slow(60)"])
def test_an_endpoint_that_was_told_to_fail_excuses_the_status(npu_tests, pytester, script):
    more = ", '--timeout=0.5'" if "slow" in script else ""
    npu_tests(
        NPU
        + FALLS.format("")
        + f"def test_it(npu, cloud_llm):\n    cloud_llm.{script}\n"
        + f"    done = cloud_llm.run_app('Hello'{more})\n"
        + "    assert done.status == 3 and 'neither the NPU nor the cloud answered' in done.stderr\n"
    )
    result = pytester.runpytest("--npu-report=report.json")
    assert result.ret == 0, result.stdout.str()
    assert (record_of(pytester)["category"], record_of(pytester)["served_by"]) == ("fallback", [])
    result.stdout.fnmatch_lines(["*= 1 passed without an NPU in *"])
    assert "answered by the cloud" not in result.stdout.str()


def test_limits_from_around_are_not_applied_and_said_so(falling, pytester):
    falling(marks=LIMITS)
    result = pytester.runpytest("--npu-report=report.json")
    assert result.ret == 0
    record = record_of(pytester)
    assert record["not_applied"] == ["token_latency", "memory_ceiling", "parity"]
    assert "not applied, because the cloud answers: token_latency" in record["verdicts"][0]["reason"]
    result.stdout.fnmatch_lines(["  not applied to what the cloud answers: token_latency, memory_ceiling, parity"])


def test_the_example_of_the_documentation(npu_tests, pytester):
    pytest.importorskip("openai")
    app, test, again, *_ = re.findall(
        r"^```python\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    pytester.makefile(".py", my_app=app)
    npu_tests(test.replace('model="smollm2-135m"', "**NPU") + again)
    result = pytester.runpytest()
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["*= 2 passed via the cloud, 1 passed without an NPU in *"])


def test_the_npu_is_not_there(npu_tests, pytester):
    npu_tests(NPU + FALLS.format("") + "def test_it(npu): npu.chat('Hello')\n")
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: nothing is loaded on Kirin9020: the test asserts that the app falls*"])
    assert record_of(pytester)["category"] == "body"


def test_npu_and_fallback_side_by_side(npu_tests, pytester):
    npu_tests(
        NPU
        + FALLS.format("")
        + "def test_cloud(npu): ...\n"
        + NPU
        + "def test_npu(npu): npu.chat('Hello', max_new_tokens=4)\n"
    )
    result = pytester.runpytest("--npu-report=report.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*= 1 passed, 1 passed via the cloud in *"])
    tests = {test["nodeid"].rpartition("::")[2]: test for test in report_of(pytester)["tests"]}
    assert tests["test_npu"]["served_by"] == ["npu: fake"]
    assert (tests["test_npu"]["category"], tests["test_cloud"]["category"]) == ("unlimited", "fallback")
    assert result.outlines[-1].startswith("NPU: 2 tests: ")


@pytest.mark.parametrize(
    ("marks", "body", "served_by"),
    [
        ("", "assert npu.chat('Hello').text == 'x'", ["npu: fake"]),
        ("", "assert not npu", []),
        ("@pytest.mark.parity(kl_mean=9)\n", "...", ["npu: simulated KirinX90 (faithful)"]),
        ("@pytest.mark.refuses_load(cann='6.0.1.0')\n", "...", []),
    ],
    ids=["asked", "not asked", "figures only", "refused at the gate"],
)
def test_every_npu_test_says_who_answered(npu_tests, pytester, marks, body, served_by):
    npu_tests(f"{marks}{NPU}def test_it(npu): {body}\n", client="capabilities=('logits', 'modelled_timing')")
    pytester.runpytest("--npu-report=report.json")
    assert record_of(pytester)["served_by"] == served_by


def test_the_device_s_own_chip_counts(npu_tests, pytester):
    npu_tests(NPU + "@pytest.mark.falls_back\ndef test_it(npu): ...\n", device="chip='Kirin9020'")
    result = pytester.runpytest("--npu-report=report.json")
    assert result.ret == 0, result.stdout.str()
    assert record_of(pytester)["chip"] == "Kirin9020"


def test_a_device_whose_chip_is_on_the_list(npu_tests, pytester):
    npu_tests(NPU + "@pytest.mark.falls_back\ndef test_it(npu): ...\n")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*UsageError: falls_back: KirinX90 is on the test's list of chips*"])


MISTAKES = {
    "on the list": ("falls_back(chip='kirin x90')", "which is one of the npu marker's chips"),
    "refusal": (
        "falls_back(chip='Kirin9020')\n@pytest.mark.refuses_load(cann='6.0.1.0')",
        "cannot stand beside refuses_load",
    ),
    "elsewhere": ("falls_back(to='cpu')", "expected cloud"),
    "one text": ("falls_back(app='my_app.py')", "a list of texts"),
    "no words": ("falls_back(app=[])", "a list of texts"),
    "odd words": ("falls_back(app=['python', 3])", "a list of texts"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_usage_errors(npu_tests, pytester, name):
    marker, said = MISTAKES[name]
    npu_tests(f"{NPU}@pytest.mark.{marker}\ndef test_it(npu): ...\n")
    result = pytester.runpytest("--collect-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_it.py:4: test_it: marker falls_back *{said}*"])


@pytest.mark.parametrize(("device", "refused"), [("sim:kirinx90", True), ("sim:kirin9020", False)])
def test_a_device_that_names_a_chip_of_the_list_is_a_mistake_at_collection(npu_tests, pytester, device, refused):
    npu_tests(NPU + "@pytest.mark.falls_back\ndef test_it(npu): ...\n")
    result = pytester.runpytest("--collect-only", f"--npu={device}")
    assert (result.ret == pytest.ExitCode.USAGE_ERROR) is refused
    if refused:
        result.stderr.fnmatch_lines(["ERROR: *marker falls_back needs chip=: the device sim:kirinx90 is one of *"])


@pytest.mark.parametrize("body", ["...", "cloud_llm.run_app()"])
def test_an_app_that_cannot_be_started(npu_tests, pytester, body):
    npu_tests(NPU + FALLS.format(", app=['no-such-program']") + f"def test_it(npu, cloud_llm):\n    {body}\n")
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: the app cannot be started: *no-such-program*Name a program*"])
    assert "harness" not in result.stdout.str(), "nothing below the test's own line is shown"
    assert record_of(pytester)["error"]["found"] == "no-such-program"


@pytest.mark.parametrize("timeout", ["-1", "0", "float('nan')", "float('inf')", "'1'", "True"])
def test_a_time_limit_that_is_none(npu_tests, pytester, timeout):
    npu_tests(NPU + FALLS.format("") + f"def test_it(npu, cloud_llm):\n    cloud_llm.run_app(timeout={timeout})\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: run_app takes a time limit (field: timeout; found: *"])


BROKEN = {
    "raises": ("lambda request: request.text[-1]", "The scripted reply raised AttributeError: *'text'*"),
    "makes no text": ("lambda request: 3", "The scripted reply made no text but int*"),
}


@pytest.mark.parametrize("run", ["", "; cloud_llm.run_app()"], ids=["after the body", "in the body"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_script_is_the_test_s_mistake(falling, pytester, name, run):
    reply, said = BROKEN[name]
    falling(body=f"cloud_llm.reply({reply}){run}")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*UsageError: the test's own script failed, and not the app: {said}"])
    assert "the endpoint refused" not in result.stdout.str().partition("short test summary")[2]


VERDICTS = {
    "asserts": ("    assert request.texts == ('Good-bye',)\n", "*assert ('Hello',) == ('Good-bye',)"),
    "fails": ("    pytest.fail('another prompt')\n", "*Failed: another prompt"),
}


@pytest.mark.parametrize("run", ["...", "cloud_llm.run_app()"], ids=["after the body", "in the body"])
@pytest.mark.parametrize("name", VERDICTS)
def test_what_a_reply_asserts_fails_the_test(npu_tests, pytester, name, run):
    does, said = VERDICTS[name]
    pytester.makefile(".py", my_app=f"{APP}\nimport contextlib\nwith contextlib.suppress(Exception):\n    good()\n")
    npu_tests(
        f"def reply(request):\n{does}"
        + NPU
        + FALLS.format(", app=['python', 'my_app.py']")
        + f"def test_it(npu, cloud_llm):\n    cloud_llm.reply(reply)\n    {run}\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])
    assert "backend.py" not in result.stdout.str()


def test_what_a_reply_asserts_fails_a_test_without_a_marker_too(npu_tests, pytester):
    npu_tests(
        "import contextlib\n"
        "from pytest_cannlm.fallback import CloudModel\n"
        "def test_it(cloud_llm):\n"
        "    def reply(request):\n"
        "        assert request.texts == ('Good-bye',)\n"
        "    cloud_llm.reply(reply)\n"
        "    with contextlib.suppress(Exception):\n"
        "        CloudModel.from_environment(cloud_llm.environment()).ask('Hello')\n"
        "def test_next(cloud_llm): ...\n"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*assert ('Hello',) == ('Good-bye',)*"])


LATE = """
import os, pathlib, threading, time
from pytest_cannlm.fallback import CloudModel

def asks_again():
    cloud = CloudModel.from_environment(os.environ)
    cloud.ask("Hello")

    def late():
        while not pathlib.Path("next").exists():
            time.sleep(0.01)
        try:
            cloud.ask("Hello")
        except Exception as error:
            pathlib.Path("refused").write_text(str(error))
    threading.Thread(target=late, daemon=True).start()

def never_asks():
    pathlib.Path("next").touch()
    while not pathlib.Path("refused").exists():
        time.sleep(0.01)
"""


def test_a_late_request_of_one_test_does_not_make_the_next_one_pass(npu_tests, pytester):
    npu_tests(
        LATE
        + NPU
        + FALLS.format(", app=asks_again")
        + "def test_one(npu): ...\n"
        + NPU
        + FALLS.format(", app=never_asks")
        + "def test_two(npu): ...\n"
    )
    result = pytester.runpytest("-rA")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*cloud_reached: fail: no request reached the endpoint*", "FAILED *test_two*"])
    assert "HTTP 404" in pytester.path.joinpath("refused").read_text()


RETRIES = """
for attempt in range(3):
    try:
        good()
        break
    except Exception as error:
        print('again:', error, file=sys.stderr)
"""


def test_an_endpoint_that_fails_once_and_then_answers(falling, pytester):
    falling(
        RETRIES,
        body="cloud_llm.fail(503, times=1); cloud_llm.reply('At last.')\n"
        "    done = cloud_llm.run_app()\n"
        "    assert (done.status, done.stdout.strip()) == (0, 'At last.')\n"
        "    assert [request.status for request in done.requests] == [503, 200]",
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 passed via the cloud*"])


def test_a_failing_body_shows_what_the_app_did(falling, pytester):
    falling(
        "print('the key is', os.environ['OPENAI_API_KEY'], file=sys.stderr); sys.exit(3)",
        body="done = cloud_llm.run_app(); assert done.status == 0",
    )
    result = pytester.runpytest("--npu-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- The app under test -*",
            "run 1 ended with status 3 after * s; answers of the endpoint: none; wrote",
            "    | the key is [*][*][*]",
            "package_unopened: pass: *",
            "cloud_reached: fail: no request reached the endpoint",
        ]
    )
    assert record_of(pytester)["category"] == "body"


def test_run_app_without_the_marker_says_what_is_missing(npu_tests, pytester):
    npu_tests("def test_it(cloud_llm):\n    cloud_llm.run_app()\n")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *no falls_back marker*Put falls_back(*"])
    assert "harness" not in result.stdout.str()


def test_the_key_is_not_in_an_error_of_the_report(npu_tests, pytester):
    npu_tests(
        NPU
        + FALLS.format("")
        + "def test_it(npu, cloud_llm):\n"
        + "    from pytest_cannlm.errors import CloudError\n"
        + "    raise CloudError(f'refused {cloud_llm.api_key}')\n"
    )
    pytester.runpytest("--npu-report=report.json", "--junitxml=junit.xml").assert_outcomes(failed=1)
    assert record_of(pytester)["error"]["message"] == "refused ***"
    xml = pytester.path.joinpath("junit.xml").read_text(encoding="utf-8")
    assert 'name="cannlm.error.message" value="refused ***"' in xml
    assert "sk-test" not in xml


def test_the_fixture_needs_no_marker_and_forgets_between_tests(pytester, npu_tests):
    npu_tests(
        "import http.client\n"
        "@pytest.mark.parametrize('again', [1, 2])\n"
        "def test_it(cloud_llm, again):\n"
        "    assert cloud_llm.requests == () and cloud_llm.script.fail is None\n"
        "    cloud_llm.fail(500)\n"
        "    port = int(cloud_llm.base_url.split(':')[2].partition('/')[0])\n"
        "    connection = http.client.HTTPConnection('127.0.0.1', port)\n"
        "    connection.request('GET', '/v1/models', headers={'Authorization': f'Bearer {cloud_llm.api_key}'})\n"
        "    assert connection.getresponse().status == 500\n"
        "    connection.close()\n"
        "    assert len(cloud_llm.requests) == 1\n"
        "def test_app(cloud_llm):\n"
        "    with pytest.raises(Exception, match='no falls_back marker'):\n"
        "        cloud_llm.run_app()\n"
    )
    pytester.runpytest().assert_outcomes(passed=3)


def test_the_key_is_in_nothing_that_is_written(npu_tests, pytester):
    npu_tests(
        "import base64, logging, pathlib, warnings\n"
        "def test_shown(cloud_llm):\n"
        "    print('printed', str(cloud_llm.api_key))\n"
        "    plain = str(cloud_llm.api_key)\n"
        "    pathlib.Path('key.txt').write_text(plain)\n"
        "    assert plain not in f'said {plain}'\n"
        "def test_raised(cloud_llm):\n"
        "    raise RuntimeError(str(cloud_llm.api_key))\n"
        "def test_expected(cloud_llm):\n"
        "    pytest.xfail(f'expected {cloud_llm.api_key}')\n"
        "def test_warned(cloud_llm):\n"
        "    warnings.warn(f'warned {cloud_llm.api_key}')\n"
        "class Of(UserWarning):\n"
        "    def __init__(self, key): self.key = key\n"
        "    def __str__(self): return f'kept {self.key}'\n"
        "def test_warned_otherwise(cloud_llm):\n"
        "    warnings.warn(Of(str(cloud_llm.api_key)))\n"
        "def test_a_property(cloud_llm, record_property):\n"
        "    record_property('text', f'text {cloud_llm.api_key}')\n"
        "    record_property('raw', str(cloud_llm.api_key).encode())\n"
        "    record_property('number', 3)\n"
        "def test_encoded(cloud_llm):\n"
        "    raise RuntimeError(base64.b64encode(f'user:{cloud_llm.api_key}'.encode()))\n"
    )
    shown = ("-l", "-vv", "-rA", "-Wdefault", "-ojunit_family=xunit1")
    result = pytester.runpytest("--junitxml=junit.xml", "--npu-report=report.json", *shown)
    result.assert_outcomes(failed=3, xfailed=1, passed=3, warnings=2)
    key = pytester.path.joinpath("key.txt").read_text()
    assert len(key) > 20
    assert "FAILED test_it.py::test_raised - RuntimeError: ***" in result.stdout.str()
    assert "printed ***" in result.stdout.str()
    assert "warned ***" in result.stdout.str()
    assert "kept ***" in result.stdout.str()
    xml = pytester.path.joinpath("junit.xml").read_text(encoding="utf-8")
    assert '<property name="text" value="text ***"' in xml
    assert '<property name="number" value="3"' in xml
    for text in (result.stdout.str(), xml, pytester.path.joinpath("report.json").read_text(encoding="utf-8")):
        assert key not in text
        assert base64.b64encode(f"user:{key}".encode()).decode()[:-8] not in text


def test_workers_of_a_parallel_run_count_it_too(falling, pytester):
    falling()
    result = pytester.runpytest_subprocess("-n2", "-p", "xdist", "--npu-report=report.json")
    assert result.ret == 0
    assert record_of(pytester)["category"] == "fallback"
    result.stdout.fnmatch_lines(["*1 passed via the cloud*"])


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_while_the_app_runs_ends_cleanly(falling, pytester):
    falling("pathlib.Path('started').touch(); import time; time.sleep(60)")
    pytester.makefile(
        ".py",
        driver=(
            "import os, pathlib, signal, subprocess, sys, time\n"
            # a job in the background of a script inherits that the signal is ignored
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "run = subprocess.Popen([sys.executable, '-m', 'pytest', '-q'])\n"
            "while not pathlib.Path('started').exists(): time.sleep(0.05)\n"
            "run.send_signal(signal.SIGINT)\n"
            "print('exit', run.wait(20))\n"
        ),
    )
    result = pytester.run(sys.executable, "driver.py", timeout=60)
    assert result.outlines[-1] == "exit 2"
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
