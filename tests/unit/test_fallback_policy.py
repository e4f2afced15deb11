"""The policy: every way in which the NPU and the cloud can fail, with the cloud allowed and not."""

import logging
import traceback
from contextlib import contextmanager

import httpx
import pytest

from pytest_cannlm.cloud.endpoint import CloudEndpoint
from pytest_cannlm.errors import (
    BothWaysFailed,
    CloudError,
    EngineCrash,
    EngineError,
    GateRefusal,
    UsageError,
)
from pytest_cannlm.fallback import CloudModel, Detected, Fallback, Secret

PROMPT = "A very private question"


@pytest.fixture
def cloud():
    endpoint = CloudEndpoint()
    endpoint.reply("From the cloud.")
    yield endpoint
    endpoint.close()


class ScriptedNpu:
    """An app's own engine: pieces of text, then perhaps an error."""

    served_by = "scripted engine"

    def __init__(self, *pieces, error=None):
        self.pieces, self.error, self.asked = pieces, error, []

    def generate(self, prompt):
        self.asked.append(prompt)
        yield from self.pieces
        if self.error is not None:
            raise self.error


def model_at(cloud, **facts):
    known = {"base_url": cloud.base_url, "key": cloud.api_key, "model": cloud.model, "timeout_s": 5}
    return CloudModel(**{**known, **facts})


def policy(npu, cloud=None, *, chip="KirinX90", **facts):
    return Fallback(
        npu=npu,
        cloud=None if cloud is None else lambda: model_at(cloud, **facts),
        detect=lambda: Detected(chip, "a test"),
    )


REFUSED = GateRefusal("built with another CANN", code="CANN_VERSION_MISMATCH")
NPU_FAILS = {
    "chip not on the list": (ScriptedNpu("never"), "Kirin9020", GateRefusal, "Kirin9020"),
    "chip not known": (ScriptedNpu("never"), None, GateRefusal, "an unknown chip"),
    "look-alike": (ScriptedNpu("never"), "KirinX90A", GateRefusal, "KirinX90A"),
    "gate refuses": (ScriptedNpu(error=REFUSED), "KirinX90", GateRefusal, "another CANN"),
    "crash at load": (ScriptedNpu(error=EngineCrash("it died")), "KirinX90", EngineCrash, "it died"),
    "breaks off": (ScriptedNpu("Half an ", "ans", error=EngineError("lost")), "KirinX90", EngineError, "lost"),
    "an error of its own": (ScriptedNpu(error=RuntimeError("odd")), "KirinX90", EngineError, "RuntimeError: odd"),
}


@pytest.mark.parametrize("name", NPU_FAILS)
def test_forbidden_is_a_failure_with_the_original_reason(cloud, name):
    npu, chip, error, reason = NPU_FAILS[name]
    with pytest.raises(error, match=reason) as raised:
        policy(npu, chip=chip).ask(PROMPT)
    assert not isinstance(raised.value, CloudError)
    assert cloud.requests == (), "no prompt left the machine"


@pytest.mark.parametrize("name", NPU_FAILS)
def test_allowed_goes_to_the_cloud_and_says_so(cloud, name, caplog):
    npu, chip, _, reason = NPU_FAILS[name]
    with caplog.at_level(logging.INFO, logger="pytest_cannlm.fallback"):
        answer = policy(npu, cloud, chip=chip).ask(PROMPT)
    assert answer.text == "From the cloud."
    host = cloud.base_url.split("/")[2]
    assert (answer.via, answer.model) == ("cloud", cloud.model)
    assert answer.served_by == f"cloud: {cloud.model} at {host}"
    assert any(reason in step for step in answer.steps)
    assert tuple(record.getMessage() for record in caplog.records if "fallback" in record.name) == answer.steps
    assert PROMPT not in repr(answer.steps)
    assert cloud.requests[0].texts == (PROMPT,)


