import os
import signal

import pytest

from pytest_cannlm.agent.exits import describe_exit


@pytest.mark.skipif(os.name != "posix", reason="signals end processes on POSIX only")
def test_signals_are_named() -> None:
    assert describe_exit(-signal.SIGSEGV) == "SIGSEGV"
    assert describe_exit(-signal.SIGABRT) == "SIGABRT"
    assert describe_exit(-250) == "signal 250"


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (0xC0000005, "access violation (0xC0000005)"),
        (0xC0000017, "out of memory (0xC0000017)"),
        (0xC0000999, "exception (0xC0000999)"),
    ],
)
def test_exit_codes_are_told_on_every_system(returncode: int, text: str) -> None:
    assert describe_exit(returncode) == text
