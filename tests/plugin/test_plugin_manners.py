"""A project that does not use the plugin, or switches pytest's own plugins off, does not notice it."""

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest

FORBIDDEN = {
    "adbutils",
    "typer",
    "platformdirs",
    "tokenizers",
    "numpy",
    "safetensors",
    "gguf",
    "httpx",
    "http.server",
    "inotify_simple",
    "openai",
    "onnxruntime",
    "psutil",
    "filelock",
    "jinja2",
    "rich",
    "onnx",
}
OURS = {
    f"pytest_cannlm{name}"
    for name in ("", ".errors", ".fixtures", ".plugin", ".plugin.names", ".plugin.options", ".settings")
}
OURS_WITH_HOOKS = OURS | {"pytest_cannlm.hookspecs"}

REPORT_MODULES = """
import json, sys
def pytest_unconfigure(config):
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""
PLAIN = "import pytest\n@pytest.fixture\ndef thing(): return 1\ndef test_it(thing): assert thing\n"


@pytest.fixture
def clean(pytester, monkeypatch):
    """Only our plugin beside pytest's own ones."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in list(os.environ):
        if name.startswith("CANNLM_"):
            monkeypatch.delenv(name)
    return ["-p", "pytest_cannlm.plugin"]


@pytest.mark.parametrize("arguments", [[], ["--collect-only"], ["-n0"]], ids=str)
def test_an_unused_plugin_imports_nothing_but_a_few_small_modules(pytester, clean, arguments):
    pytester.makeconftest(REPORT_MODULES)
    pytester.makepyfile(PLAIN)
    extra = ["-p", "xdist"] if arguments == ["-n0"] else []
    assert pytester.runpytest_subprocess(*clean, *extra, *arguments).ret == 0
    loaded = set(json.loads(pytester.path.joinpath("modules.json").read_text()))
    assert {name for name in loaded if name.startswith("pytest_cannlm")} == OURS_WITH_HOOKS
    assert not loaded & FORBIDDEN


def test_loading_the_plugin_imports_only_the_standard_library_and_pytest(pytester):
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import pytest_cannlm.plugin\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))\n"
    )
    result = pytester.run(sys.executable, "-c", code)
    assert result.outlines == ["pytest_cannlm"]


def test_nothing_is_imported_from_pytest_s_private_package():
    import pytest_cannlm

    sources = list(Path(pytest_cannlm.__file__).parent.rglob("*.py"))
    assert sources
    private = re.compile(r"(from|import) +_pytest\b")
    assert [source for source in sources if private.search(source.read_text(encoding="utf-8"))] == []


SWITCHES = [
    ["-q"],
    ["--collect-only"],
    ["--fixtures"],
    ["--markers"],
    ["--help"],
    ["--version"],
    ["--setup-plan"],
    ["-p", "no:terminal"],
    ["-p", "no:junitxml"],
    ["-p", "no:cacheprovider"],
    ["-p", "no:capture"],
    ["-p", "no:skipping"],
    ["-p", "no:logging"],
    ["--strict-markers", "--strict-config"],
]


@pytest.mark.parametrize("arguments", [*SWITCHES, ["-p", "no:cannlm"]], ids=" ".join)
def test_every_switch_works_where_the_plugin_is_not_used(pytester, arguments):
    pytester.makepyfile(PLAIN)
    check_switch(pytester, arguments)


@pytest.mark.parametrize("arguments", SWITCHES, ids=" ".join)
def test_every_switch_works_with_npu_tests(npu_tests, pytester, arguments):
    npu_tests("@pytest.mark.npu(**NPU)\n@pytest.mark.token_latency(decode_ms=99)\ndef test_it(npu): npu.chat('Hi')\n")
    check_switch(pytester, arguments)


def check_switch(pytester, arguments):
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_session_without_npu_tests_sees_no_line_of_ours(pytester):
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 0
    shown = [line for line in result.outlines if not line.startswith(("plugins:", "rootdir:"))]
    assert not [line for line in shown if "npu:" in line.lower() or "cannlm" in line.lower()]


@pytest.mark.parametrize(
    "arguments",
    [["-p", "cannlm"], ["-p", "cannlm", "-p", "cannlm"], ["-p", "pytest_cannlm.plugin"], ["-p", "names_it"]],
    ids=" ".join,
)
def test_loaded_twice_is_loaded_once(npu_tests, pytester, arguments):
    npu_tests("@pytest.mark.npu(**NPU)\n@pytest.mark.token_latency(decode_ms=99)\ndef test_it(npu): npu.chat('Hi')\n")
    pytester.makepyfile(names_it="pytest_plugins = ['pytest_cannlm.plugin']\n")
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    assert sum(line.startswith("NPU: 1 tests: 1 judged") for line in result.outlines) == 1


def test_without_autoload_the_module_name_works(npu_tests, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    npu_tests("@pytest.mark.npu(**NPU)\ndef test_it(npu): npu.chat('Hi')\n")
    result = pytester.runpytest_subprocess("-p", "pytest_cannlm.plugin")
    assert result.ret == 0
    assert "NPU: 1 tests: 1 ran without a limit" in result.outlines


def test_an_option_of_the_same_name_gets_a_clear_error(pytester):
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--npu', action='store')\n")
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_subprocess()
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert "--npu is an option of pytest-cannlm, and a conftest.py or another plugin registers an option" in text
    assert "Traceback" not in text


def test_a_fixture_of_the_same_name_stays_the_project_s_own(pytester):
    pytester.makepyfile(
        "import pytest\n@pytest.fixture\ndef npu(): return 'own'\ndef test_it(npu): assert npu == 'own'\n"
    )
    assert pytester.runpytest_subprocess().ret == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_read_only_home_is_fine(pytester, monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("CANNLM_CACHE", raising=False)
    pytester.makepyfile(PLAIN)
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0
    assert list(home.iterdir()) == []


def test_help_shows_every_option_in_one_group(pytester):
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(
        ["tests on Kirin NPUs (pytest-cannlm):", "*--npu=DEVICE*", "*--npu-required*", "*--npu-explain*"]
    )


def test_markers_shows_signatures(pytester):
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(
        ["@pytest.mark.token_latency(decode_ms=None, ttft_ms=None, *): limit the time per token*"]
    )


def test_the_names_that_are_loaded_early_are_those_of_the_markers():
    from pytest_cannlm.markers import MARKERS
    from pytest_cannlm.plugin.names import MARKS

    assert list(MARKS) == list(MARKERS)