def test_the_chip_is_asked_before_anything_is_loaded(cloud):
    npu = ScriptedNpu("never")
    policy(npu, cloud, chip="Kirin9020").ask(PROMPT)
    assert npu.asked == []


def test_a_partial_text_is_discarded_and_said(cloud):
    answer = policy(ScriptedNpu("Half an ", "ans", error=EngineError("lost")), cloud).ask(PROMPT)
    assert "Half" not in answer.text
    assert any("partial text (11 characters) is discarded" in step for step in answer.steps)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_npu_answers_and_the_cloud_hears_nothing(cloud, allowed):
    answer = policy(ScriptedNpu("It ", "is."), cloud if allowed else None).ask(PROMPT)
    assert (answer.text, answer.via, answer.served_by, answer.model) == ("It is.", "npu", "npu: scripted engine", None)
    assert cloud.requests == ()


def test_a_wrong_request_goes_nowhere_else(cloud):
    with pytest.raises(UsageError, match="special"):
        policy(ScriptedNpu(error=UsageError("special tokens")), cloud).ask(PROMPT)
    assert cloud.requests == ()


def test_ctrl_c_is_no_reason_to_fall_back(cloud):
    with pytest.raises(KeyboardInterrupt):
        policy(ScriptedNpu(error=KeyboardInterrupt()), cloud).ask(PROMPT)
    assert cloud.requests == ()


CLOUD_FAILS = {
    "401": (lambda cloud: cloud.fail(401, "no such key"), {}, "CLOUD_KEY_REFUSED", "HTTP 401: no such key"),
    "wrong key": (lambda cloud: None, {"key": "sk-wrong"}, "CLOUD_KEY_REFUSED", "Incorrect API key"),
    "404": (lambda cloud: None, {"model": "unknown"}, "CLOUD_MODEL_UNKNOWN", "HTTP 404"),
    "429": (lambda cloud: cloud.fail(429), {}, "CLOUD_BUSY", "HTTP 429"),
    "500": (lambda cloud: cloud.fail(500), {}, "CLOUD_FAILED", "HTTP 500"),
    "slow": (lambda cloud: cloud.slow(5), {"timeout_s": 0.2}, "CLOUD_TIMEOUT", "0.2 s"),
    "trickling": (lambda cloud: cloud.slow(per_chunk=0.15), {"timeout_s": 0.3}, "CLOUD_TIMEOUT", "0.3 s"),
    "another model": (lambda cloud: cloud.answer_as("cheap"), {}, "CLOUD_OTHER_MODEL", "cheap"),
    "a longer name": (
        lambda cloud: cloud.answer_as("cloud-test-model-mini"),
        {},
        "CLOUD_OTHER_MODEL",
        "cloud-test-model-mini",
    ),
    "cut": (lambda cloud: cloud.cut(1), {}, "CLOUD_CUT", "broke the connection"),
    "cut at once": (lambda cloud: cloud.cut(0), {}, "CLOUD_CUT", "broke the connection"),
    "nobody there": (lambda cloud: cloud.close(), {}, "CLOUD_UNREACHABLE", "cannot be reached"),
}


@pytest.mark.parametrize("name", CLOUD_FAILS)
def test_both_errors_are_shown_and_the_key_is_not(cloud, name):
    script, facts, code, reason = CLOUD_FAILS[name]
    script(cloud)
    with pytest.raises(BothWaysFailed) as raised:
        policy(ScriptedNpu(error=REFUSED), cloud, **facts).ask(PROMPT)
    error = raised.value
    assert "built with another CANN" in str(error)
    assert reason in str(error)
    assert (error.npu, error.cloud.code) == (REFUSED, code)
    below_this_test = traceback.TracebackException(
        type(error), error, error.__traceback__.tb_next, capture_locals=True, compact=True
    )
    shown = "".join(below_this_test.format())
    assert "policy.py" in shown
    assert str(facts.get("key", cloud.api_key)) not in shown + str(error) + repr(error) + repr(error.as_dict())


