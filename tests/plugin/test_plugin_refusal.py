"""Packages that must not be loaded, on the real simulated device: relabelled, damaged, and made elsewhere."""

import json
import shutil

import pytest

from pytest_cannlm.build import relabel

NPU = "@pytest.mark.npu(**NPU)\n"
ANOTHER = ("cann='6.0.1.0'", "chip='Kirin9020'")


def refusing(*marks):
    """One test per ``refuses_load`` marker."""
    return "".join(
        f"{NPU}@pytest.mark.refuses_load({mark})\ndef test_{number}(npu): ...\n" for number, mark in enumerate(marks)
    )


def records_of(pytester):
    return json.loads(pytester.path.joinpath("report.json").read_text(encoding="utf-8"))["tests"]


def reasons_of(pytester):
    return [test["verdicts"][0]["reason"] for test in records_of(pytester)]


def test_a_wrong_copy_is_refused_at_the_gate(simulated, pytester):
    marks = [*ANOTHER, "damage='truncate'", "damage='stale-manifest'"]
    result = simulated(refusing(*marks))
    result.assert_outcomes(passed=len(marks))
    assert all(reason.endswith("the good package loads afterwards") for reason in reasons_of(pytester))


def test_a_damaged_copy_is_refused_by_the_engine_in_its_own_words(simulated, pytester):
    names = ("truncate", "missing-weights", "pointer")
    result = simulated(refusing(*(f"damage='{name}', at='engine'" for name in names)))
    result.assert_outcomes(passed=len(names))
    *weights, pointer = reasons_of(pytester)
    for said in weights:
        assert "[1] LoadPrivateWeight(419): weightFileSize - constSize >= variableSize false" in said
    assert "[OM_BAD_MAGIC]" in pointer


def test_another_cann_or_chip_crashes_the_engine_and_not_the_run(simulated, pytester):
    result = simulated(
        refusing(*(f"{wrong}, at='engine'" for wrong in ANOTHER))
        + f"{NPU}def test_next(npu):\n"
        + "    import psutil\n"
        + "    assert npu.chat('Hi', max_new_tokens=2).tokens\n"
        + "    status = npu.run.client.status()\n"
        + "    assert [p.pid for p in psutil.Process(status.supervisor).children()] == [status.worker]\n"
    )
    result.assert_outcomes(failed=2, passed=1)
    for reason in [test["verdicts"][0]["reason"] for test in records_of(pytester) if test["verdicts"]]:
        assert "the engine did not refuse the copy, it crashed with SIG" in reason
        assert "| compatibleHelper CheckCompatibility failed" in reason
        assert "running: engine simulated, chip KirinX90, CANN 6.1.1.0" in reason
        assert "likely cause: " in reason
        assert reason.endswith("the good package loads afterwards")


@pytest.mark.parametrize(
    ("what", "outcomes", "expected"),
    [
        ("error", {"passed": 2}, "refused by the engine: [[]1] no runtime support the Model.*"),
        ("load", {"failed": 2}, "*the engine loaded the copy; the good package loads afterwards"),
    ],
)
def test_a_mismatch_at_the_engine_can_be_rehearsed(simulated, pytester, what, outcomes, expected):
    import fnmatch

    result = simulated(
        refusing(*(f"{wrong}, at='engine'" for wrong in ANOTHER)), f"--npu=sim:kirinx90?on_mismatch={what}"
    )
    result.assert_outcomes(**outcomes)
    for reason in reasons_of(pytester):
        assert fnmatch.fnmatchcase(reason, expected), reason


def test_an_engine_that_hangs_is_ended_at_the_time_limit(simulated, pytester):
    result = simulated(refusing("cann='6.0.1.0', at='engine', within_s=5"), "--npu=sim?on_mismatch=hang")
    result.assert_outcomes(failed=1)
    (reason,) = reasons_of(pytester)
    assert "it hung: no answer within 5 s, then it was ended; it said" in reason
    assert "| modelRecompiler Recompile failed!" in reason


def test_what_cannot_be_noticed_there_is_an_error_at_collection(simulated):
    result = simulated(refusing("damage='stale-manifest', at='engine'"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no engine notices damage='stale-manifest'; use at=\"gate\"*"])


