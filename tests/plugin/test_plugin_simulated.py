"""The whole road on the simulated device with the tiny model: every marker passes once and fails once."""

import json

import pytest

NPU = "@pytest.mark.npu(**NPU)\n"
CHAT = "def test_it(npu):\n    reply = npu.chat('Hi', max_new_tokens=4)\n    assert reply.kind == 'modelled'\n"


def test_every_marker_passes(simulated, pytester):
    result = simulated(
        NPU
        + "@pytest.mark.token_latency(decode_ms=45, ttft_ms=800, prefill_tps=1)\n"
        + "@pytest.mark.memory_ceiling(load='1MiB', peak='2MiB', retained='1KiB', kv_per_token='1KiB')\n"
        + "@pytest.mark.parity(kl_mean=2, top1=0.1)\n"
        + "@pytest.mark.refuses_load(cann='6.0.1.0')\n"
        + CHAT
    )
    result.assert_outcomes(passed=1)
    (test,) = json.loads(pytester.path.joinpath("report.json").read_text())["tests"]
    assert {verdict["outcome"] for verdict in test["verdicts"]} == {"pass"}
    assert len(test["verdicts"]) == 10
    assert {figure["kind"] for figure in test["figures"]} == {"modelled"}


ANOTHER_CANN = "@pytest.mark.refuses_load(cann='6.0.1.0')\n"
FAILING = {
    "decode": ("@pytest.mark.token_latency(decode_ms=0.5)\n", "decode_ms: fail: even the lower bound*"),
    "ttft": ("@pytest.mark.token_latency(ttft_ms=0.5)\n", "ttft_ms: fail*"),
    "load": ("@pytest.mark.memory_ceiling(load='1KiB')\n", "load: fail*"),
    "kv": ("@pytest.mark.memory_ceiling(kv_per_token='1B')\n", "kv_per_token: fail*"),
    "parity": ("@pytest.mark.parity(kl_mean=1e-6)\n", "kl_mean: fail*"),
    "the profile": ("@pytest.mark.parity(profile='fp16')\n", "kl_mean: fail*"),
    "greedy text": ("@pytest.mark.parity(prefix_tokens=32)\n", "prefix_tokens: fail*"),
    "its own version": (ANOTHER_CANN.replace("6.0.", "6.1."), "*the gate let the copy through*"),
    "a crash": (ANOTHER_CANN.replace(")", ", at='engine')"), "*did not refuse the copy, it crashed with SIG*"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_every_marker_fails(simulated, name):
    marks, expected = FAILING[name]
    result = simulated(NPU + marks + CHAT)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([expected])


def test_the_engine_computes_what_was_built(simulated):
    result = simulated(
        NPU + "@pytest.mark.parity(against='quantized', kl_mean=1e-3, top1=0.98)\ndef test_it(npu): ...\n"
    )
    result.assert_outcomes(passed=1)


def test_an_engine_that_was_killed_is_noticed_although_nothing_is_asked_of_it(simulated):
    result = simulated(
        NPU
        + "def test_it(npu):\n"
        + "    import psutil\n"
        + "    psutil.Process(npu.run.client.status().worker).kill()\n"
        + NPU
        + CHAT.replace("test_it", "test_next")
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["engine_alive: fail: the engine was lost while the test's body ran: *crashed*"])


ZEROED_ROPE = """
def pytest_cannlm_build(config, recipe):
    import shutil
    from pathlib import Path
    from pytest_cannlm.build import locate_package
    from pytest_cannlm.harness.rooms import own_rooms
    from pytest_cannlm.plugin.running import harness_of
    from pytest_cannlm.simulator.package import read_package
    harness = harness_of(config)
    config.built = built = own_rooms().build(recipe, harness.settings.cache_folder, harness.progress)
    copy = Path("copy").resolve()
    shutil.copytree(built.package.parent, copy)
    package = locate_package(copy)
    for tensor in read_package(package.package).graph.graph.initializer:
        if tensor.name in ("rope_cos", "rope_sin"):
            place = {entry.key: entry.value for entry in tensor.external_data}
            row = int(place["length"]) // tensor.dims[0]
            file = package.package / place["location"]
            data = bytearray(file.read_bytes())
            start = int(place["offset"]) + {first} * row
            data[start : int(place["offset"]) + int(place["length"])] = bytes(row * (tensor.dims[0] - {first}))
            file.write_bytes(data)
    return package

def pytest_cannlm_reference(config, package, checkpoint):
    from pytest_cannlm.harness.rooms import own_rooms
    from pytest_cannlm.plugin.running import harness_of
    harness = harness_of(config)
    return own_rooms().reference(config.built, checkpoint, harness.settings.cache_folder, harness.progress)
"""


@pytest.mark.parametrize(("first", "outcome"), [(128, "failed"), (240, "failed"), (256, "passed")])
def test_positions_behind_the_second_prefill_step_are_compared(npu_tests, pytester, first, outcome):
    npu_tests(NPU + "@pytest.mark.parity(against='quantized', kl_mean=1e-3, kl_p99=2e-2)\ndef test_it(npu): ...\n")
    pytester.makeconftest(ZEROED_ROPE.replace("{first}", str(first)))
    result = pytester.runpytest()
    result.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        result.stdout.fnmatch_lines(["kl_*: fail: *; compared 512 positions down to depth 256, 32 of them decoded*"])


def test_a_reply_does_not_depend_on_what_was_asked_before(simulated):
    result = simulated(
        NPU
        + "def test_it(npu):\n"
        + "    first = npu.generate('The quick brown fox', max_new_tokens=4)\n"
        + "    assert npu.generate('The quick brown fox', max_new_tokens=4).generation == first.generation\n"
        + "    assert first.cached_prefix_tokens == 0\n"
        + "    again = npu.generate('The quick brown fox', max_new_tokens=4, reuse_prefix=True)\n"
        + "    assert again.cached_prefix_tokens > 0\n"
    )
    result.assert_outcomes(passed=1)


def test_fast_mode_is_named_beside_its_figures(simulated):
    mark = "@pytest.mark.token_latency(decode_ms=45)\n"
    result = simulated(NPU + mark + CHAT, "--npu=sim:kirinx90?mode=fast")
    result.stdout.fnmatch_lines(["simulated KirinX90, fast: *"])
    assert "KirinX90, fast" not in simulated(NPU + mark + CHAT).stdout.str()


def test_two_schemes_two_packages(simulated):
    result = simulated(
        "@pytest.mark.npu(**NPU, scheme=['fp16', 'w8a16'])\n"
        "def test_it(npu, onnx_reference):\n"
        "    ids = [5, 6, 7, 8]\n"
        "    assert npu.logits(ids).shape == onnx_reference.logits(ids).shape\n"
        "    assert abs(npu.logits(ids) - onnx_reference.logits(ids, against='quantized')).max() < 0.5\n"
    )
    result.assert_outcomes(passed=2)


def test_another_cann_on_the_device_gets_a_package_of_its_own(simulated):
    result = simulated(
        NPU + "def test_it(npu):\n    assert npu.package.data['build']['cann'] == npu.device.cann == '6.0.1.0'\n",
        "--npu=sim:kirinx90?cann=6.0.1.0",
    )
    result.assert_outcomes(passed=1)


def test_a_device_too_small_for_the_model_says_so(simulated):
    result = simulated(NPU + CHAT, "--npu=sim:kirinx90?ram=1KB")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*out of memory on the simulated device*"])


def test_an_overflowing_prompt_is_an_error_and_never_a_text(simulated):
    result = simulated(NPU + "def test_it(npu): npu.generate('ab ' * 140, max_new_tokens=8)\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*KVCacheOverflow*"])


def test_building_is_shown_while_it_happens_although_output_is_captured(simulated, tmp_path, monkeypatch):
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "cache"))
    result = simulated(NPU + "def test_it(npu): print('from the test')\n")
    shown = result.stdout.str() + result.stderr.str()
    for step in ("quantize", "export", "convert", "assemble"):
        assert f"w4a16: {step}: built" in shown
    assert "from the test" not in shown


def test_two_workers_build_once_and_agree(npu_tests, pytester, tmp_path, monkeypatch):
    monkeypatch.setenv("CANNLM_CACHE", str(tmp_path / "cache"))
    npu_tests("".join(f"{NPU}def test_{n}(npu): npu.chat('Hi', max_new_tokens=2)\n" for n in range(4)))
    pytester.makeconftest("")
    result = pytester.runpytest_subprocess("-n2", "--npu-report=report.json")
    result.assert_outcomes(passed=4)
    built = [line for line in result.errlines + result.outlines if "quantize: built" in line]
    assert len(built) == 1, "one worker builds, the other waits and takes what is there"
    assert len(json.loads(pytester.path.joinpath("report.json").read_text())["tests"]) == 4
