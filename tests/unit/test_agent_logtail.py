"""The last lines of a process that died: what the engine said, and not what Python's fault handler adds."""

import pytest

from pytest_cannlm.agent.logtail import without_stack

STACK = ["Current thread 0x00007f0e (most recent call first):", '  File "worker.py", line 1 in run']


@pytest.mark.parametrize(
    "signal",
    [
        "Fatal Python error: Segmentation fault",
        "Fatal Python error: Aborted",
        "Windows fatal exception: access violation",
    ],
)
def test_the_fault_handler_s_stack_is_left_out(signal):
    assert without_stack(["no runtime support the Model.", signal, *STACK]) == ("no runtime support the Model.",)
    assert without_stack([signal, *STACK]) == ()


def test_what_python_itself_says_stays_without_its_stack():
    said = (
        "Fatal Python error: init_import_site: Failed to import the site module",
        "Python runtime state: initialized",
    )
    assert without_stack([*said, *STACK]) == said


def test_the_stacks_of_a_hang_are_left_out_too():
    assert without_stack(["waiting", "Thread 0x00007f0e (most recent call first):", *STACK]) == ("waiting",)
