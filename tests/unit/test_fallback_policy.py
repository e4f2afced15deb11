"""The policy: every way in which the NPU and the cloud can fail, with the cloud allowed and not."""

import logging
import socket
import threading
import time
import traceback
from contextlib import contextmanager, suppress

import httpx
import pytest

from pytest_cannlm.cloud import client
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


def test_an_answer_that_is_there_is_no_reason_to_ask_the_cloud(cloud):
    class Shy(ScriptedNpu):
        @property
        def served_by(self):
            raise AttributeError("not yet")

    with pytest.raises(EngineError, match="answered, and does not say who did: AttributeError: not yet"):
        policy(Shy("It is."), cloud).ask(PROMPT)
    assert cloud.requests == ()


def test_a_cloud_that_cannot_be_made_keeps_the_npu_s_reason_and_its_own_text(cloud):
    def no_vault():
        raise RuntimeError(f"no vault for {cloud.api_key}")

    for made in (no_vault, model_at(cloud)):  # the second is no callable
        app = Fallback(npu=ScriptedNpu(error=REFUSED), cloud=made, detect=lambda: Detected("KirinX90", "a test"))
        with pytest.raises(
            BothWaysFailed, match=r"another CANN.*the cloud cannot be asked: (Runtime|Type)Error"
        ) as raised:
            app.ask(PROMPT)
        assert raised.value.npu is REFUSED
        assert str(cloud.api_key) not in "".join(traceback.format_exception(raised.value))


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


@contextmanager
def dripping(head, drop):
    """The port of an endpoint that never comes to an end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(head)
                for _ in range(60):
                    connection.sendall(drop)
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "no end of a line": (OK + b"\r\n", b"x"),
    "comments": (OK + b"\r\n", b": ping\n"),
    "headers": (OK, b"a: b\r\n"),
    "an error": (b"HTTP/1.1 500 Oh\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("name", DRIPS)
def test_the_time_limit_holds_for_the_whole_answer(name):
    with dripping(*DRIPS[name]) as port:
        model = CloudModel(base_url=f"http://127.0.0.1:{port}/v1", key=Secret("k"), model="m", timeout_s=0.3)
        started = time.monotonic()
        with pytest.raises(CloudError) as raised:
            model.ask(PROMPT)
        assert raised.value.code == "CLOUD_TIMEOUT"
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("head", "code"), [(OK, "CLOUD_CUT"), (b"HTTP/1.1 503 Busy\r\n", "CLOUD_FAILED")], ids=["answer", "error"]
)
def test_the_size_of_an_answer_is_limited(monkeypatch, head, code):
    monkeypatch.setattr(client, "_LARGEST_ANSWER", 100_000)
    with dripping(head + b"\r\n", b"x" * 10_000) as port:
        model = CloudModel(base_url=f"http://127.0.0.1:{port}/v1", key=Secret("k"), model="m", timeout_s=20)
        started = time.monotonic()
        with pytest.raises(CloudError) as raised:
            model.ask(PROMPT)
        assert time.monotonic() - started < 2, "the rest is not waited for"
        assert raised.value.code == code
        assert len(str(raised.value)) < 1000


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
    assert (model.host, "pw" in repr(model)) == ("example.org", False)
    assert "example.org" in repr(model)
    plain = CloudModel(base_url="https://example.org/v1", key="sk-1", model="m")
    assert "sk-1" not in repr(plain)


@pytest.mark.parametrize("name", ["401", "wrong key", "another model", "cut", "trickling", "nobody there"])
def test_no_frame_that_holds_the_key_is_part_of_the_traceback(cloud, name):
    script, facts, code, _ = CLOUD_FAILS[name]
    script(cloud)
    with pytest.raises(CloudError) as raised:
        model_at(cloud, **facts).ask(PROMPT)
    assert raised.value.code == code
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert frames == ["test_no_frame_that_holds_the_key_is_part_of_the_traceback", "ask"]
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)


@pytest.mark.parametrize("host", ["example.org", "192.168.1.2:8000", "127.0.0.1.example.org", "localhost.example.org"])
def test_the_key_goes_to_another_machine_by_https_only(host):
    with pytest.raises(UsageError, match="in the clear"):
        CloudModel(base_url=f"http://me:secret@{host}/v1", key=Secret("k"), model="m")
    assert CloudModel(base_url=f"https://{host}/v1", key=Secret("k"), model="m").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9:80", "localhost:8000", "[::1]:8000"])
def test_the_loopback_interface_needs_no_https(host):
    assert CloudModel(base_url=f"http://{host}/v1", key=Secret("k"), model="m").host == host


@pytest.mark.parametrize("url", ["", "example.org/v1", "ftp://example.org", "http://", "http://[", "https://x:port"])
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
