"""Whatever a client sends, the cloud endpoint has an answer in the API's form."""

import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cannlm.cloud.answers import Completion, pieces_of
from pytest_cannlm.cloud.endpoint import CloudEndpoint
from pytest_cannlm.cloud.questions import ApiError, Question, question_of, texts_in

NAMES = st.sampled_from(
    ["model", "messages", "prompt", "role", "content", "type", "text", "n", "stream", "stream_options", "max_tokens"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["m", "user", "text"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def asked(body, *, chat):
    try:
        return question_of(body, chat=chat, model="m")
    except ApiError as error:
        return error


@given(JSON, st.booleans())
def test_a_body_is_a_question_or_an_error_of_the_api(body, chat):
    assert all(isinstance(text, str) for text in texts_in(body))
    found = asked(body, chat=chat)
    if isinstance(found, ApiError):
        assert found.status in (400, 404)
        assert json.loads(json.dumps(found.as_dict()))["error"]["message"]
    else:
        assert found.texts == texts_in(body) or "messages" in body


@given(st.text(), st.none() | st.integers(1, 5), st.booleans(), st.booleans())
def test_the_stream_says_what_the_whole_answer_says(text, limit, chat, include_usage):
    question = Question(
        chat=chat, model="m", texts=("a b",), stream=True, include_usage=include_usage, max_tokens=limit
    )
    answer = Completion.of(question, text, model="m")
    events = list(answer.events())
    chosen = [choice for event in events for choice in event["choices"]]
    said = [choice["delta"].get("content", "") if chat else choice["text"] for choice in chosen]
    assert "".join(said) == answer.text == "".join(pieces_of(text)[:limit])
    assert chosen[-1]["finish_reason"] == answer.whole()["choices"][0]["finish_reason"]
    assert answer.usage()["completion_tokens"] <= (limit or len(text) + 1)


@pytest.fixture(scope="module")
def cloud():
    endpoint = CloudEndpoint()
    yield endpoint
    endpoint.close()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([b"", b"GET /v1/models HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\n"]),
    st.binary(max_size=200),
)
def test_bytes_of_any_kind_get_json_or_nothing(cloud, head, rest):
    host, _, port = cloud.base_url[len("http://") : -3].partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head + rest + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while more := connection.recv(65536):
            received += more
    if received:
        first = received.partition(b"\r\n\r\n")[2]
        assert received.startswith(b"HTTP/1.1 4")
        assert "error" in json.JSONDecoder().raw_decode(first.decode())[0]
