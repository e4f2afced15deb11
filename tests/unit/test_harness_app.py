"""The app under test: a process that is ended with its children, or a callable that leaves nothing behind."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.harness.app import run_callable, run_process


def python(code, **more):
    return run_process(["python", "-c", code], {"GREETING": "hello"}, **{"timeout_s": 30, **more})


def test_a_process():
    ended = python("import os, sys; print(os.environ['GREETING']); print('no', file=sys.stderr); sys.exit(3)")
    assert (ended.status, ended.stdout.strip(), ended.stderr.strip()) == (3, "hello", "no")
    assert "GREETING" not in os.environ


def test_python_is_the_one_that_runs_the_tests():
    assert python("import sys; print(sys.executable)").stdout.strip() == sys.executable


def test_standard_input_is_empty():
    assert python("import sys; print(repr(sys.stdin.read()))").stdout.strip() == "''"


def test_output_that_is_no_text():
    assert python("import os; os.write(1, b'\\xff')").stdout == "\ufffd"


def test_a_program_that_is_not_there():
    with pytest.raises(UsageError, match="cannot be started"):
        run_process(["no-such-program-of-ours"], {}, timeout_s=1)


CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={alone})
print(child.pid, flush=True)
"""


def gone(pid, *, within_s=5):
    """Whether a process has ended (a zombie has)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux
@pytest.mark.parametrize("alone", [False, True], ids=["in its group", "in a session of its own"])
@pytest.mark.parametrize("hang", [True, False])
def test_children_end_with_the_app(hang, alone):
    started = time.monotonic()
    code = CHILD.format(alone=alone) + ("\nimport time; time.sleep(60)" if hang else "")
    ended = python(code, timeout_s=1.5 if hang else 30)
    assert time.monotonic() - started < 20
    assert ended.status == (None if hang else 0)
    assert gone(int(ended.stdout))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's own")
def test_an_app_that_a_signal_ended():
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert python(f"import os; os.kill(os.getpid(), {number:d})").status == -number


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_tests_are_killed(tmp_path, number):
    pids = tmp_path / "pids"
    code = (
        CHILD.format(alone=True)
        + f"import os, time; open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}} ')\n"
        "time.sleep(60)"
    )
    run = "import sys; from pytest_cannlm.harness.app import run_process; run_process(sys.argv[1:], {}, timeout_s=60)"
    tests = subprocess.Popen([sys.executable, "-c", run, "python", "-c", code])
    while not pids.exists() or not pids.read_text().endswith(" "):
        time.sleep(0.02)
    tests.send_signal(number)
    tests.wait()
    assert all(gone(pid) for pid in pids.read_text().split())


@linux
def test_ctrl_c_ends_the_app(monkeypatch, tmp_path):
    pid = tmp_path / "pid"

    def interrupted(process, timeout=None):
        while not pid.exists() or not pid.read_text().endswith(" "):
            time.sleep(0.02)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        python(f"import os, time; open({str(pid)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(60)")
    assert gone(int(pid.read_text()))


def called(app, *arguments, **more):
    return run_callable(app, arguments, {"GREETING": "hello"}, **{"timeout_s": 30, **more})


def test_a_callable_sees_the_environment_and_restores_it():
    def app(name):
        print(os.environ["GREETING"], name)
        os.environ["LEFT_OVER"] = "1"
        del os.environ["PATH"]

    before = dict(os.environ)
    ended = called(app, "you")
    assert (ended.status, ended.stdout) == (0, "hello you\n")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("app", "status", "stderr"),
    [
        (lambda: 4, 4, ""),
        (lambda: True, 0, ""),
        (lambda: "text", 0, ""),
        (lambda: sys.exit(5), 5, ""),
        (lambda: sys.exit(), 0, ""),
        (lambda: sys.exit("why"), 1, ""),
        (lambda: 1 / 0, 1, "ZeroDivisionError"),
    ],
)
def test_the_status_of_a_callable(app, status, stderr):
    ended = called(app)
    assert ended.status == status
    assert stderr in ended.stderr


SAYINGS = {
    "print": (lambda: print("said"), "stdout"),
    "the descriptor": (lambda: os.write(1, b"said"), "stdout"),
    "a child": (lambda: subprocess.run([sys.executable, "-c", "print('said')"], check=True), "stdout"),
    "the first stream": (lambda: sys.__stderr__.write("said"), "stderr"),
    "the other descriptor": (lambda: os.write(2, b"said"), "stderr"),
    "a log": (lambda: logging.getLogger("an.app").warning("said"), "logged"),
}


@pytest.mark.parametrize("how", SAYINGS)
def test_what_a_callable_says_is_kept_however_it_says_it(how, capfd):
    say, where = SAYINGS[how]
    handlers = [*logging.getLogger().handlers]
    ended = called(lambda: str(say()))
    assert getattr(ended, where).strip() == "said"
    print("after it")
    assert capfd.readouterr() == ("after it\n", "")
    assert logging.getLogger().handlers == handlers


def test_a_callable_s_directory_is_restored(tmp_path):
    before = Path.cwd()
    assert called(lambda: os.chdir(tmp_path)).status == 0
    assert Path.cwd() == before


def test_a_callable_that_took_too_long():
    assert called(lambda: time.sleep(0.05), timeout_s=0.01).status is None