def test_a_dated_snapshot_is_the_model_that_was_asked_for(cloud):
    cloud.answer_as("cloud-test-model-2026-11-30")
    assert policy(ScriptedNpu(error=REFUSED), cloud).ask(PROMPT).model == "cloud-test-model-2026-11-30"


def test_an_endpoint_that_echoes_the_key(cloud):
    cloud.fail(401, f"Incorrect API key: {cloud.api_key}")
    with pytest.raises(CloudError, match=r"Incorrect API key: \*\*\*"):
        model_at(cloud).ask(PROMPT)


def test_a_proxy_never_sees_the_loopback_interface(cloud, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert model_at(cloud).ask(PROMPT).text == "From the cloud."


def test_the_key_is_not_shown_by_what_holds_it():
    model = CloudModel(base_url="https://user:pw@example.org/v1", key=Secret("sk-1"), model="m")
    assert "sk-1" not in repr(model)
    assert model.host == "example.org"
    plain = CloudModel(base_url="https://example.org/v1", key="sk-1", model="m")
    assert "sk-1" not in repr(plain)


@pytest.mark.parametrize("url", ["", "example.org/v1", "ftp://example.org", "http://"])
def test_a_url_that_is_none(url):
    with pytest.raises(UsageError, match="base URL"):
        CloudModel(base_url=url, key=Secret("k"), model="m")


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "schlüssel", "\x00"])
def test_a_key_that_no_header_can_hold(key):
    with pytest.raises(UsageError) as raised:
        CloudModel(base_url="https://x", key=Secret(key), model="m")
    assert key not in str(raised.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_that_is_none(seconds):
    with pytest.raises(UsageError, match="time limit"):
        CloudModel(base_url="https://x", key=Secret("k"), model="m", timeout_s=seconds)


STREAMS = {
    "no stream": ("<html>hello</html>", "CLOUD_CUT"),
    "no json": ("data: {\n\n", "CLOUD_CUT"),
    "an error inside": ('data: {"error": {"message": "lost"}}\n\n', "CLOUD_CUT"),
    "odd choices": ('data: {"model": "m", "choices": [3]}\n\n', "CLOUD_CUT"),
    "odd content": ('data: {"model": "m", "choices": [{"delta": {"content": [1]}}]}\n\n', "CLOUD_CUT"),
    "no name": ('data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n', "CLOUD_CUT"),
    "no end": ('data: {"model": "m", "choices": [{"delta": {"content": "x"}}]}\n\n', "CLOUD_CUT"),
    "another model": ('data: {"model": "n", "choices": []}\n\n', "CLOUD_OTHER_MODEL"),
    "length": ('data: {"model": "m", "choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}\n\n', None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_other_endpoints_may_send(monkeypatch, name):
    sent, code = STREAMS[name]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=sent))

    @contextmanager
    def stream(method, url, *, auth, trust_env, **facts):
        with httpx.Client(transport=transport, auth=auth) as client, client.stream(method, url, **facts) as response:
            yield response

    monkeypatch.setattr(httpx, "stream", stream)
    app = Fallback(
        npu=ScriptedNpu(error=REFUSED),
        cloud=lambda: CloudModel(base_url="https://example.org/v1", key=Secret("k"), model="m"),
        detect=lambda: Detected("KirinX90", "a test"),
    )
    if code is None:
        assert app.ask(PROMPT).steps[-1] == "answered by cloud: m at example.org, ended by length"
        return
    with pytest.raises(BothWaysFailed) as raised:
        app.ask(PROMPT)
    assert raised.value.cloud.code == code


def test_what_is_missing_of_the_endpoint_is_named():
    with pytest.raises(UsageError, match="no OPENAI_API_KEY, no OPENAI_MODEL"):
        CloudModel.from_environment({"OPENAI_BASE_URL": "https://x", "OPENAI_MODEL": " "})
