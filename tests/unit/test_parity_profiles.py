import pytest

from pytest_cannlm.errors import BadInputError, UsageError
from pytest_cannlm.parity.names import METRICS
from pytest_cannlm.parity.profiles import choose_profile, parse_profiles, profiles, read_profiles


def chosen(name=None, **fields):
    return choose_profile(name, **{"scheme": "w4a16", "parameters": 135_000_000, **fields})


@pytest.mark.parametrize(
    ("fields", "kl_mean", "top1", "perplexity_ratio"),
    [
        ({"scheme": "fp16"}, 1e-4, 0.985, 1.005),
        ({"scheme": "w8a16"}, 0.01, 0.95, 1.02),
        ({"scheme": "int8"}, 0.01, 0.95, 1.02),
        ({"scheme": "w8a8"}, 0.03, 0.92, 1.03),
        ({"parameters": 8_000_000_000}, 0.08, 0.88, 1.085),
        ({"parameters": 7_000_000_000, "quantizer": "gptq"}, 0.08, 0.88, 1.085),
        ({"parameters": 1_544_000_000}, 0.15, 0.82, 1.13),
        ({}, 0.50, 0.62, 1.40),
        ({"quantizer": "gptq"}, 0.25, 0.75, 1.25),
        ({"quantizer": "awq"}, 0.25, 0.75, 1.25),
        ({"against": "quantized"}, 1e-3, 0.98, 1.005),
        ({"against": "quantized", "int8_activations": True}, 0.02, 0.93, 1.02),
        ({"name": "w8a16", "scheme": "w4a16"}, 0.01, 0.95, 1.02),
        ({"against": "other/model.onnx"}, 0.50, 0.62, 1.40),
        ({"scheme": "w8a16", "model": "smollm2-135m"}, 0.01, 0.92, 1.03),
        ({"scheme": "w4a16", "model": "smollm2-135m"}, 0.50, 0.62, 1.40),
        ({"against": "quantized", "model": "smollm2-135m"}, 1e-3, 0.98, 1.005),
    ],
)
def test_the_row_follows_scheme_size_quantizer_and_reference(fields, kl_mean, top1, perplexity_ratio):
    limits = chosen(**fields).limits
    assert (limits["kl_mean"], limits["top1"], limits["perplexity_ratio"]) == (kl_mean, top1, perplexity_ratio)


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(UsageError, match='Did you mean "w8a16"'):
        chosen("w8a61")
    with pytest.raises(UsageError):
        chosen(scheme="w2a2")


@pytest.mark.parametrize(("name", "against"), [("fidelity", "float"), ("w4a16", "quantized"), ("fp16", "quantized")])
def test_the_two_kinds_of_reference_are_never_mixed(name, against):
    with pytest.raises(UsageError, match="does not apply"):
        chosen(name, against=against)
    assert chosen(name, against="some.onnx").name == name


def test_limits_carry_their_source():
    assert chosen(parameters=7_000_000_000).source == 'profile "w4a16" (models of 7B parameters and more)'
    assert chosen(quantizer="awq").sourced_limits()["top1"].source == 'profile "w4a16" (gptq or awq or awq+gptq)'
    assert chosen(scheme="fp16").sourced_limits()["top1"].source == 'profile "fp16"'


def test_the_file_that_comes_along_is_sound():
    known = profiles()
    assert known.names == ("fidelity", "fidelity_int8act", "fp16", "w4a16", "w8a16", "w8a8")
    for row in known.rows:
        assert set(row.limits) <= set(METRICS)
        assert row.min_positions == 512
        assert row.why


OWN = """
schema = 1
min_positions = 64

[[profiles]]
name = "w4a16"
against = "float"
limits = { kl_mean = 0.5 }

[[models]]
name = "w4a16"
model = "smollm2-135m"
against = "float"
limits = { kl_mean = 0.4 }
"""


def test_a_row_for_the_model_wins_over_the_row_for_its_size(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    known = read_profiles(path)
    assert chosen(model="smollm2-135m", known=known).limits == {"kl_mean": 0.4}
    assert "smollm2-135m" in chosen(model="smollm2-135m", known=known).source
    assert chosen(model="another", known=known).limits == {"kl_mean": 0.5}
    assert chosen(known=known).min_positions == 64


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ("min_positions = 64", "min_positions = 0", "min_positions"),
        ("kl_mean = 0.5", "kl_meen = 0.5", "profiles[0].limits"),
        ("kl_mean = 0.5", "kl_mean = nan", "profiles[0].limits"),
        ("kl_mean = 0.5", "kl_mean = true", "profiles[0].limits"),
        ("kl_mean = 0.5", 'kl_mean = "0.5"', "profiles[0].limits"),
        ("{ kl_mean = 0.5 }", "{}", "profiles[0].limits"),
        ('model = "smollm2-135m"', "", "models[0].model"),
        (
            'against = "float"\nlimits = { kl_mean = 0.5',
            'against = "both"\nlimits = { kl_mean = 0.5',
            "profiles[0].against",
        ),
        ('against = "float"\nlimits = { kl_mean = 0.4', 'against = "quantized"\nlimits = { kl_mean = 0.4', "w4a16"),
        ('name = "w4a16"\nagainst', 'nam = "w4a16"\nagainst', "profiles[0].nam"),
        ('name = "w4a16"\nagainst', "name = 4\nagainst", "profiles[0].name"),
        ("limits = { kl_mean = 0.5", 'quantizers = "rtn"\nlimits = { kl_mean = 0.5', "profiles[0].quantizers"),
    ],
)
def test_a_wrong_file_is_refused_by_row_and_key(old, new, field):
    assert old in OWN
    with pytest.raises(BadInputError) as error:
        parse_profiles(OWN.replace(old, new, 1), file="own.toml")
    assert (error.value.file, error.value.field) == ("own.toml", field)


def test_what_is_not_toml_is_refused():
    with pytest.raises(BadInputError, match="not a TOML file"):
        parse_profiles("limits = {", file="own.toml")


def test_names_have_a_direction_and_a_place_to_look():
    for metric in METRICS.values():
        assert metric.better in ("lower", "higher")
        assert metric.look_at
        assert metric.title
