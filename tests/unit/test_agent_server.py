"""Supervisor, worker and client together: real processes, real sockets, the scripted engine."""

import http.client
import json
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from engine_double import COMMANDS
from scripted_device import ENGINE, TESTS, say, scripted_device, wait_until

from pytest_cannlm.agent import host
from pytest_cannlm.agent.protocol import TIMEOUT_HEADER, GenerateRequest, TimingRequest, TokenEvent
from pytest_cannlm.agent.server import AgentServer, _Handler
from pytest_cannlm.agent.supervisor import AgentConfig, Supervisor
from pytest_cannlm.devices import AgentClient, SimulatedDevice, parse_device
from pytest_cannlm.devices.process import AgentProcess
from pytest_cannlm.errors import (
    DeviceError,
    EngineCrash,
    EngineError,
    EngineHang,
    EnvironmentFailure,
    KVCacheOverflow,
    UsageError,
)

CRASH, RAISE = COMMANDS


@pytest.fixture(scope="module")
def device() -> Iterator[SimulatedDevice]:
    with scripted_device() as opened:
        yield opened


@pytest.fixture
def agent(device: SimulatedDevice, tmp_path: Path) -> AgentClient:
    agent = device.agent()
    status = agent.status()
    if status.worker is None or status.package is None:
        agent.load(tmp_path)
    return agent


@contextmanager
def agent_process() -> Iterator[AgentProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        process = AgentProcess(chip="KirinX90", cann="6.1.1.0", engine=ENGINE, engine_options={"from": "device"})
        yield process
        process.close()


@pytest.fixture(scope="module")
def process() -> Iterator[AgentProcess]:
    with agent_process() as started:
        yield started


def request(
    process: AgentProcess,
    method: str,
    path: str,
    *,
    token: str | None,
    body: bytes | None = None,
    limit: str | None = None,
) -> tuple[int, dict[str, object]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if limit is not None:
        headers[TIMEOUT_HEADER] = limit
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("token", [None, "", "wrong", "ünïcode"])
def test_whoever_does_not_know_the_secret_gets_nothing(process: AgentProcess, token: str | None) -> None:
    headers_safe = None if token is None else token.encode().decode("latin-1")
    assert request(process, "GET", "/v1/status", token=headers_safe) == (401, {"error": "Unauthorized"})
    assert request(process, "POST", "/v1/shutdown", token=headers_safe, body=b"{}")[0] == 401
    assert request(process, "GET", "/v1/status", token=process.token)[0] == 200


def test_a_client_with_a_wrong_secret_is_told_so(process: AgentProcess) -> None:
    client = AgentClient(port=process.port, token="wrong")
    with pytest.raises(DeviceError, match="secret") as failure:
        client.status()
    client.close()
    assert failure.value.code == "UNAUTHORIZED"


def test_every_run_has_its_own_secret(process: AgentProcess) -> None:
    assert len(process.token) >= 32
    with agent_process() as other:
        assert other.token != process.token


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/nothing", None),
        ("POST", "/v1/load", b"not json"),
        ("POST", "/v1/load", b"[1]"),
        ("POST", "/v1/load", b"{}"),
        ("POST", "/v1/load", b'{"package": ".", "gate": {"colour": "blue"}}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": {"chip": "KirinX90", "cann": null, "policy": "any"}}'),
        ("POST", "/v1/load", b"[" * 100_000),
        ("POST", "/v1/load", b'{"a": "\xff"}'),
        ("POST", "/v1/load", b'{"package": 5, "gate": "off"}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": "of"}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": null}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": [1]}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": {"chip": 5, "cann": "6.1.1.0"}}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": {"chip": "KirinX90", "cann": "6.1.1.0", "chips": 3}}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": {"chip": "KirinX90", "cann": null, "version_pairs": [1]}}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": "off", "options": "abc"}'),
        ("POST", "/v1/load", b'{"package": ".", "gate": "off", "manifest": 3}'),
        ("POST", "/v1/generate", b'{"text": "hi"}'),
        ("POST", "/v1/generate", b'{"text": "hi", "max_new_tokens": 0}'),
        ("POST", "/v1/generate", b'{"text": 5, "max_new_tokens": 3}'),
        ("POST", "/v1/sample_times", b'{"prompt_tokens": 1, "new_tokens": 2, "repeats": 0, "seed": 0}'),
        ("POST", "/v1/tokenize", b'{"text": ["a"]}'),
        ("POST", "/v1/logits", b'{"tokens": "ab"}'),
        ("POST", "/v1/logits", b'{"tokens": [1], "first": true}'),
    ],
)
def test_requests_that_make_no_sense_are_refused_and_the_agent_goes_on(
    process: AgentProcess, method: str, path: str, body: bytes | None
) -> None:
    status, answer = request(process, method, path, token=process.token, body=body)
    assert (status, answer["error"]) == (400, "UsageError")
    assert request(process, "GET", "/v1/status", token=process.token)[0] == 200


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_a_positive_number(process: AgentProcess, limit: str) -> None:
    status, answer = request(process, "POST", "/v1/reset", token=process.token, body=b"{}", limit=limit)
    assert (status, answer["error"]) == (400, "UsageError")


