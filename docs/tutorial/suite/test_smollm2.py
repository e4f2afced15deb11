"""SmolLM2-135M-Instruct on the Kirin X90: what it answers, how fast, in how much memory, and how faithfully."""

import pytest

pytestmark = pytest.mark.npu(model="smollm2-135m", scheme="w4a16")


@pytest.mark.token_latency(decode_ms=7.5, ttft_ms=50)
@pytest.mark.memory_ceiling(peak="200MiB", retained="1MiB")
def test_answers_a_question(npu):
    reply = npu.chat("What is the capital of France?", max_new_tokens=32)
    assert "Paris" in reply.text


@pytest.mark.parity(profile="w4a16")
def test_stays_close_to_the_float_model(npu): ...


@pytest.mark.parity(against="quantized", profile="fidelity")
def test_computes_what_was_built(npu): ...


@pytest.mark.refuses_load(cann="6.0.1.0")
def test_package_of_another_cann_is_refused(npu): ...


@pytest.mark.npu(scheme="w8a16")
@pytest.mark.token_latency(decode_ms=9)
@pytest.mark.parity(kl_mean=0.01, top1=0.9)
def test_eight_bits_stay_closer(npu):
    assert "Paris" in npu.chat("What is the capital of France?", max_new_tokens=32).text
