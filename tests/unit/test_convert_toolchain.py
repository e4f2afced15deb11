"""Which toolkit a converter is taken from, and what is refused before a build starts."""

import os

import installations
import pytest
from tiny import tiny_llama
from vendor_tools import Job, Said, kit, recipe

from pytest_cannlm.build import Recipe, build
from pytest_cannlm.build.convert import converter_for, toolkit_version
from pytest_cannlm.build.convert.toolchain import choose_toolkit
from pytest_cannlm.errors import EnvironmentFailure, UsageError
from pytest_cannlm.testing import fake_ddk, fake_mobile_station
from pytest_cannlm.toolkits import find

pytestmark = pytest.mark.skipif(os.name != "posix", reason="execute bits and links as on Linux")


@pytest.fixture(autouse=True)
def only_what_the_test_installs(tmp_path, monkeypatch):
    monkeypatch.setattr(find, "default_roots", lambda environment: (tmp_path / "home",))


def refused(tmp_path, wanted, error=EnvironmentFailure):
    with pytest.raises(error) as caught:
        converter_for(wanted, Job(tmp_path, environment={"HOME": str(tmp_path / "home")}).bench())
    return caught.value


@pytest.mark.parametrize(("converter", "remedy"), [("omg", "CANNLM_DDK"), ("atc", "set_env.sh")])
def test_no_toolkit(tmp_path, converter, remedy):
    error = refused(tmp_path, recipe(converter, None))
    assert error.code == "TOOLKIT_MISSING"
    assert remedy in error.remedy


def test_a_folder_without_one(tmp_path):
    assert str(tmp_path) in str(refused(tmp_path, recipe("omg", tmp_path)))


def test_the_other_converter_s_toolkit_does_not_do(tmp_path):
    assert refused(tmp_path, recipe("atc", kit(tmp_path, "omg"))).code == "TOOLKIT_MISSING"


def test_the_environment_chooses(tmp_path):
    chosen = fake_ddk(tmp_path / "a", version="6.0.1.0")
    fake_ddk(tmp_path / "home")
    environment = {"HOME": str(tmp_path / "home"), "CANNLM_DDK": str(chosen)}
    assert choose_toolkit("omg", folder=None, environment=environment).root == chosen
    assert toolkit_version("omg", folder=None, environment=environment) == "6.0.1.0"


def test_of_several_the_wanted_version_is_taken_or_none(tmp_path):
    old, new = (fake_ddk(tmp_path, version=version) for version in ("6.0.1.0", "6.1.1.0"))
    found = {}
    for version, root in (("6.0.1.0", old), ("6.1.1.0", new)):
        found[version] = choose_toolkit("omg", folder=tmp_path, environment={}, version=version).root
        assert found[version] == root
    for version in (None, "5.1.1.1"):
        with pytest.raises(UsageError, match="--toolkit"):
            choose_toolkit("omg", folder=tmp_path, environment={}, version=version)


def test_a_toolkit_of_another_version(tmp_path):
    error = refused(tmp_path, recipe("omg", kit(tmp_path), cann="6.0.1.0"))
    assert (error.code, error.expected) == ("TOOLKIT_VERSION", "6.0.1.0")


def test_a_toolkit_whose_version_nobody_knows(tmp_path):
    tools = kit(tmp_path)
    renamed = tmp_path / "toolbox"
    tools.parent.rename(renamed)
    error = refused(tmp_path, recipe("omg", renamed / "tools"))
    assert error.code == "TOOLKIT_VERSION_UNKNOWN"
    assert "DDK-tools-next" in error.remedy


def test_no_plugin_for_the_chip(tmp_path):
    tools = fake_ddk(tmp_path, platforms=["kirin9020"])
    error = refused(tmp_path, recipe("omg", tools))
    assert "does not build for KirinX90" in error.message
    assert "Kirin9020" in error.found


def test_a_plugin_of_another_version(tmp_path):
    tools = kit(tmp_path)
    (tmp_path / "DDK-tools-next-6.1.1.0" / "kirinx90-plugin-next-6.0.1.0").mkdir()
    assert "plugin of KirinX90 is not of the DDK's version" in refused(tmp_path, recipe("omg", tools)).message


def test_a_program_without_its_loader(tmp_path):
    tools = kit(tmp_path)
    installations.write(
        tools / "tools_omg" / "master" / "omg", installations.elf("/nowhere/ld-linux-x86-64-2.35.so.2"), mode=0o755
    )
    error = refused(tmp_path, recipe("omg", tools))
    assert "loader" in error.message
    assert "ln -s" in error.remedy


def test_only_the_program_behind_the_wrapper(tmp_path):
    tools = kit(tmp_path)
    (tools / "tools_omg" / "omg").unlink()
    error = refused(tmp_path, recipe("omg", tools))
    assert error.file == str(tools / "tools_omg" / "omg")


def test_a_cann_toolkit_without_atc(tmp_path):
    root = fake_mobile_station(tmp_path)
    (root / "bin" / "atc").unlink()
    assert "atc is missing" in refused(tmp_path, recipe("atc", root)).message


@pytest.mark.parametrize("scheme", ["w4a16", "w8a16"])
@pytest.mark.parametrize(("converter", "reason"), [("omg", "dopt"), ("atc", "fp16 models only")])
def test_schemes_that_the_vendor_s_tools_do_not_make(tmp_path, converter, scheme, reason):
    error = refused(tmp_path, recipe(converter, kit(tmp_path, converter), scheme=scheme), UsageError)
    assert (error.field, error.found) == ("scheme", scheme)
    assert reason in error.message


@pytest.mark.parametrize(
    ("converter", "fields", "field"),
    [
        ("simulated", {"toolkit": "x"}, "toolkit"),
        ("simulated", {"quant_params": "x"}, "quant_params"),
        ("atc", {"quant_params": "x"}, "quant_params"),
        ("omg", {"group_size": 64}, "group_size"),
        ("omg", {"cann": "9.0.0"}, "cann"),
        ("atc", {"cann": "banana"}, "cann"),
    ],
)
def test_settings_that_the_converter_does_not_have(converter, fields, field):
    with pytest.raises(UsageError) as caught:
        Recipe("tiny", tiny_llama(), converter=converter, **fields).validated()
    assert caught.value.field == field


def test_nothing_is_built_where_the_toolkit_is_missing(tmp_path):
    with pytest.raises(EnvironmentFailure):
        build(recipe("omg", tmp_path), cache=tmp_path / "cache", progress=Said())
    assert not (tmp_path / "cache").exists()
