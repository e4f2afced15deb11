import os
import signal

import pytest

from pytest_cannlm.agent.exits import describe_exit, remedy_for


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


@pytest.mark.parametrize(
    ("exit_text", "log", "said"),
    [
        ("SIGABRT", ["type_error.302: type must be string, but is array"], "merges"),
        ("SIGABRT", ["Pure virtual function called!"], "another thread"),
        ("SIGABRT", ["terminate called after throwing an instance of 'std::bad_alloc'"], "out of memory"),
        ("SIGKILL", ["some line"], "out of memory"),
        ("out of memory (0xC0000017)", [], "more memory"),
    ],
)
def test_what_a_crash_points_to(exit_text: str, log: list[str], said: str) -> None:
    assert said in (remedy_for(exit_text, log) or "")


def test_nothing_is_guessed_about_an_unknown_crash() -> None:
    assert remedy_for("SIGSEGV", ["a line that says nothing"]) is None
