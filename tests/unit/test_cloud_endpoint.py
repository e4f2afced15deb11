"""The scripted cloud endpoint, spoken to byte by byte: what it answers, what it refuses, what it remembers."""

import base64
import http.client
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import quote

import pytest

from pytest_cannlm.cloud import server
from pytest_cannlm.cloud.answers import pieces_of
from pytest_cannlm.cloud.endpoint import CloudEndpoint
from pytest_cannlm.cloud.script import Script
from pytest_cannlm.cloud.secret import HIDDEN, Secret
from pytest_cannlm.cloud.server import LARGEST_BODY
from pytest_cannlm.errors import UsageError

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture
def cloud():
    before = set(threading.enumerate())
    endpoint = CloudEndpoint()
    yield endpoint
    endpoint.close()
    assert set(threading.enumerate()) == before, "no thread is left behind"


class Caller:
    """One keep-alive connection with the right key."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.connection = http.client.HTTPConnection(
            "127.0.0.1", int(cloud.base_url[:-3].rpartition(":")[2]), timeout=5
        )

    def __call__(self, path=CHAT, body=None, *, method="POST", key=None, headers=None):
        """Status and JSON of a request."""
        response = self.send(path, body, method=method, key=key, headers=headers)
        return response.status, json.loads(response.read() or b"null")

    def send(self, path=CHAT, body=None, *, method="POST", key=None, headers=None):
        known = {"Authorization": f"Bearer {self.cloud.api_key if key is None else key}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, {**known, **(headers or {})})
        return self.connection.getresponse()

    def events(self, body, path=CHAT):
        response = self.send(path, {**body, "stream": True})
        assert response.getheader("Content-Type") == "text/event-stream"
        lines = [line for line in response.read().decode().split("\n\n") if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture
def call(cloud):
    caller = Caller(cloud)
    yield caller
    caller.connection.close()


def asking(text="Why is the sky blue?", **more):
    return {"model": "cloud-test-model", "messages": [{"role": "user", "content": text}], **more}


def raw(cloud, data):
    """Whatever comes back for these bytes, until the connection ends."""
    host, _, port = cloud.base_url[len("http://") : -3].partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while more := connection.recv(65536):
            received += more
    return received


def test_chat(cloud, call):
    cloud.reply("Because of scattering.")
    status, answer = call(CHAT, asking())
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == cloud.model
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Because of scattering.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_completions(call):
    status, answer = call(TEXT, {"model": "cloud-test-model", "prompt": ["Once upon"], "max_tokens": 2})
    assert (status, answer["object"]) == (200, "text_completion")
    assert answer["choices"][0]["text"] == "This is"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_models(call):
    assert call("/v1/models", method="GET")[1]["data"][0]["id"] == "cloud-test-model"
    status, model = call("/v1/models/cloud-test%2Dmodel", method="GET")
    assert (status, model["id"], model["object"]) == (200, "cloud-test-model", "model")
    status, answer = call("/v1/models/another", method="GET")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_what_steers_or_asks_for_nothing_else_is_accepted(call):
    steering = {"temperature": 0, "top_p": 1.0, "seed": 3, "user": "me", "logit_bias": {}, "presence_penalty": -2}
    plain = {"n": 1, "tools": [], "logprobs": False, "response_format": {"type": "text"}, "modalities": ["text"]}
    null = dict.fromkeys(["stop", "stream", "stream_options", "temperature", "audio", "max_tokens"])
    for more in (steering, plain, null):
        assert call(CHAT, asking(**more))[0] == 200


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "One two "),
        (["four", " t"], "One"),
        ("One", ""),
        ("five", "One two three four"),
        (["two", "e t"], "On"),
    ],
)
def test_stop_texts_end_an_answer(cloud, call, stop, text):
    cloud.reply("One two three four")
    (choice,) = call(CHAT, asking(stop=stop))[1]["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    events = call.events(asking(stop=stop))
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text


def test_a_limit_that_is_reached_before_a_stop_text_ends_by_length(cloud, call):
    cloud.reply("One two three four")
    (choice,) = call(CHAT, asking(stop="four", max_tokens=2))[1]["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("One two", "length")


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_tokens_ends_by_length(call, limit):
    answer = call(CHAT, asking(**{limit: 1}))[1]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_a_conversation_and_parts(cloud, call):
    cloud.reply(lambda request: " | ".join(request.texts))
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "Again"},
    ]
    answer = call(CHAT, {"model": cloud.model, "messages": messages})[1]
    assert answer["choices"][0]["message"]["content"] == "Be short. | Hello there | Again"
    assert cloud.requests[0].texts == ("Be short.", "Hello there", "Again")


def test_a_stream(cloud, call):
    cloud.reply("One two three")
    events = call.events(asking())
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["One", " two", " three", None]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert not any("usage" in event for event in events)
    assert call(CHAT, asking())[0] == 200, "the connection is still good"


def test_usage_at_the_end_of_a_stream(call):
    *events, last = call.events(asking(stream_options={"include_usage": True}))
    assert {event["usage"] for event in events} == {None}
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 10)


def test_a_stream_of_completions(call):
    events = call.events({"model": "cloud-test-model", "prompt": "x"}, TEXT)
    assert "".join(event["choices"][0]["text"] for event in events) == "This is the cloud's answer."


@pytest.mark.parametrize("key", ["", "wrong", "sk-test-"])
def test_a_wrong_key_is_refused(cloud, call, key):
    status, answer = call(CHAT, asking(), key=key)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert str(cloud.api_key) not in json.dumps(answer)
    assert call(CHAT, asking(), headers={"Authorization": ""})[1]["error"]["code"] == "missing_api_key"


WRONG = {
    "no json": (b"{", 400, None),
    "no object": ([], 400, None),
    "not even text": (b"\xff\xfe", 400, None),
    "no model": ({"messages": [{"role": "user", "content": "x"}]}, 400, "model"),
    "another model": (asking() | {"model": "gpt"}, 404, "model"),
    "no messages": ({"model": "cloud-test-model"}, 400, "messages"),
    "empty messages": (asking() | {"messages": []}, 400, "messages"),
    "no role": (asking() | {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    "odd role": (asking() | {"messages": [{"role": ["user"], "content": "x"}]}, 400, "messages[0].role"),
    "no content": (asking() | {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    "a picture": (asking([{"type": "image_url", "image_url": {}}]), 400, "messages[0].content"),
    "two answers": (asking(n=2), 400, "n"),
    "n is true": (asking(n=True), 400, "n"),
    "no tokens": (asking(max_tokens=0), 400, "max_tokens"),
    "half a token": (asking(max_completion_tokens=0.5), 400, "max_completion_tokens"),
    "tools": (asking(tools=[{}]), 400, "tools"),
    "a form": (asking(response_format={"type": "json_object"}), 400, "response_format"),
    "stream is text": (asking(stream="yes"), 400, "stream"),
    "no stream at all": (asking(stream=""), 400, "stream"),
    "hot": (asking(temperature="hot"), 400, "temperature"),
    "too hot": (asking(temperature=2.5), 400, "temperature"),
    "no number": (asking(top_p=float("nan")), 400, "top_p"),
    "seed is true": (asking(seed=True), 400, "seed"),
    "nine stops": (asking(stop=["x"] * 9), 400, "stop"),
    "no stops": (asking(stop=[]), 400, "stop"),
    "an empty stop": (asking(stop=""), 400, "stop"),
    "a stop that is a number": (asking(stop=[3]), 400, "stop"),
    "a name that nobody knows": (asking(top_k=3), 400, "top_k"),
    "a prompt in a chat": (asking(prompt="x"), 400, "prompt"),
    "no log probabilities": (asking(logprobs=0), 400, "logprobs"),
    "a choice of tools": (asking(tool_choice="auto"), 400, "tool_choice"),
    "options of no stream": (asking(stream_options={"include_usage": True}), 400, "stream_options"),
    "deep": (b"[" * 100_000, 400, None),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_the_api_s_form(call, name):
    body, status, param = WRONG[name]
    found, answer = call(CHAT, body)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param
    assert call(CHAT, asking())[0] == 200, "the connection is still good"


@pytest.mark.parametrize("prompt", [None, 3, ["a", "b"], [[1, 2]]])
def test_one_prompt_only(call, prompt):
    assert call(TEXT, {"model": "cloud-test-model", "prompt": prompt})[0] == 400


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/embeddings", "POST", 404), ("/", "GET", 404), (CHAT, "GET", 405), ("/v1/models", "DELETE", 405)],
)
def test_what_is_not_there(call, path, method, status):
    assert call(path, method=method)[0] == status


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_scripted_failure(cloud, call, status):
    cloud.fail(status, "not today")
    found, answer = call(CHAT, asking())
    assert (found, answer["error"]["message"]) == (status, "not today")
    assert cloud.requests[0].texts == ("Why is the sky blue?",), "what was asked is known all the same"
    assert cloud.requests[0].answer is None


def test_another_name(cloud, call):
    cloud.answer_as("cheap-model")
    assert call(CHAT, asking())[1]["model"] == "cheap-model"
    assert {event["model"] for event in call.events(asking())} == {"cheap-model"}
    assert cloud.requests[0].model == "cheap-model"


def test_slow_answers(cloud, call):
    cloud.slow(0.2)
    started = time.monotonic()
    call(CHAT, asking())
    assert time.monotonic() - started >= 0.2
    cloud.reset()
    cloud.slow(per_chunk=0.05)
    started = time.monotonic()
    assert len(call.events(asking())) == 6
    assert time.monotonic() - started >= 0.3


def test_closing_does_not_wait_for_slow_answers():
    cloud = CloudEndpoint()
    caller = Caller(cloud)
    cloud.slow(60)
    caller.connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {cloud.api_key}"})
    while not cloud.requests:
        time.sleep(0.01)
    started = time.monotonic()
    cloud.close()
    cloud.close()
    assert time.monotonic() - started < 5
    caller.connection.close()


def test_a_cut_stream_has_no_end(cloud, call):
    cloud.cut(2)
    response = call.send(CHAT, asking(stream=True))
    with pytest.raises(http.client.IncompleteRead) as error:
        response.read()
    assert error.value.partial.count(b"data: ") == 2
    assert b"[DONE]" not in error.value.partial


def test_a_cut_answer_is_half(cloud, call):
    cloud.cut()
    with pytest.raises(http.client.IncompleteRead):
        call.send(CHAT, asking()).read()


def _asserts(request):
    assert request.texts == ("Good-bye",), "another prompt"


REPLIES = {
    "fails": (lambda request: {}["no"], UsageError, "raised KeyError: 'no'"),
    "makes no text": (lambda request: 3, UsageError, "made no text but int"),
    "asserts": (_asserts, AssertionError, "another prompt"),
    "ends the test": (lambda request: pytest.fail("enough"), pytest.fail.Exception, "enough"),
    "exits": (lambda request: sys.exit(3), SystemExit, "3"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_that_fails_is_an_answer_and_is_told_to_the_test(cloud, call, name):
    reply, error, said = REPLIES[name]
    cloud.reply(reply)
    status, answer = call(CHAT, asking())
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert said in answer["error"]["message"]
    (request,) = cloud.requests
    assert (request.status, request.spoiled, request.is_right) == (500, "failed", True)
    assert said in request.script_error
    with pytest.raises(error, match=said):
        cloud.raise_script_error()
    cloud.raise_script_error()  # told once


def test_a_failure_that_was_not_told_is_forgotten_with_its_test(cloud, call):
    cloud.reply(_asserts)
    call(CHAT, asking())
    cloud.reset()
    cloud.raise_script_error()


def test_a_request_is_remembered_when_it_comes_and_not_in_the_next_test(cloud):
    came, answers = threading.Event(), threading.Event()

    def reply(request):
        came.set()
        assert answers.wait(10)
        return "too late"

    cloud.reply(reply)
    caller = Caller(cloud)
    caller.connection.request("POST", CHAT, json.dumps(asking()), headers={"Authorization": f"Bearer {cloud.api_key}"})
    assert came.wait(5)
    (request,) = cloud.requests
    assert (request.status, request.answer, request.is_right) == (None, None, True)
    assert request.texts == ("Why is the sky blue?",)
    cloud.reset()
    answers.set()
    assert caller.connection.getresponse().status == 200
    caller.connection.close()
    assert cloud.requests == ()


def test_every_run_of_an_app_has_an_address_of_its_own(cloud, call):
    def path_of(run):
        return run.environment()["OPENAI_BASE_URL"].partition(f":{cloud._server.port}")[2] + "/chat/completions"

    with cloud.run() as first, cloud.run() as second:
        assert {**first.environment(), "OPENAI_BASE_URL": cloud.base_url} == cloud.environment()
        assert call(path_of(first), asking("one"))[0] == 200
        call(path_of(second), asking("two"), key="sk-other")
        call(CHAT, asking("three"))
    assert [request.texts for request in first.requests] == [("one",)]
    assert [(request.texts, request.status) for request in second.requests] == [(("two",), 401)]
    assert [request.texts for request in cloud.requests] == [("one",), ("two",), ("three",)]
    assert {request.path for request in cloud.requests} == {CHAT}


def test_what_comes_after_the_end_of_a_run_is_refused_and_remembered_nowhere(cloud, call):
    with cloud.run() as run:
        path = run.environment()["OPENAI_BASE_URL"].partition(f":{cloud._server.port}")[2] + "/chat/completions"
    cloud.reset()
    cloud.reply("once", times=1)
    status, answer = call(path, asking())
    assert (status, answer["error"]["code"]) == (404, "run_ended")
    assert (cloud.requests, run.requests) == ((), ())
    assert cloud.script.reply == "once", "no script is used up"
    assert call(CHAT, asking())[0] == 200, "the connection is still good"


def test_closing_does_not_wait_for_a_reply_that_never_comes(monkeypatch):
    monkeypatch.setattr(server, "_END_S", 0.2)
    came, answers, before = threading.Event(), threading.Event(), set(threading.enumerate())

    def endless_reply(request):
        came.set()
        answers.wait(30)
        return "never"

    cloud = CloudEndpoint()
    cloud.reply(endless_reply)
    caller = Caller(cloud)
    caller.connection.request("POST", CHAT, json.dumps(asking()), headers={"Authorization": f"Bearer {cloud.api_key}"})
    assert came.wait(5)
    with pytest.warns(UserWarning, match=r"endless_reply \(.*test_cloud_endpoint\.py:\d+\) is still making an answer"):
        cloud.close()
    answers.set()
    caller.connection.close()
    for left_behind in set(threading.enumerate()) - before:
        left_behind.join(5)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=range(8),
)
def test_what_is_no_http_gets_json_all_the_same(cloud, data):
    received = raw(cloud, data)
    if data.strip():
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"Connection: close" in head
        assert "message" in json.loads(body)["error"]
        assert cloud.requests[-1].status == 400


def test_sizes_are_bounded(cloud):
    head = f"POST {CHAT} HTTP/1.1\r\nContent-Length: {LARGEST_BODY + 1}\r\n\r\n"
    assert raw(cloud, head.encode()).startswith(b"HTTP/1.1 413 ")
    head = f"POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n{LARGEST_BODY:x}\r\n"
    assert raw(cloud, head.encode()).startswith(b"HTTP/1.1 413 ")


LENGTHS = {
    "two": b"Content-Length: 3\r\nContent-Length: 30\r\n",
    "twice the same": b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "a list": b"Content-Length: 3, 3\r\n",
    "both": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "another coding": b"Transfer-Encoding: gzip\r\n",
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n",
    "none": b"",
    "behind what is no header": b"hello there\r\nContent-Length: 3\r\n",
    "a chunk without a size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a chunk below nothing": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a chunk that is longer": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n",
    "endless trailers": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200,
}


@pytest.mark.parametrize("name", LENGTHS)
def test_no_byte_of_a_body_becomes_a_request(cloud, name):
    smuggled = b"GET /v1/models HTTP/1.1\r\n\r\n"
    received = raw(cloud, f"POST {CHAT} HTTP/1.1\r\n".encode() + LENGTHS[name] + b"\r\n" + smuggled)
    assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 411 "))
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in received
    assert [request.path for request in cloud.requests] == [CHAT]


def test_a_header_without_a_name_hides_no_length(cloud):
    smuggled = b"GET /v1/models HTTP/1.1\r\n\r\n"
    head = f"GET /v1/models HTTP/1.1\r\nhello there\r\nContent-Length: {len(smuggled)}\r\n\r\n"
    assert raw(cloud, head.encode() + smuggled).startswith(b"HTTP/1.1 400 ")
    assert len(cloud.requests) == 1


def test_a_body_in_chunks(cloud, call):
    parts = iter([b'{"model": "cloud-test-model", ', b'"messages": [{"role": "user", "content": "In parts"}]}'])
    headers = {"Authorization": f"Bearer {cloud.api_key}"}
    call.connection.request("POST", CHAT, parts, headers, encode_chunked=True)
    assert json.loads(call.connection.getresponse().read())["object"] == "chat.completion"
    assert cloud.requests[0].texts == ("In parts",)
    assert call(CHAT, asking())[0] == 200, "the connection is still good"


def test_trailers_are_read(cloud):
    body = json.dumps(asking()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nAuthorization: bearer {cloud.api_key}\r\nTransfer-Encoding: Chunked\r\n\r\n"
    received = raw(cloud, head.encode() + b"%x;a=b\r\n%s\r\n0\r\nSum: 1\r\n\r\n" % (len(body), body))
    assert received.startswith(b"HTTP/1.1 200 ")


def test_clients_that_come_at_once_wait_in_line(cloud, monkeypatch):
    busy, process = threading.Event(), cloud._server.process_request
    monkeypatch.setattr(cloud._server, "process_request", lambda *client: busy.wait(10) and process(*client))
    connections = []
    try:
        for _ in range(40):
            connections.append(socket.create_connection(("127.0.0.1", cloud._server.port), timeout=2))
    finally:
        busy.set()
        for connection in connections:
            connection.close()


def test_a_client_that_leaves_is_no_trouble(cloud, call):
    raw(cloud, f"POST {CHAT} HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf".encode())
    assert cloud.requests == ()
    assert call(CHAT, asking())[0] == 200


def test_an_old_client_reads_to_the_end(cloud):
    body = json.dumps(asking(stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.0\r\nAuthorization: Bearer {cloud.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
    received = raw(cloud, head.encode() + body)
    assert b"chunked" not in received
    assert received.endswith(b"data: [DONE]\n\n")


def test_requests_are_remembered_without_the_key(cloud, call):
    key = str(cloud.api_key)
    call(f"{CHAT}?key={key}", asking(f"my key is {key}"), headers={"X-Api-Key": "mine", "X-Note": key})
    call(CHAT, b"no json " + key.encode(), key="sk-real-one")
    first, second = cloud.requests
    assert (first.method, first.status, second.status) == ("POST", 200, 401)
    assert first.texts == ("my key is ***",)
    assert (first.headers["authorization"], first.headers["x-api-key"], first.headers["x-note"]) == ("***",) * 3
    assert second.body == "no json ***"
    shown = repr(cloud.requests) + repr(cloud)
    assert key not in shown
    assert "sk-real-one" not in shown


def test_the_key_is_found_however_it_came(cloud, call):
    key = str(cloud.api_key)
    quoted = "".join(f"%{letter:02x}" for letter in key.encode())
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    known = {"X-" + key.title(): "a name", "X-Note": base64.b64encode(f"me:{key}".encode()).decode()}
    call(f"/v1/{quoted}?key={quoted}", b"{}", headers=known)
    call(CHAT, f'{{"{escaped}": ["{escaped}"], "messages": [{{"role": "user", "content": "{escaped}"}}]}}'.encode())
    raw(cloud, f"{key} /{key} HTTP/1.1\r\n\r\n".encode())
    raw(cloud, f"{key}\r\n\r\n".encode())
    cloud.reply(lambda request: {}[key])
    call(CHAT, asking())
    path, body, method, line, script = cloud.requests
    assert path.path == "/v1/***?key=***"
    assert path.headers["x-***"] == "a name"
    assert path.headers["x-note"].count("***") == 1
    assert (body.texts, body.body["***"]) == (("***",), ["***"])
    assert (method.method, method.path, line.path) == ("***", "/***", "***")
    assert "***" in script.script_error
    assert key.lower() not in repr(cloud.requests).lower()


def test_a_body_that_is_too_deep_to_be_searched_is_kept_as_text(cloud, call):
    deep = b"[" * 600 + str(cloud.api_key).encode() + b"]" * 600
    call(CHAT, deep.replace(str(cloud.api_key).encode(), b'"' + str(cloud.api_key).encode() + b'"'))
    assert str(cloud.api_key) not in repr(cloud.requests[0].body)


def test_a_script_may_hold_for_the_next_requests_only(cloud, call):
    cloud.fail(429, times=1)
    cloud.fail(500, times=2)
    cloud.reply("once", times=4)
    cloud.reply("then this")
    assert cloud.script.fail == (429, "Scripted failure 429.")
    assert [call(CHAT, asking())[0] for _ in range(3)] == [429, 500, 500]
    assert [call(CHAT, asking())[1]["choices"][0]["message"]["content"] for _ in range(2)] == ["once", "then this"]
    assert cloud.script == Script(reply="then this")


def test_every_kind_of_script_can_hold_once(cloud, call):
    cloud.answer_as("cheap", times=1)
    cloud.slow(0.05, times=1)
    started = time.monotonic()
    assert call(CHAT, asking())[1]["model"] == "cheap"
    assert time.monotonic() - started >= 0.05
    cloud.cut(1, times=1)
    with pytest.raises(http.client.IncompleteRead):
        call(CHAT, asking())
    call.connection.close()
    assert call(CHAT, asking())[1]["model"] == cloud.model


SPOILED = {
    "nothing": (lambda cloud: None, {}, None),
    "slow": (lambda cloud: cloud.slow(0.01), {}, None),
    "failed": (lambda cloud: cloud.fail(401), {}, "failed"),
    "cut": (lambda cloud: cloud.cut(1), {"stream": True}, "cut"),
    "cut where nothing is streamed": (lambda cloud: cloud.cut(100), {}, "cut"),
    "cut behind the end": (lambda cloud: cloud.cut(100), {"stream": True}, None),
    "renamed": (lambda cloud: cloud.answer_as("other"), {}, "renamed"),
    "named as ever": (lambda cloud: cloud.answer_as(cloud.model), {}, None),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_request_remembers_what_the_script_did_to_it(cloud, call, name):
    script, more, spoiled = SPOILED[name]
    script(cloud)
    with suppress(http.client.IncompleteRead):
        call.send(CHAT, asking(**more)).read()
    (request,) = cloud.requests
    assert (request.spoiled, request.is_right) == (spoiled, True)
    assert request.takes_s == (0.01 if name == "slow" else 0)


def test_a_request_that_is_wrong_is_no_better_for_a_script(cloud, call):
    cloud.fail(401)
    call(CHAT, {"nonsense": True})
    call(CHAT, asking(), key="sk-other")
    assert [(request.status, request.spoiled, request.is_right) for request in cloud.requests] == [
        (400, None, False),
        (401, None, False),
    ]


def test_reset_forgets_everything(cloud, call):
    cloud.fail(500)
    cloud.fail(429, times=2)
    cloud.slow(0.01)
    call(CHAT, asking())
    cloud.reset()
    assert cloud.requests == ()
    assert cloud.script == Script()
    assert call(CHAT, asking())[0] == 200


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cloud: cloud.fail(200),
        lambda cloud: cloud.fail(True),
        lambda cloud: cloud.fail("500"),
        lambda cloud: cloud.slow(),
        lambda cloud: cloud.slow(-1),
        lambda cloud: cloud.slow("x"),
        lambda cloud: cloud.slow(1, per_chunk=float("nan")),
        lambda cloud: cloud.slow("1"),
        lambda cloud: cloud.slow(float("inf")),
        lambda cloud: cloud.answer_as(""),
        lambda cloud: cloud.answer_as(None),
        lambda cloud: cloud.answer_as(5),
        lambda cloud: cloud.fail(500, times=0),
        lambda cloud: cloud.reply("a", times=True),
        lambda cloud: cloud.cut(times=10**9),
        lambda cloud: cloud.cut(-1),
        lambda cloud: cloud.cut(1.5),
        lambda cloud: cloud.reply(None),
    ],
)
def test_scripts_that_make_no_sense(cloud, wrong):
    with pytest.raises(UsageError):
        wrong(cloud)


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz", "\n"])
def test_a_secret_is_found_in_every_usual_form(before, after):
    key = Secret("sk-a/b+c?d=0123456789")
    text = f"{before}{key}{after}"
    for shown in (
        text,
        quote(text),
        quote(text, safe=""),
        text.encode().hex(),
        base64.b64encode(text.encode()).decode(),
        base64.urlsafe_b64encode(text.encode()).decode(),
    ):
        assert key.is_in(f"said {shown} there")
        assert HIDDEN in key.hidden_in(shown)
        assert not key.is_in(key.hidden_in(shown))


def test_a_short_or_empty_secret_is_looked_for_as_it_is_only():
    for key in ("", "a", "key"):
        assert not Secret(key).is_in("0123456789 =")
        assert Secret(key).hidden_in("0123456789 =") == "0123456789 ="


def test_a_secret_is_used_but_not_shown():
    key = Secret("sk-1")
    assert (f"{key}", repr(key), repr({"key": key}), key.hidden_in("a sk-1")) == (
        "sk-1",
        "'***'",
        "{'key': '***'}",
        "a ***",
    )
    assert Secret("").hidden_in("abc") == "abc"


@pytest.mark.parametrize("text", ["", " ", "a", "a b\n", "  你好 世界  ", "a\n\nb"])
def test_pieces_are_the_text(text):
    assert "".join(pieces_of(text)) == text