@pytest.fixture
def elsewhere(tiny_packages, tmp_path):
    """``elsewhere(manifest=..., **wrong)``: the folder of a package that nobody built in this run."""

    def make(name="made", *, manifest=True, **wrong):
        copy = relabel(tiny_packages(), tmp_path / name, **wrong)
        if manifest:
            shutil.copyfile(tiny_packages().coefficients, copy.package.parent / tiny_packages().coefficients.name)
        else:
            copy.manifest.unlink()
        return copy.package.parent if manifest else copy.package

    return make


def of(folder, arguments="", marks="", body="..."):
    """Two tests of one package."""
    marker = f"@pytest.mark.npu(model={str(folder)!r}{arguments})\n{marks}"
    return "".join(f"{marker}def test_{number}(npu): {body}\n" for number in (1, 2))


ASK = "assert len(npu.generate('The quick', max_new_tokens=4).tokens) == 4"


def test_a_package_is_used_as_it_is_and_nothing_is_built(simulated, pytester, elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "empty-cache"))
    folder = elsewhere()
    result = simulated(
        of(folder, marks="@pytest.mark.refuses_load(cann='6.0.1.0')\n", body="npu.chat('Hi', max_new_tokens=2)")
    )
    result.assert_outcomes(passed=2)
    assert not (tmp_path / "empty-cache" / "quantize").exists()
    assert {test["scheme"] for test in records_of(pytester)} == {"w4a16"}


def test_without_a_manifest_it_generates_and_has_no_chat_template(simulated, pytester, elsewhere):
    folder = elsewhere(manifest=False)
    simulated(of(folder, body=ASK)).assert_outcomes(passed=2)
    assert {test["scheme"] for test in records_of(pytester)} == {"unknown"}
    result = simulated(of(folder, body="npu.chat('Hi')"))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*no chat template*"])


BAD = {
    "another cann": (
        {"cann": "6.0.1.0"},
        ["CANN_VERSION_MISMATCH", "found: 6.0.1.0 (atc_version of", "expected: 6.1.1.0"],
    ),
    "another chip": ({"chip": "Kirin9020"}, ["CHIP_MISMATCH", "found: Kirin9020", "expected: KirinX90"]),
    "cut short": ({"damage": "truncate"}, ["PACKAGE_DAMAGED", "bytes"]),
    "without weights": ({"damage": "missing-weights"}, ["PACKAGE_INCOMPLETE", "missing: SubGraph_0.weight"]),
}


@pytest.mark.parametrize(("name", "manifest"), [*((name, True) for name in BAD), ("another cann", False)])
def test_a_bad_package_fails_every_test_that_uses_it_before_anything_starts(
    simulated, pytester, elsewhere, name, manifest
):
    wrong, shown = BAD[name]
    watch = (
        "import psutil\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def no_agent_and_no_engine():\n"
        "    yield\n"
        "    commands = [' '.join(p.cmdline()) for p in psutil.Process().children(recursive=True)]\n"
        "    assert not [command for command in commands if 'pytest_cannlm.agent' in command]\n"
    )
    result = simulated(watch + of(elsewhere(manifest=manifest, **wrong), body=ASK))
    result.assert_outcomes(errors=2)
    for number, test in enumerate(records_of(pytester), start=1):
        assert (test["nodeid"], test["outcome"], test["category"]) == (f"test_it.py::test_{number}", "error", "judged")
        assert test["error"]["error"] == shown[0]
        assert test["error"]["remedy"]
        assert (test["chip"], test["cann"]) == ("KirinX90", "6.1.1.0"), "the device is known although nothing ran"
    told = [line for line in result.outlines if line.startswith("GateRefusal: the gate refused the package")]
    assert len(told) == 2, "the second test fails by the same line as the first"
    assert told[0] == told[1]
    for text in shown:
        assert text in told[0]


