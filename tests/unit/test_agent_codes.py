import pytest

from pytest_cannlm.agent.codes import explained
from pytest_cannlm.errors import EngineError


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "145000",
            ("145000 ACL_ERROR_GE_PARAM_INVALID (GE, the caller's side)", "damaged file", "complete and readable"),
        ),
        ("145002", ("ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID (GE, the caller's side)", "path", "readable by the engine")),
        (
            "500002",
            ("ACL_ERROR_GE_FAILURE (aclError, inside the runtime)", "another chip or CANN version", "log lines"),
        ),
        ("507018", ("ACL_ERROR_RT_AICPU_EXCEPTION (runtime, inside the runtime)", "operator", "log lines")),
        ("100002", ("ACL_ERROR_REPEAT_INITIALIZE", "initialised twice", "once per process")),
        (
            "100012",
            ("ACL_ERROR_DESERIALIZE_MODEL", "may not match the device's CANN version", "Build the package again"),
        ),
        ("207001", ("ACL_ERROR_RT_MEMORY_ALLOCATION (runtime, the device's resources)", "memory", "shorter context")),
        ("3", ("3 OH_NN_MEMORY_ERROR (OH_NN)", "Memory", "shorter context")),
    ],
)
def test_a_code_explains_itself_on_the_first_line(code: str, said: tuple[str, ...]) -> None:
    first_line = str(explained(EngineError("the engine's load failed", code=code))).splitlines()[0]
    assert first_line.startswith(f"the engine's load failed (found: {code} ")
    assert "Likely cause: " in first_line
    for text in said:
        assert text in first_line


@pytest.mark.parametrize(
    ("code", "shown"),
    [("999999", "999999 not known (of no known family)"), ("77", "77 not known (OH_NN)"),
     ("207999", "207999 not known (runtime, the device's resources)")],
)  # fmt: skip
def test_an_unknown_code_is_shown_and_not_guessed(code: str, shown: str) -> None:
    error = explained(EngineError("the engine's load failed", code=code))
    assert (error.found, error.cause, error.remedy) == (shown, None, "Read the engine's log lines")


def test_what_the_engine_said_itself_wins() -> None:
    error = explained(
        EngineError("no", code="1", found="its own finding", cause="Its own cause", remedy="Its own remedy")
    )
    assert (error.found, error.cause, error.remedy) == ("its own finding", "Its own cause", "Its own remedy")
    assert explained(EngineError("no", code="1", found="its own finding")).cause is None
    assert explained(EngineError("no", code="CANCELLED")).found is None
