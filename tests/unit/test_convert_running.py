"""Running a tool: its log, its last line, its end."""

import _thread
import os
import signal
import subprocess
import sys
import time

import pytest
from vendor_tools import Said

from pytest_cannlm.build import running
from pytest_cannlm.build.running import run_tool
from pytest_cannlm.errors import EnvironmentFailure


def run(tmp_path, code, *, progress=None, limit=60.0, program=sys.executable):
    return run_tool(
        [program, "-c", code],
        folder=tmp_path,
        environment=os.environ,
        log=tmp_path / "tool.log",
        label="tool",
        progress=progress or Said(),
        time_limit_s=limit,
    )


def test_both_outputs_are_kept_in_order(tmp_path):
    code = "import sys; print('one', flush=True); print('two', file=sys.stderr); sys.exit(3)"
    done = run(tmp_path, code)
    assert done.status == 3
    assert done.log.read_bytes().split() == [b"one", b"two"]
    assert 0 < done.seconds < 60
    assert abs(done.began - time.time()) < 60


def test_a_line_is_shown_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_SILENCE_S", 0.05)
    said = Said()
    code = (
        "import sys, time\n"
        "for text in ('10 %\\r20 %\\r30', '\\n' + 'x' * 500 + '\\n'):\n"
        "    sys.stdout.write(text); sys.stdout.flush(); time.sleep(1)"
    )
    run(tmp_path, code, progress=said)
    assert said.lines == ["tool: 20 %", "tool: " + "x" * 120]


def test_any_bytes_are_kept(tmp_path):
    done = run(tmp_path, "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)")
    assert done.log.stat().st_size == 256_000


def test_the_tool_has_no_input(tmp_path):
    assert run(tmp_path, "import sys; print(repr(sys.stdin.read()))").log.read_text().strip() == "''"


def test_it_is_ended_at_its_limit(tmp_path):
    with pytest.raises(EnvironmentFailure, match="too long") as caught:
        run(tmp_path, "import time; print('busy', flush=True); time.sleep(300)", limit=0.5)
    assert caught.value.code == "TOOL_TIMEOUT"
    assert "busy" in (tmp_path / "tool.log").read_text()


@pytest.mark.skipif(os.name != "posix", reason="signals and groups as on Linux")
def test_what_it_started_ends_with_it(tmp_path):
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    )
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    began = time.monotonic()
    with pytest.raises(EnvironmentFailure):
        run(tmp_path, code, limit=1.0)
    assert time.monotonic() - began < 30


def test_a_program_that_cannot_be_started(tmp_path):
    with pytest.raises(EnvironmentFailure) as caught:
        run(tmp_path, "", program=str(tmp_path / "nothing"))
    assert caught.value.code == "TOOL_NOT_STARTED"


@pytest.mark.skipif(os.name != "posix", reason="signals and groups as on Linux")
@pytest.mark.parametrize("leave", ["", "setsid "], ids=["in its group", "out of its group"])
def test_a_tool_that_ended_is_not_called_late_for_what_it_left_running(tmp_path, monkeypatch, leave):
    monkeypatch.setattr(running, "_GRACE_S", 0.3)
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\n{leave}sleep 20 &\necho $! > child\necho done\nexit 4\n", encoding="utf-8")
    tool.chmod(0o755)
    done = run_tool(
        [tool],
        folder=tmp_path,
        environment=os.environ,
        log=tmp_path / "tool.log",
        label="tool",
        progress=Said(),
        time_limit_s=10.0,
    )
    child = int((tmp_path / "child").read_text())
    assert (done.status, done.log.read_text()) == (4, "done\n")
    assert done.seconds < 9
    if leave:  # nothing finds it any more; it is this test's to end
        os.kill(child, signal.SIGTERM)


@pytest.mark.skipif(os.name != "posix", reason="signals and groups as on Linux")
def test_what_a_tool_left_running_may_end_by_itself(tmp_path):
    code = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.5; echo late'])"
    assert run(tmp_path, code).log.read_text() == "late\n"


def test_an_interrupt_while_the_tool_starts_leaves_nothing_running(tmp_path, monkeypatch):
    started = []

    class Interrupting(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            _thread.interrupt_main()  # before anybody has the new process in hand

    monkeypatch.setattr(running.subprocess, "Popen", Interrupting)
    monkeypatch.setattr(running, "_SILENCE_S", 0.1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "import time; time.sleep(60)")
    assert started[0].poll() is not None