@pytest.mark.parametrize("package", ["/" + "a" * 5000, "a\0b", "\udcff"])
def test_a_package_that_cannot_be_a_path_is_refused(process: AgentProcess, package: str) -> None:
    body = json.dumps({"package": package, "gate": {"chip": "KirinX90", "cann": "6.1.1.0", "simulated": True}})
    status, answer = request(process, "POST", "/v1/load", token=process.token, body=body.encode())
    assert (status, answer["error"]) == (409, "GateRefusal")


@pytest.mark.parametrize("path", ["/v1/status", "/v1/generate"])
def test_a_failure_of_the_agent_itself_is_an_answer_and_its_traceback_is_in_the_log(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(AgentConfig(chip="KirinX90", cann="6.1.1.0", engine=ENGINE))

    def fail(*_: object, on_event: Callable[[object], None] = lambda event: None, **__: object) -> None:
        on_event({"token": {}})
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(supervisor, "status", fail)
    monkeypatch.setattr(supervisor, "call", fail)
    server = AgentServer(supervisor, secret="s")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        body = b'{"text": "hi", "max_new_tokens": 1}'
        connection.request("GET" if path == "/v1/status" else "POST", path, body, {"Authorization": "Bearer s"})
        answer = connection.getresponse()
        last = json.loads(answer.read().splitlines()[-1])
        connection.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert answer.status == (500 if path == "/v1/status" else 200)
    assert (last["error"], last["code"]) == ("CannlmError", "AGENT_EXCEPTION")
    assert "ZeroDivisionError: nobody thought of this" in last["message"]
    assert "in fail" in capsys.readouterr().err


def test_a_request_without_a_length_is_refused_and_its_body_is_no_second_request(process: AgentProcess) -> None:
    head = f"POST /v1/reset HTTP/1.1\r\nAuthorization: Bearer {process.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    smuggled = f"2\r\n{{}}\r\n0\r\n\r\nGET /v1/status HTTP/1.1\r\nAuthorization: Bearer {process.token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall((head + smuggled).encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_connections_that_do_not_show_the_secret_are_few_and_lock_nobody_out(process: AgentProcess) -> None:
    client = AgentClient(port=process.port, token=process.token)
    status = client.status()
    strangers = [socket.create_connection(("127.0.0.1", process.port), timeout=10) for _ in range(100)]
    try:
        assert client.status().supervisor == status.supervisor
        assert wait_until(lambda: psutil.Process(status.supervisor).num_threads() < 40)
        assert strangers[0].recv(1) == b""
        assert request(process, "GET", "/v1/status", token=process.token)[0] == 200
    finally:
        for stranger in strangers:
            stranger.close()
        client.close()


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    server = AgentServer(Supervisor(AgentConfig(chip="KirinX90", cann="6.1.1.0", engine=ENGINE)), secret="s")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            assert connection.recv(1) == b""
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_options_of_a_load_win_over_those_of_the_device(process: AgentProcess, tmp_path: Path) -> None:
    client = AgentClient(port=process.port, token=process.token)
    assert client.load(tmp_path).details["options"] == {"from": "device"}
    assert client.load(tmp_path, options={"from": "load", "x": 1}).details["options"] == {"from": "load", "x": 1}
    client.close()


def test_a_second_client_sees_the_same_engine(process: AgentProcess, tmp_path: Path) -> None:
    first, second = (AgentClient(port=process.port, token=process.token) for _ in range(2))
    first.load(tmp_path)
    assert second.generate(say("hello")).text == "hello"
    assert second.status() == first.status()
    first.close()
    second.close()


def test_a_client_that_waits_too_long_for_another_is_told_who_is_busy(agent: AgentClient) -> None:
    thread = threading.Thread(target=agent.generate, args=(say("slow:0.1", tokens=6),))
    thread.start()
    assert wait_until(lambda: agent.status().busy == "generate")
    with pytest.raises(DeviceError, match="generate of another client") as failure:
        agent.memory(timeout_s=0.1)
    thread.join()
    assert failure.value.code == "ENGINE_BUSY"
    assert agent.memory().load == 2


def test_capabilities_before_a_load_keep_their_process_for_it(tmp_path: Path) -> None:
    with scripted_device() as device:
        agent = device.agent()
        assert "logits" in agent.capabilities().names
        assert agent.status().package is None
        assert agent.load(tmp_path).details["pid"] == agent.status().worker


@pytest.mark.parametrize(
    ("command", "found", "said"),
    [
        ("crash", "SIGSEGV", "about to crash in load"),
        ("abort", "SIGABRT", "ran out of memory"),
        ("kill", "SIGKILL", "out of memory"),
        ("exit:3", "exit status 3", "crashed during load"),
    ],
)
def test_a_crash_during_load_names_how_it_ended(
    agent: AgentClient, tmp_path: Path, command: str, found: str, said: str
) -> None:
    with pytest.raises(EngineCrash, match="during load") as failure:
        agent.load(tmp_path, options={"on_load": command})
    assert failure.value.found == found
    assert said in str(failure.value)
    assert agent.status().worker is None
    assert agent.load(tmp_path).engine == "scripted 1.0"


def test_a_hang_during_load_ends_within_its_limit(agent: AgentClient, tmp_path: Path) -> None:
    with pytest.raises(EngineHang, match="during load"):
        agent.load(tmp_path, options={"on_load": "hang"}, timeout_s=0.5)
    assert agent.status().worker is None


@pytest.mark.parametrize("code", [145000, 145002, 500002, 507018, 100002, 100012, 207001, 999999])
def test_the_load_error_comes_first_with_its_code(agent: AgentClient, tmp_path: Path, code: int) -> None:
    with pytest.raises(EngineError) as failure:
        agent.load(tmp_path, options={"on_load": f"code:{code}"})
    assert type(failure.value) is EngineError
    assert str(failure.value).startswith(f"the engine's load failed (found: {code} ")
    assert failure.value.remedy
    assert not hasattr(failure.value, "__notes__")
    assert agent.status().worker is None
    assert agent.load(tmp_path).engine == "scripted 1.0"


@pytest.mark.parametrize(
    ("on_unload", "note"),
    [("raise", "asked to raise in unload"), ("crash", "cleaning up after the failed load crashed: SIGSEGV")],
)
def test_clean_up_trouble_is_a_note_of_the_load_error(
    agent: AgentClient, tmp_path: Path, on_unload: str, note: str
) -> None:
    with pytest.raises(EngineError, match="the engine's load failed") as failure:
        agent.load(tmp_path, options={"on_load": "code:145000", "on_unload": on_unload})
    assert note in failure.value.__notes__[0]
    assert agent.load(tmp_path).engine == "scripted 1.0"


def test_a_call_after_a_failed_load_names_the_load_error(agent: AgentClient, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the engine's load failed"):
        agent.load(tmp_path, options={"on_load": "code:145002"})
    with pytest.raises(EngineError, match="none is loaded") as failure:
        agent.unload()
    assert str(failure.value.found).startswith("before: the engine's load failed, 145002 ACL_ERROR_GE_")
    agent.load(tmp_path)
    agent.unload()
    with pytest.raises(EngineError, match="none is loaded") as failure:
        agent.unload()
    assert failure.value.found is None
    agent.load(tmp_path)


def test_clean_up_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(host, "GRACE_S", 0.3)
    worker = host.WorkerProcess(ENGINE, versions={})
    args = {"package": str(tmp_path), "options": {"on_load": "code:1", "on_unload": "hang"}}
    with pytest.raises(EngineError, match="the engine's load failed"):
        worker.call("load", args, timeout_s=20)
    assert worker.notes_after_failed_load() == ["cleaning up after the failed load did not end within 0.3 s"]
    assert not worker.alive()


def test_running_out_of_memory_is_told_with_what_was_asked_for(agent: AgentClient, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="out of memory during load") as failure:
        agent.load(tmp_path, options={"on_load": "oom"})
    assert (failure.value.code, failure.value.found) == ("OUT_OF_MEMORY", "34359738368 bytes")


def test_an_exception_of_the_engine_keeps_its_traceback(agent: AgentClient) -> None:
    with pytest.raises(EngineError, match="raised ZeroDivisionError during generate") as failure:
        agent.generate(say("raise"))
    assert "in obey" in failure.value.__notes__[0]


def test_errors_of_the_project_arrive_as_themselves(agent: AgentClient) -> None:
    with pytest.raises(KVCacheOverflow, match="2100 positions") as failure:
        agent.generate(say("overflow"))
    assert failure.value.expected == "at most 2048"


def test_what_an_engine_prints_is_its_log_and_never_breaks_the_stream(agent: AgentClient, tmp_path: Path) -> None:
    assert agent.generate(say("print")).text == "print"
    with pytest.raises(EngineCrash) as failure:
        agent.generate(say("kill"))
    assert failure.value.log[-1] == "last words"
    assert len(failure.value.log) <= 40
    assert not any("perfgenius" in line for line in failure.value.log)


def test_an_engine_that_reads_standard_input_gets_nothing(agent: AgentClient) -> None:
    assert agent.generate(say("read")).text == "read"


def test_a_crash_in_the_middle_of_a_stream(agent: AgentClient) -> None:
    with pytest.raises(EngineCrash, match="during logits") as failure:
        agent.logits([1, 2, CRASH])
    assert failure.value.found == "SIGSEGV"


def test_an_error_in_the_middle_of_a_stream(agent: AgentClient) -> None:
    with pytest.raises(EngineError, match="asked to raise in logits"):
        agent.logits([1, 2, RAISE])


def test_large_logits_arrive_whole(agent: AgentClient) -> None:
    logits = agent.logits(list(range(5000)))
    assert logits.shape == (5000, 1000)
    assert (logits == logits[:, :1]).all()
    assert logits[4999, 999] == 4999.0


@pytest.mark.parametrize("wrong", [-1, 1.9, "1", True, None, np.float32(1)])
def test_only_whole_numbers_are_token_ids(agent: AgentClient, wrong: object) -> None:
    with pytest.raises(UsageError, match="not the id of a token") as failure:
        agent.logits([1, wrong])  # type: ignore[list-item]
    assert (failure.value.field, failure.value.found) == ("tokens[1]", repr(wrong))
    assert agent.logits(np.array([1, 2])).shape == (2, 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_new_tokens", value) for value in (0, -3, 1.0, True, "1", None)),
        *(("seed", value) for value in (-1, 1.5)),
        *(("top_k", value) for value in (2.5, None, True)),
        *((name, math.nan) for name in ("temperature", "top_p", "repetition_penalty")),
        ("temperature", "hot"),
        ("do_sample", 1),
        ("ignore_eos", "no"),
        ("text", 5),
        ("stop", "end"),
        ("stop", (1,)),
        *(("timeout_s", value) for value in (0, -1, math.inf, math.nan)),
    ],
)
def test_a_generation_that_cannot_be_asked_for(name: str, value: object) -> None:
    with pytest.raises(UsageError) as failure:
        GenerateRequest(**{"text": "a", "max_new_tokens": 1, name: value})  # type: ignore[arg-type]
    assert (failure.value.field, failure.value.found) == (name, repr(value))
    assert failure.value.expected


@pytest.mark.parametrize(
    ("name", "value"), [("prompt_tokens", 0), ("new_tokens", -1), ("repeats", 0), ("seed", -1), ("seed", 0.5)]
)
def test_times_that_cannot_be_asked_for(name: str, value: object) -> None:
    with pytest.raises(UsageError) as failure:
        TimingRequest(**{"prompt_tokens": 1, "new_tokens": 1, "repeats": 1, "seed": 0, name: value})  # type: ignore[arg-type]
    assert (failure.value.field, failure.value.found) == (name, repr(value))


@pytest.mark.parametrize("first", [-1, 2])
def test_positions_that_do_not_exist_are_refused(agent: AgentClient, first: int) -> None:
    with pytest.raises(UsageError, match="0 to 1"):
        agent.logits([1, 2], first=first)


def test_a_worker_that_was_killed_between_calls_is_a_crash(agent: AgentClient, tmp_path: Path) -> None:
    worker = agent.status().worker
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    assert wait_until(lambda: agent.status().worker is None)
    with pytest.raises(EngineCrash, match="crashed during memory") as failure:
        agent.memory()
    assert failure.value.found == "SIGKILL"
    agent.load(tmp_path)


def test_a_lost_agent_is_a_device_error_that_says_how_it_ended(tmp_path: Path) -> None:
    with scripted_device() as device:
        agent = device.agent()
        agent.load(tmp_path)
        supervisor = agent.status().supervisor

        def kill(event: TokenEvent) -> None:
            os.kill(supervisor, signal.SIGKILL)

        with pytest.raises(DeviceError, match="the agent ended: SIGKILL") as failure:
            agent.generate(say("slow:0.05", tokens=1000), kill)
        assert failure.value.code == "AGENT_LOST"
        with pytest.raises(DeviceError, match="the agent ended: SIGKILL"):
            agent.status()
        agent.shutdown()


def test_shutdown_ends_the_agent() -> None:
    with agent_process() as process:
        client = AgentClient(port=process.port, token=process.token, why_lost=process.why_lost)
        client.shutdown()
        assert wait_until(lambda: process.why_lost() == "exit status 0")


@pytest.mark.parametrize(
    ("engine", "error", "said"),
    [
        ("cuda", UsageError, "unknown engine 'cuda'"),
        ("no_such_module:Engine", EnvironmentFailure, "No module named 'no_such_module'"),
        ("engine_double:NoSuchEngine", EnvironmentFailure, "NoSuchEngine"),
    ],
)
def test_an_engine_that_does_not_exist(tmp_path: Path, engine: str, error: type[Exception], said: str) -> None:
    with scripted_device(engine=engine) as device, pytest.raises(error, match=said):
        device.agent().load(tmp_path)


def test_an_agent_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such interpreter here' >&2\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    device = SimulatedDevice(parse_device("sim"))
    with pytest.raises(DeviceError, match="did not start") as failure:
        device.agent()
    assert failure.value.found == "exit status 9; no such interpreter here"
    device.close()


def test_text_with_every_kind_of_line_break_arrives_unchanged(agent: AgentClient) -> None:
    odd = "a\u2028b\x85c\x0bd\x1ee\nf 🙂"
    assert agent.generate(say(odd, tokens=1)).text == " ".join(odd.split())
    pieces: list[TokenEvent] = []
    agent.generate(say("🙂\u00e9", tokens=1), pieces.append)
    assert pieces[0].text == "🙂é "


def test_a_closed_client_says_so(process: AgentProcess) -> None:
    client = AgentClient(port=process.port, token=process.token)
    client.close()
    with pytest.raises(DeviceError, match="was closed"):
        client.status()


def test_proxies_and_the_working_directory_do_not_reach_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user was imported')")
    monkeypatch.chdir(tmp_path)
    with scripted_device() as device:
        assert device.agent().load(tmp_path).engine == "scripted 1.0"
