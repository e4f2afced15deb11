import pytest

from pytest_cannlm.agent.codes import explain, explained
from pytest_cannlm.errors import EngineError


@pytest.mark.parametrize(
    ("code", "name", "remedy"),
    [
        (145000, "PARAM_INVALID", "damaged or wrong model file"),
        (145002, "MODEL_PATH_INVALID", "there, complete and readable"),
        (500002, "GE_FAILURE", "another chip or CANN version"),
        (507018, "AICPU_EXCEPTION", "log lines"),
        (100002, "REPEAT_INITIALIZE", "once per process"),
        (100012, "DESERIALIZE_MODEL", "CANN version"),
        (207001, "MEMORY_ALLOCATION", "memory"),
        (3, "OH_NN_MEMORY_ERROR", "memory"),
        (1, "OH_NN_FAILED", "log lines"),
    ],
)
def test_a_code_has_a_name_and_a_next_step(code: int, name: str, remedy: str) -> None:
    meaning = explain(code)
    assert name in meaning.name
    assert remedy in meaning.remedy
    assert meaning.family != "no known family"


@pytest.mark.parametrize("code", [999999, 77, 12345678])
def test_an_unknown_code_is_shown_and_not_guessed(code: int) -> None:
    meaning = explain(code)
    assert (meaning.name, meaning.family) == ("unknown code", "no known family")


def test_an_unknown_code_of_a_known_family_keeps_the_family() -> None:
    assert explain(207999).family == "the device's resources"


def test_an_error_with_a_code_explains_itself() -> None:
    error = explained(EngineError("the engine's load failed", code="145002"))
    first_line = str(error).splitlines()[0]
    assert first_line.startswith("the engine's load failed")
    assert "145002 ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID" in first_line
    assert "readable by the engine" in first_line


def test_what_the_engine_said_itself_wins() -> None:
    error = explained(EngineError("no", code="1", found="its own finding", remedy="Its own remedy"))
    assert (error.found, error.remedy) == ("its own finding", "Its own remedy")
    assert explained(EngineError("no", code="CANCELLED")).found is None
