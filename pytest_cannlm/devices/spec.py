"""Device specifications, ``--npu=KIND[:KEY][?option=value&...]``: parsed and validated without touching a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_cannlm.compat import versions
from pytest_cannlm.compat.chips import known_chips, normalize
from pytest_cannlm.errors import UsageError
from pytest_cannlm.settings import nearest
from pytest_cannlm.sizes import SIZE_FORMS, parse_size

_EXAMPLES = "sim, sim:kirinx90?cann=6.0.1.0&ram=2GiB&mode=fast&seed=3, hdc[:KEY], adb[:SERIAL], local"

_MODES = ("faithful", "fast")
OnMismatch = Literal["crash", "error", "hang", "load"]
ON_MISMATCH: tuple[OnMismatch, ...] = get_args(OnMismatch)
"""What the simulated engine does with a package of another CANN or chip, if the gate lets it reach the engine."""


@dataclass(frozen=True)
class DeviceSpec:
    """One parsed device specification."""

    kind: str
    """``sim``, ``hdc``, ``adb`` or ``local``."""
    key: str | None
    """The simulated chip (normalized), the hdc connect key or the adb serial; None = the only one, or the default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parsed: ``cann`` str, ``ram`` bytes, ``mode`` str, ``seed`` int, ``threads`` int, ``on_mismatch`` str."""
    text: str = ""
    """As the user wrote it."""


def parse_device(text: str) -> DeviceSpec:
    """Parse one ``--npu`` value.

    Raises :class:`UsageError` that says what is possible and names the nearest for an unknown kind, chip or option, and
    for a value that an option does not take.
    """
    head, question, query = text.partition("?")
    kind, colon, key = head.partition(":")
    if kind not in _KINDS:
        raise _unknown(text, "device kind", kind, _KINDS, hint=f"for example {_EXAMPLES}")
    if (colon and not key) or (question and not query):
        raise _wrong(text, "ends where something should follow", expected=_EXAMPLES)
    parse_key, known_options = _KINDS[kind]
    return DeviceSpec(
        kind=kind,
        key=parse_key(text, key) if key else None,
        options=_parse_options(text, query, known_options) if query else {},
        text=text,
    )


def _parse_options(text: str, query: str, known: Mapping[str, Callable[[str, str, str], Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in query.split("&"):
        name, _, value = item.partition("=")
        if name not in known:
            raise _unknown(text, "option", name, known)
        if name in options:
            raise _wrong(text, f"names the option {name!r} twice", expected="each option once")
        options[name] = known[name](text, name, value)
    return options


def _simulated_chip(text: str, key: str) -> str:
    # Any known chip may be simulated, so that a test can see what the gate does on one that it does not allow.
    chip = normalize(key)
    if chip not in known_chips():
        raise _unknown(text, "chip", key, [name.lower() for name in known_chips()])
    return chip


def _connect_key(text: str, key: str) -> str:
    return key


def _no_key(text: str, key: str) -> str:
    raise _wrong(text, "names a key, and there is only one local device", expected="local")


def _cann(text: str, name: str, value: str) -> str:
    if versions.parse(value).space != "build":
        raise _wrong(text, f"has {name}={value!r}", expected="a CANN version such as 6.1.1.0")
    return value


def _size(text: str, name: str, value: str) -> int:
    try:
        size = parse_size(value)
    except UsageError:
        size = 0
    if size <= 0:
        raise _wrong(text, f"has {name}={value!r}", expected=f"a size with its unit, above 0: {SIZE_FORMS}")
    return size


def _one_of(*words: str) -> Callable[[str, str, str], str]:
    def parse(text: str, name: str, value: str) -> str:
        if value not in words:
            raise _unknown(text, name, value, words)
        return value

    return parse


def _count(least: int) -> Callable[[str, str, str], int]:
    def parse(text: str, name: str, value: str) -> int:
        if not (value.isascii() and value.isdecimal() and int(value) >= least):
            raise _wrong(text, f"has {name}={value!r}", expected=f"a whole number of at least {least}")
        return int(value)

    return parse


_KeyParser = Callable[[str, str], str]
_OptionParsers = Mapping[str, Callable[[str, str, str], Any]]

_SIM_OPTIONS: _OptionParsers = {
    "cann": _cann,
    "ram": _size,
    "mode": _one_of(*_MODES),
    "seed": _count(0),
    "threads": _count(1),
    "on_mismatch": _one_of(*ON_MISMATCH),
}
_KINDS: Mapping[str, tuple[_KeyParser, _OptionParsers]] = {
    "sim": (_simulated_chip, _SIM_OPTIONS),
    "hdc": (_connect_key, {}),
    "adb": (_connect_key, {}),
    "local": (_no_key, {}),
}


def _unknown(text: str, what: str, given: str, possible: Iterable[str], *, hint: str | None = None) -> UsageError:
    names = list(possible)
    meant = nearest(given.lower(), names, likeness=0.5)
    return UsageError(
        f"--npu={text}: unknown {what} {given!r}" + (f"; did you mean {meant!r}?" if meant else ""),
        field="--npu",
        found=given,
        expected=(", ".join(names) or f"no {what}") + (f"; {hint}" if hint else ""),
    )


def _wrong(text: str, what: str, *, expected: str) -> UsageError:
    return UsageError(f"--npu={text} {what}", field="--npu", found=text, expected=expected)
