"""One guarded way to generate: what does not fit is noticed by counting, and nothing depends on the request before."""

import json

import pytest
from fake_npu import FakeClient, tiny_tokenizer
from tiny import tiny_llama

from pytest_cannlm.agent.protocol import AgentStatus, GenerateRequest, Generation, Times
from pytest_cannlm.build import PackageFolder
from pytest_cannlm.compat.gate import Target
from pytest_cannlm.devices import DeviceInfo, parse_device
from pytest_cannlm.errors import EngineError, KVCacheOverflow, UsageError
from pytest_cannlm.harness import memory
from pytest_cannlm.harness.case import Case
from pytest_cannlm.harness.npu import Npu, Reply
from pytest_cannlm.harness.run import Run

CONTEXT = 64
TEXT = "The quick brown fox"
PROMPT = len(tiny_tokenizer().encode(TEXT))


@pytest.fixture
def started(tmp_path):
    """``started(client)`` gives a run with a package of which only the tokenizer and the context are read."""

    def start(client, *, context=CONTEXT):
        executor = {"llm_config": {"kv_cache_max_len": context}, "tokenizer": {"path": "tokenizer.json"}}
        (tmp_path / "executor.json").write_text(json.dumps(executor))
        (tmp_path / "tokenizer.json").write_bytes((tiny_llama() / "tokenizer.json").read_bytes())
        spec = parse_device("sim")
        return Run(
            case=Case(device=spec, model="m"),
            device=DeviceInfo("sim", "sim", "KirinX90", "6.1.1.0", None, None, True, {}),
            package=PackageFolder(tmp_path, None, {}),
            client=client,
            capabilities=client.capabilities(),
            target=Target("KirinX90", "6.1.1.0"),
            started=AgentStatus(1, 2, None, None, 1, 0),
        )

    return start


def asking(new_tokens):
    return GenerateRequest(text=TEXT, max_new_tokens=new_tokens, ignore_eos=True)


def test_the_last_token_needs_no_position(started):
    run = started(FakeClient())
    most = CONTEXT - PROMPT + 1
    assert run.room(TEXT) == most
    assert len(run.generate(asking(most)).tokens) == most
    with pytest.raises(KVCacheOverflow, match=rf"{CONTEXT + 1} positions .* at most {CONTEXT}"):
        run.generate(asking(most + 1))


def test_the_tokenizer_of_an_app_is_the_one_in_the_package(started, tmp_path):
    run = started(FakeClient())
    app = "/data/app/qwen2"
    paths = {"model_path": f"{app}/m.omc", "weight_path": f"{app}/"}
    executor = {"tokenizer": {"path": f"{app}/tokenizer.json"}, "autoregressive": paths}
    (tmp_path / "executor.json").write_text(json.dumps(executor))
    assert len(run.tokenizer.encode(TEXT)) == PROMPT


@pytest.mark.parametrize("names", [("tokenize",), ()])
def test_an_engine_that_counts_too_few_prompt_tokens_hides_no_overflow(started, names):
    run = started(FakeClient(prompt_tokens=lambda _: 1, capabilities=names))
    with pytest.raises(KVCacheOverflow):
        run.generate(asking(CONTEXT))


def test_another_count_of_prompt_tokens_is_an_error_of_its_own(started):
    with pytest.raises(EngineError, match="counts other prompt tokens") as error:
        started(FakeClient(prompt_tokens=lambda _: PROMPT - 1)).generate(asking(2))
    assert error.value.code == "PROMPT_TOKENS_DIFFER"
    assert started(FakeClient(prompt_tokens=lambda _: PROMPT - 1, capabilities=())).generate(asking(2))


def test_a_request_that_the_engine_takes_from_nobody_says_how_much_it_takes(started):
    refused = EngineError("Generate returned 1", code="1", remedy="Read the engine's log lines")
    run = started(FakeClient(fails={"generate": refused}))
    run.package.executor["llm_config"]["max_io_tokens"] = CONTEXT
    with pytest.raises(
        EngineError, match=rf"{PROMPT} prompt and {CONTEXT} new tokens; expected: at most {CONTEXT}"
    ) as e:
        run.generate(asking(CONTEXT))
    assert e.value.code == "REQUEST_TOO_LONG"
    assert "Ask for fewer new tokens" in str(e.value)
    assert "log lines" not in str(e.value)
    with pytest.raises(EngineError) as e:
        run.generate(asking(1))
    assert e.value is refused


def test_a_prompt_without_any_room_is_refused_before_it_runs(started):
    run = started(FakeClient(), context=PROMPT - 1)
    with pytest.raises(UsageError, match="the prompt does not fit the KV cache"):
        run.room(TEXT)
    assert run.client.log == []


def test_the_harness_s_own_requests_are_clipped_to_the_room(started):
    seen = []
    client = FakeClient()
    generate = client.generate
    client.generate = lambda request: (seen.append(request), generate(request))[1]
    run = started(client)
    memory.observe(run)
    assert len(seen) == 3
    assert all(request.max_new_tokens == min(64, run.room(request.text)) for request in seen)
    assert any(request.max_new_tokens < 64 for request in seen)


def test_what_the_harness_generates_is_guarded_too(started):
    with pytest.raises(EngineError, match="counts other prompt tokens"):
        memory.observe(started(FakeClient(prompt_tokens=lambda _: 1)))


def test_every_request_starts_empty_unless_the_prefix_is_to_be_reused(started):
    client, npu = FakeClient(), Npu()
    npu.attach(started(client))
    npu.generate(TEXT)
    npu.generate(TEXT, reuse_prefix=True)
    assert client.log == ["reset", "generate", "generate"]


def test_the_reply_shows_what_was_not_computed_again():
    times = Times(0, 1, (1, 2), 2)
    generation = Generation("", 9, (1, 2), "stop", times, "modelled", "double", cached_prefix_tokens=7)
    assert Reply.of(generation).cached_prefix_tokens == 7
