"""The app under test: a process that is ended with its children, or a callable that leaves nothing behind."""

import os
import sys
import time

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
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("hang", [True, False])
def test_children_end_with_the_app(hang):
    started = time.monotonic()
    ended = python(CHILD + ("\nimport time; time.sleep(60)" if hang else ""), timeout_s=1.5 if hang else 30)
    assert time.monotonic() - started < 20
    assert ended.status == (None if hang else 0)
    assert gone(int(ended.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_ends_the_app(monkeypatch):
    pids = []

    def interrupted(process, timeout=None):
        pids.append(process.pid)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        python("import time; time.sleep(60)")
    assert gone(pids[0])


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


def test_a_callable_that_took_too_long():
    assert called(lambda: time.sleep(0.05), timeout_s=0.01).status is None