def test_a_package_with_a_wrong_number_of_layers_is_told_as_that(simulated, pytester, elsewhere):
    folder, bad = elsewhere(manifest=False), elsewhere("bad", manifest=False)
    executor = bad / "executor.json"
    data = json.loads(executor.read_text("utf-8"))
    data["llm_config"]["num_hidden_layers"] += 2
    executor.unlink()  # a link to the file of the package that was copied
    executor.write_text(json.dumps(data), "utf-8")
    # a gate would have noticed: the engine is asked past it
    result = simulated(of(folder, body=f"npu.run.client.load(__import__('pathlib').Path({str(bad)!r}))"))
    result.stdout.fnmatch_lines(
        [
            "*EngineCrash: the engine crashed during load *Likely cause: The executor.json does not describe the model "
            "beside it: num_hidden_layers, *do not fit: * layers of * heads of *, expected * layers of * heads of *. "
            "Run cannlm lint on the package*"
        ]
    )
    assert "Fatal Python error" not in result.stdout.str()
    assert "most recent call first" not in result.stdout.str()
    assert records_of(pytester)[0]["error"]["cause"].startswith("The executor.json does not describe the model")


def test_a_package_without_its_executor_json_is_incomplete(simulated, elsewhere):
    folder = elsewhere()
    (folder / "package" / "executor.json").unlink()
    result = simulated(of(folder))
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["GateRefusal: the gate refused the package: PACKAGE_INCOMPLETE: *executor.json*"])


def test_a_package_for_a_real_npu_is_refused_by_the_simulator(simulated, elsewhere):
    from pytest_cannlm.container.layout import SIMULATED_MARK

    folder = elsewhere(manifest=False)
    model = next(folder.glob("*.omc"))
    data = model.read_bytes()
    model.unlink()  # it is a link
    model.write_bytes(data.replace(SIMULATED_MARK, bytes(len(SIMULATED_MARK)), 1))
    result = simulated(of(folder))
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["GateRefusal: the gate refused the package: REAL_PACKAGE_ON_SIMULATOR: *"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ", scheme='fp16'",
            "*another scheme*found: w4a16 (build.scheme in manifest.json); expected: fp16 (marker npu on*",
        ),
        (
            ", context=512",
            "*another context*found: 256 (kv_cache_max_len in executor.json); expected: 512 (marker npu on*",
        ),
        (", converter='omg'", "*another converter*found: simulated (build.converter in manifest.json); expected: omg*"),
    ],
)
def test_a_marker_that_contradicts_the_package_names_both(simulated, elsewhere, arguments, expected):
    result = simulated(of(elsewhere(), arguments))
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines([expected])


def test_a_marker_that_agrees_or_knows_better_is_taken_at_its_word(simulated, pytester, elsewhere):
    simulated(of(elsewhere(), ", scheme='w4a16', context=256")).assert_outcomes(passed=2)
    simulated(of(elsewhere("plain", manifest=False), ", scheme='w4a16'")).assert_outcomes(passed=2)
    assert {test["scheme"] for test in records_of(pytester)} == {"w4a16"}


def test_parity_of_a_package_made_elsewhere_takes_a_checkpoint_by_its_path(simulated, elsewhere):
    folder = elsewhere()
    marks = "@pytest.mark.parity(against={}, kl_mean=2, tokens=16)\n"
    quantized = of(folder, marks=marks.format("'quantized'")).replace("def test_", "def test_q")
    result = simulated(of(folder, marks=marks.format("MODEL")) + quantized)
    result.assert_outcomes(passed=4)
    result = simulated(of(folder, marks=marks.format("'float'")))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(['*Give the checkpoint that the package was made from: parity(against="PATH")'])


def test_parity_without_a_manifest_needs_limits_or_a_scheme(simulated, elsewhere):
    folder = elsewhere(manifest=False)
    marks = "@pytest.mark.parity(against=MODEL{})\n"
    simulated(of(folder, marks=marks.format(", kl_mean=2, tokens=16"))).assert_outcomes(passed=2)
    result = simulated(of(folder, marks=marks.format("")))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*the package does not say its scheme*Give scheme= in the npu marker*"])
    result = simulated(of(folder, marks="@pytest.mark.parity(against='quantized', kl_mean=2)\n"))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*the quantized reference needs what lies beside a built package*"])
