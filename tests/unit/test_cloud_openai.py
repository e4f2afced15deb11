"""The `openai` client against the scripted endpoint: it must not notice a difference."""

import pytest

openai = pytest.importorskip("openai")

from pytest_cannlm.cloud.endpoint import CloudEndpoint  # noqa: E402 - behind the check

HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def cloud():
    endpoint = CloudEndpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def client(cloud):
    with openai.OpenAI(base_url=cloud.base_url, api_key=cloud.api_key, max_retries=0, timeout=5) as made:
        yield made


def test_chat(cloud, client):
    answer = client.chat.completions.create(model=cloud.model, messages=HELLO)
    assert answer.choices[0].message.content == "This is the cloud's answer."
    assert answer.usage.prompt_tokens == 2


def test_stream(cloud, client):
    chunks = list(
        client.chat.completions.create(
            model=cloud.model, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "This is the cloud's answer."
    assert chunks[-1].usage.completion_tokens == 5


def test_completions_and_models(cloud, client):
    assert client.completions.create(model=cloud.model, prompt="x").choices[0].text.startswith("This")
    assert [model.id for model in client.models.list()] == [cloud.model]
    assert client.models.retrieve(cloud.model).id == cloud.model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_stop(cloud, client):
    answer = client.chat.completions.create(model=cloud.model, messages=HELLO, stop=["cloud"], temperature=0.5)
    assert answer.choices[0].message.content == "This is the "


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
    ],
)
def test_failures_are_the_client_s_own(cloud, client, status, error):
    cloud.fail(status)
    with pytest.raises(getattr(openai, error)) as raised:
        client.chat.completions.create(model=cloud.model, messages=HELLO)
    assert raised.value.status_code == status
    assert str(cloud.api_key) not in str(raised.value)


def test_a_wrong_model_and_a_wrong_key(cloud, client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="another", messages=HELLO)
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").models.list()


def test_a_bad_request(cloud, client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=cloud.model, messages=HELLO, n=2)
    assert raised.value.param == "n"


def test_time_out(cloud, client):
    cloud.slow(5)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(model=cloud.model, messages=HELLO)
    assert cloud.requests[0].texts == ("Hello there",)


def test_retries_reach_the_endpoint(cloud, client):
    cloud.fail(500)
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=1).models.list()
    assert len(cloud.requests) == 2


def test_a_cut_stream_is_noticed(cloud, client):
    cloud.cut(1)
    stream = client.chat.completions.create(model=cloud.model, messages=HELLO, stream=True)
    with pytest.raises(Exception, match=r"(?i)incomplete|closed|connection|protocol"):
        list(stream)
