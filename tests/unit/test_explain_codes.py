import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.explain import explain_code, meanings


def test_small_numbers_are_told_apart_by_the_family_of_the_caller() -> None:
    assert explain_code(3, "OH_NN").name == "OH_NN_MEMORY_ERROR"
    assert explain_code(3, "LLM engine").name == "INVALID_PARAM"
    assert [one.name for one in meanings("3")] == ["OH_NN_MEMORY_ERROR", "INVALID_PARAM"]


def test_without_a_family_an_ambiguous_number_says_what_it_means_in_each() -> None:
    sentence = explain_code(3).sentence()
    assert "in OH_NN OH_NN_MEMORY_ERROR" in sentence
    assert "in LLM engine INVALID_PARAM" in sentence
    assert sentence.endswith("Name the family.")


def test_a_number_or_a_name_is_one_sentence_with_cause_and_next_step() -> None:
    assert explain_code(100002).sentence() == (
        "100002 ACL_ERROR_REPEAT_INITIALIZE (aclError, the caller's side): The runtime was initialised twice in one "
        "process. Initialise once per process, and look for what else in this process did it first."
    )
    assert explain_code(" ACL_ERROR_REPEAT_INITIALIZE ") == explain_code("100002")


@pytest.mark.parametrize("code", ["E19010", "E19001", "OH_NN_FAILED", "0xC0000017", "SIGSEGV"])
def test_small_letters_mean_the_same(code: str) -> None:
    assert explain_code(code.lower()) == explain_code(code)


@pytest.mark.parametrize(
    ("code", "family", "place"),
    [
        ("999999", None, None),
        ("77", None, None),
        ("-1", None, None),
        ("12345678", None, None),
        ("100099", "aclError", "the caller's side"),
        ("207999", "runtime", "the device's resources"),
        ("345999", "GE", "storage or alignment"),
        ("545999", "GE", "inside the runtime"),
        ("445999", None, None),
        ("199999", None, None),
        ("E18999", "message", "user error"),
        ("E19001", "message", "internal error"),
        ("EZ9123", "message", "internal error"),
        ("WA0001", "message", "user warning"),
        ("I10001", "message", "user information"),
        ("E1900", None, None),
        ("e1900", None, None),
    ],
)
def test_an_unknown_code_keeps_what_its_shape_tells_and_nothing_else(
    code: str, family: str | None, place: str | None
) -> None:
    found = explain_code(code)
    assert not found.known
    assert (found.code, found.family, found.place, found.cause, found.next) == (code, family, place, None, None)
    assert found.sentence().startswith(code)
    assert found.sentence().endswith(": not known")


def test_a_code_that_another_family_knows_is_unknown_in_this_one() -> None:
    found = explain_code("145000", "LLM engine")
    assert (found.known, found.family, found.place) == (False, "LLM engine", None)


def test_a_family_that_does_not_exist_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="OH_NN"):
        explain_code(1, "OHNN")
