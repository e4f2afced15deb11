from pathlib import Path

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import OPTIONS, Settings, nearest, read_toml_files, resolve


def test_defaults_say_that_they_are_defaults():
    settings = resolve()
    assert settings == Settings()
    assert settings.npu == ("sim",)
    assert not settings.devices_named
    assert {settings.source(option.key) for option in OPTIONS} == {"default"}


def test_the_declared_defaults_are_those_of_the_dataclass():
    for option in OPTIONS:
        assert getattr(Settings(), option.key) == option.default


def test_most_specific_place_wins_and_is_remembered():
    places = {
        "command_line": {"cann_policy": "off"},
        "environment": {"CANNLM_CANN_POLICY": "window", "CANNLM_INCONCLUSIVE": "skip"},
        "files": [("cannlm.toml", {"inconclusive": "fail", "required": True}), ("pyproject.toml", {"required": False})],
        "ini": {"required": False, "cann_unknown": "load"},
    }
    settings = resolve(**places)
    assert (settings.cann_policy, settings.source("cann_policy")) == ("off", "command line")
    assert (settings.inconclusive, settings.source("inconclusive")) == ("skip", "CANNLM_INCONCLUSIVE")
    assert (settings.required, settings.source("required")) == (True, "cannlm.toml")
    assert (settings.cann_unknown, settings.source("cann_unknown")) == ("load", "pytest's ini")


def test_none_on_the_command_line_means_not_given():
    assert resolve(command_line={"required": None}, ini={"required": True}).required is True


@pytest.mark.parametrize(
    ("text", "devices"),
    [("sim hdc:ABC", ("sim", "hdc:ABC")), ("sim:kirinx90?cann=6.0.1.0", ("sim:kirinx90?cann=6.0.1.0",))],
)
def test_devices_in_the_environment_are_separated_by_spaces(text, devices):
    settings = resolve(environment={"CANNLM_NPU": text})
    assert settings.npu == devices
    assert settings.devices_named


def test_an_empty_variable_counts_as_not_set():
    assert resolve(environment={"CANNLM_REQUIRED": "", "CANNLM_NPU": " "}) == resolve()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("required", "maybe"),
        ("required", 1),
        ("inconclusive", "ignore"),
        ("npu", []),
        ("npu", ["sim", 3]),
        ("npu", 7),
        ("cache", ""),
        ("cache", 3),
        ("cann_policy", ["exact"]),
    ],
)
def test_a_value_of_the_wrong_kind_names_place_option_and_what_it_may_be(key, value):
    with pytest.raises(UsageError) as error:
        resolve(files=[("cannlm.toml", {key: value})])
    text = str(error.value)
    assert text.startswith("cannlm.toml: --npu")
    assert repr(value) in text
    assert "expected: " in text


def test_unknown_key_names_the_nearest():
    with pytest.raises(UsageError, match="unknown setting 'inconclusve'; did you mean 'inconclusive'"):
        resolve(files=[("cannlm.toml", {"inconclusve": "fail"})])


def test_toml_files_are_read_most_specific_first(tmp_path):
    (tmp_path / "cannlm.toml").write_text('report = "a.json"\n')
    (tmp_path / "pyproject.toml").write_text('[tool.cannlm]\nreport = "b.json"\n')
    assert [name for name, _ in read_toml_files(tmp_path)] == ["cannlm.toml", "pyproject.toml"]
    assert resolve(files=read_toml_files(tmp_path)).report == Path.cwd() / "a.json"


def test_no_toml_and_a_foreign_pyproject_give_nothing(tmp_path):
    assert read_toml_files(tmp_path) == []
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read_toml_files(tmp_path) == []


@pytest.mark.parametrize("content", ["report = ", b"\xff\xfe="])
def test_broken_toml_names_the_file(tmp_path, content):
    path = tmp_path / "cannlm.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match="not valid TOML") as error:
        read_toml_files(tmp_path)
    assert error.value.file == str(path)


def test_a_table_that_is_none_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool]\ncannlm = 3\n")
    with pytest.raises(UsageError, match="must be a table"):
        read_toml_files(tmp_path)


def test_explain_shows_value_and_place_of_every_setting():
    lines = resolve(command_line={"npu": ["hdc", "sim"]}, environment={"CANNLM_REQUIRED": "yes"}).explain_lines()
    assert len(lines) == len(OPTIONS)
    assert "--npu = hdc sim  (command line)" in lines
    assert "--npu-required = yes  (CANNLM_REQUIRED)" in lines
    assert "--npu-report = none  (default)" in lines


def test_names_in_every_place_follow_one_rule():
    names = {option.key: (option.flag, option.ini, option.env) for option in OPTIONS}
    assert names["npu"] == ("--npu", "npu", "CANNLM_NPU")
    assert names["cann_policy"] == ("--npu-cann-policy", "npu_cann_policy", "CANNLM_CANN_POLICY")


def test_cache_folder_is_absolute_and_follows_the_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve(command_line={"cache": "here"}).cache_folder == tmp_path / "here"
    assert resolve(ini={"cache": "here"}, folder=tmp_path / "root").cache_folder == tmp_path / "root" / "here"
    assert resolve().cache_folder.is_absolute()


def test_nearest_gives_nothing_rather_than_nonsense():
    assert nearest("modle", ["model", "scheme"]) == "model"
    assert nearest("zzz", ["model", "scheme"]) is None
