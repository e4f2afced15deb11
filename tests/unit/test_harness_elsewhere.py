"""A package that was made elsewhere: used as it is, agreed with or contradicted, and refused before anything starts."""

import subprocess
import sys

import pytest
from fake_npu import FakeDevice
from packages import CONTEXT, write_manifest, write_package

from pytest_cannlm.devices import parse_device
from pytest_cannlm.errors import GateRefusal, UsageError
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.elsewhere import UNKNOWN_SCHEME, resolve
from pytest_cannlm.harness.rooms import Rooms
from pytest_cannlm.harness.session import Harness
from pytest_cannlm.progress import SilentProgress
from pytest_cannlm.settings import Settings


def case(model, **given):
    return Case(device=parse_device("sim"), model=str(model), given=dict.fromkeys(given, "function"), **given)


@pytest.fixture
def folder(tmp_path):
    """The folder of a build: the package and a manifest that says what it is."""
    write_package(tmp_path / "built" / "package")
    build = {"chip": "KirinX90", "cann": "6.1.1.0", "scheme": "w8a16", "converter": "simulated"}
    write_manifest(tmp_path / "built" / "manifest.json", build=build)
    return tmp_path / "built"


def test_scheme_context_and_converter_are_the_package_s(folder):
    for model in (folder, folder / "package"):
        resolved = resolve(case(model))
        assert resolved.package.package == folder / "package"
        assert (resolved.scheme, resolved.context, resolved.converter) == ("w8a16", CONTEXT, "simulated")
        assert resolve(resolved) == resolved, "a test that is run again"


def test_a_package_that_does_not_tell_has_an_unknown_scheme_unless_the_marker_knows(tmp_path):
    package = write_package(tmp_path / "p")
    assert resolve(case(package)).scheme == UNKNOWN_SCHEME
    assert resolve(case(package, scheme="fp16")).scheme == "fp16"


def test_what_the_marker_gave_may_agree_and_must_not_contradict(folder):
    assert resolve(case(folder, scheme="w8a16", context=CONTEXT)).scheme == "w8a16"
    for given, found in (({"scheme": "w4a16"}, "w8a16"), ({"context": 2048}, CONTEXT), ({"converter": "omg"}, "simul")):
        with pytest.raises(UsageError, match=f"found: {found}.*expected: .* .marker npu on the function") as caught:
            resolve(case(folder, **given))
        assert caught.value.code == "PACKAGE_DIFFERS"


@pytest.mark.parametrize("text", ["{", '{"llm_config": {"kv_cache_max_len": "long"}}', '{"llm_config": 3}'])
def test_what_the_package_says_unusably_is_left_to_the_gate(folder, text):
    (folder / "package" / "executor.json").write_text(text)
    (folder / "manifest.json").write_text('{"build": []}')
    resolved = resolve(case(folder))
    assert (resolved.package.package, resolved.context) == (folder / "package", 2048)


def test_other_models_are_left_alone(tmp_path, monkeypatch):
    write_package(tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    for model in ("smollm2-135m", "nowhere", tmp_path):
        assert resolve(case(model)).package is None
    assert resolve(case("./smollm2-135m")).package is not None


class Unreachable(FakeDevice):
    """A device whose agent must not be started."""

    def agent(self):
        raise AssertionError("the gate comes first")


@pytest.fixture
def harness(tmp_path):
    def nothing_else(*_, **__):
        raise AssertionError("nothing is built or looked for")

    rooms = Rooms(Unreachable, nothing_else, nothing_else, nothing_else, nothing_else)
    return Harness(Settings(cache=tmp_path / "cache"), rooms=rooms, progress=SilentProgress())


@pytest.mark.parametrize("wrong", [{"build_version": "6.0.1.0"}, {"chip": "Kirin9020"}])
def test_a_misfit_is_refused_before_the_agent_starts_and_every_time(harness, tmp_path, wrong):
    package = write_package(tmp_path / "p", **wrong)
    refusals = []
    for _ in range(2):
        with pytest.raises(GateRefusal) as caught:
            harness.begin(resolve(case(package)))
        refusals.append(str(caught.value))
    assert refusals[0] == refusals[1]
    assert "tiny.omc" in refusals[0]


def test_a_package_that_fits_gets_to_the_device(harness, tmp_path):
    with pytest.raises(AssertionError, match="the gate comes first"):
        harness.begin(resolve(case(write_package(tmp_path / "p"))))


def test_a_refusal_takes_none_of_what_builds_and_computes(tmp_path):
    code = """
import sys
from pytest_cannlm.devices import parse_device
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.elsewhere import refuse_misfit, resolve
from pytest_cannlm.compat.gate import Target
from pytest_cannlm.errors import GateRefusal
case = resolve(Case(device=parse_device("sim"), model=sys.argv[1]))
try:
    refuse_misfit(case.package, Target("KirinX90", "6.0.1.0", simulated=True))
except GateRefusal:
    print("refused", sorted({"numpy", "onnx", "onnxruntime", "httpx", "tokenizers"} & set(sys.modules)))
"""
    package = write_package(tmp_path / "p")
    done = subprocess.run([sys.executable, "-c", code, str(package)], capture_output=True, text=True, check=True)
    assert done.stdout == "refused []\n"
