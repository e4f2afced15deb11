import json

import pytest

from pytest_cannlm import errors
from pytest_cannlm.agent.wire import add_note, error_from_wire, error_to_wire


def through_json(error: errors.CannlmError) -> errors.CannlmError:
    return error_from_wire(json.loads(json.dumps(error_to_wire(error))))


@pytest.mark.parametrize(
    "cls",
    [errors.UsageError, errors.EngineError, errors.KVCacheOverflow, errors.NotObservable, errors.PackageError],
)
def test_an_error_keeps_its_class_and_its_facts(cls: type[errors.CannlmError]) -> None:
    error = cls("went wrong", file="a.omc", field="f", found="3", expected="4", remedy="Do it", code="X_1")
    back = through_json(error)
    assert type(back) is cls
    assert str(back) == str(error)
    assert back.as_dict() == error.as_dict()
    assert back.exit_code == error.exit_code


@pytest.mark.parametrize("cls", [errors.EngineCrash, errors.EngineHang])
def test_a_crash_keeps_its_log_and_versions(cls: type[errors.EngineCrash]) -> None:
    error = cls(
        "the engine crashed during load",
        found="SIGSEGV",
        cause="It ran out of memory",
        log=("last", "words"),
        versions={"CANN": "6.1.1.0"},
    )
    wire = error_to_wire(error)
    assert (wire["error"], wire["log"]) == (cls.__name__, ["last", "words"])
    assert wire["signal"] == (None if cls is errors.EngineHang else "SIGSEGV")
    back = through_json(error)
    assert isinstance(back, cls)
    assert (back.log, back.versions) == (error.log, error.versions)
    assert str(back).splitlines()[0] == (
        "the engine crashed during load (found: SIGSEGV). Likely cause: It ran out of memory"
    )
    assert str(back).splitlines()[1:] == ["    | running: CANN 6.1.1.0", "    | last", "    | words"]
    assert back.as_dict() == error.as_dict()
    assert (back.as_dict()["log"], back.as_dict()["cause"]) == (["last", "words"], "It ran out of memory")


def test_notes_travel_and_the_error_stays_the_first_line() -> None:
    error = errors.EngineError("the load failed")
    add_note(error, "cleaning up failed too")
    back = through_json(error)
    assert str(back).splitlines()[0] == "the load failed"
    assert back.notes == ("cleaning up failed too",)
    assert back.with_notes().splitlines() == ["the load failed", "note: cleaning up failed too"]
    assert back.as_dict()["notes"] == ["cleaning up failed too"]


def test_the_cause_of_an_error_travels_and_stands_before_the_next_step() -> None:
    error = errors.EngineError(
        "the load failed", code="3", found="3", cause="Memory could not be had", remedy="Free it"
    )
    back = through_json(error)
    assert str(back) == "the load failed (found: 3). Likely cause: Memory could not be had. Free it"
    assert back.as_dict()["cause"] == "Memory could not be had"


def test_an_error_that_this_side_does_not_know_is_named() -> None:
    back = error_from_wire({"error": "FutureError", "message": "news", "code": "F"})
    assert isinstance(back, errors.DeviceError)
    assert "FutureError: news" in str(back)
    assert isinstance(error_from_wire({"error": "Any"}), errors.DeviceError)
