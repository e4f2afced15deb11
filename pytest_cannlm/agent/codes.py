"""What an engine's return code means: its name, its family and the next step. Unknown codes are shown, not guessed.

Sources: ``OH_NN_ReturnCode`` of the OpenHarmony Neural Network Runtime, and the aclError and GE tables of CANN.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_cannlm.errors import EngineError


class CodeMeaning(NamedTuple):
    """One return code in words."""

    name: str
    family: str
    remedy: str


_CALLER = "the caller's side"
_MEMORY = "Free memory on the device, or use a shorter context or a smaller scheme"
_PATH = "Check that every file of the package is there, complete and readable by the engine"
_VERSION = "The model may not match the device's CANN version: rebuild it with the toolkit of the device's version"
_INIT = "Initialise once per process; something else in this process initialised the runtime already"
_LOG = "One code, many causes: read the engine's log lines"
_UNSUPPORTED = "Check chip, CANN version and scheme against what the device supports"

_NAMED: dict[int, tuple[str, str]] = {
    # OH_NN_ReturnCode
    1: ("OH_NN_FAILED", _LOG),
    2: ("OH_NN_INVALID_PARAMETER", _PATH),
    3: ("OH_NN_MEMORY_ERROR", _MEMORY),
    4: ("OH_NN_OPERATION_FORBIDDEN", _LOG),
    5: ("OH_NN_NULL_PTR", _LOG),
    6: ("OH_NN_INVALID_FILE", _PATH),
    7: ("OH_NN_UNAVALIDABLE_DEVICE", _UNSUPPORTED),
    8: ("OH_NN_INVALID_PATH", _PATH),
    9: ("OH_NN_TIMEOUT", _LOG),
    10: ("OH_NN_UNSUPPORTED", _UNSUPPORTED),
    11: ("OH_NN_CONNECTION_EXCEPTION", _LOG),
    12: ("OH_NN_SAVE_CACHE_EXCEPTION", _LOG),
    13: ("OH_NN_DYNAMIC_SHAPE", _LOG),
    14: ("OH_NN_UNAVAILABLE_DEVICE", _UNSUPPORTED),
    # aclError
    100000: ("ACL_ERROR_INVALID_PARAM", _LOG),
    100001: ("ACL_ERROR_UNINITIALIZE", "Initialise the runtime before the first call"),
    100002: ("ACL_ERROR_REPEAT_INITIALIZE", _INIT),
    100003: ("ACL_ERROR_INVALID_FILE", _PATH),
    100005: ("ACL_ERROR_INVALID_FILE_SIZE", _PATH),
    100006: ("ACL_ERROR_PARSE_FILE", _PATH),
    100012: ("ACL_ERROR_DESERIALIZE_MODEL", _VERSION),
    100013: ("ACL_ERROR_PARSE_MODEL", _VERSION),
    100014: ("ACL_ERROR_READ_MODEL_FAILURE", _PATH),
    100015: ("ACL_ERROR_MODEL_SIZE_INVALID", _PATH),
    100016: ("ACL_ERROR_MODEL_MISSING_ATTR", _VERSION),
    145000: ("ACL_ERROR_GE_PARAM_INVALID", f"{_PATH}; a damaged or wrong model file gives this code too"),
    145001: ("ACL_ERROR_GE_EXEC_NOT_INIT", "Initialise the runtime before the first call"),
    145002: ("ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID", _PATH),
    145006: ("ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID", _PATH),
    145009: ("ACL_ERROR_GE_EXEC_LOAD_MODEL_REPEATED", _INIT),
    200000: ("ACL_ERROR_BAD_ALLOC", _MEMORY),
    200001: ("ACL_ERROR_API_NOT_SUPPORT", _UNSUPPORTED),
    200006: ("ACL_ERROR_FEATURE_UNSUPPORTED", _UNSUPPORTED),
    207001: ("ACL_ERROR_RT_MEMORY_ALLOCATION", _MEMORY),
    245000: ("ACL_ERROR_GE_MEMORY_ALLOCATION", _MEMORY),
    500000: ("ACL_ERROR_INTERNAL_ERROR", _LOG),
    500001: ("ACL_ERROR_FAILURE", _LOG),
    500002: ("ACL_ERROR_GE_FAILURE", f"{_LOG}; a model for another chip or CANN version is a frequent one"),
    500003: ("ACL_ERROR_RT_FAILURE", _LOG),
    500004: ("ACL_ERROR_DRV_FAILURE", _LOG),
    507018: ("ACL_ERROR_RT_AICPU_EXCEPTION", _LOG),
    545001: ("ACL_ERROR_GE_LOAD_MODEL", _LOG),
}

# The first digit of a six-digit code is its family.
_FAMILIES = {1: _CALLER, 2: "the device's resources", 3: "storage or alignment", 5: "inside the runtime"}


def explain(code: int) -> CodeMeaning:
    """The meaning of ``code``; one that no table holds keeps its family, if it has one, and says that it is unknown."""
    name, remedy = _NAMED.get(code, ("unknown code", _LOG))
    if code < 100000:
        return CodeMeaning(name, "the neural network runtime" if code in _NAMED else "no known family", remedy)
    if code > 599999:
        return CodeMeaning(name, "no known family", remedy)
    return CodeMeaning(name, _FAMILIES.get(code // 100000, "no known family"), remedy)


def explained(error: EngineError) -> EngineError:
    """Fill in what a numeric ``code`` means where the engine itself said nothing; other errors stay as they are."""
    if error.code is not None and error.code.isdecimal():
        meaning = explain(int(error.code))
        error.found = error.found or f"{error.code} {meaning.name}, {meaning.family}"
        error.remedy = error.remedy or meaning.remedy
    return error
