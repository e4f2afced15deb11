"""--npu-version-pairs: a list that is wrong is wrong use, told before a test runs, wherever it was named."""

import pytest

TEST = "@pytest.mark.npu(**NPU)\ndef test_it(npu):\n    npu.chat('Hello')\n"
GOOD = '[[pairs]]\nversions = ["6.1.1.0", "108.631.120.010"]\nsource = "the bench"\n'


@pytest.mark.parametrize("place", ["command line", "environment", "toml", "ini"])
def test_a_wrong_list_is_wrong_use(npu_tests, pytester, monkeypatch, place):
    npu_tests(TEST)
    pytester.path.joinpath("pairs.toml").write_text(GOOD.replace("6.1.1.0", "24"))
    arguments = ["--npu-version-pairs=pairs.toml"] if place == "command line" else []
    if place == "environment":
        monkeypatch.setenv("CANNLM_VERSION_PAIRS", "pairs.toml")
    elif place == "toml":
        pytester.path.joinpath("cannlm.toml").write_text('version_pairs = "pairs.toml"\n')
    elif place == "ini":
        pytester.makeini("[pytest]\nnpu_version_pairs = pairs.toml\n")
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str() + result.stdout.str()
    assert "pairs.toml" in said
    assert "pairs[0].versions[0]" in said
    assert "looks like an API level" in said
    assert "Traceback" not in said


def test_a_sound_list_is_taken_and_shown(npu_tests, pytester):
    npu_tests(TEST)
    pytester.path.joinpath("pairs.toml").write_text(GOOD)
    result = pytester.runpytest("--npu-version-pairs=pairs.toml", "--npu-explain")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*--npu-version-pairs = *pairs.toml  (command line)"])


def test_without_npu_tests_the_list_is_not_read(pytester):
    pytester.makepyfile("def test_it(): pass")
    pytester.makeini("[pytest]\nnpu_version_pairs = missing.toml\n")
    assert pytester.runpytest("-p", "no:cacheprovider").ret == pytest.ExitCode.OK
