"""Compressed attribute names: since CANN 7 an op's attribute can be stored under its index into a table of names.

Such a key is a zero byte and then the index in base 127, least significant digit first, each digit plus one. The table
is the model attribute ``attr_name_enum``. Where ``attrs_use_string_value`` is true for that index, the stored number is
itself an index, into ``attr_value_enum``. A key without the leading zero is the name itself; one op can have both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_cannlm.container.modelattrs import AttributeValue

VERSION, NAMES, USES_TEXT, VALUES = (
    "om_compress_version",
    "attr_name_enum",
    "attrs_use_string_value",
    "attr_value_enum",
)
TABLE_ATTRIBUTES = (VERSION, NAMES, USES_TEXT, VALUES)

_BASE = 127
_MAX_DIGITS = 4


class NameTableError(ValueError):
    """A key or value points outside the tables; concerns that one attribute."""


@dataclass(frozen=True)
class NameTables:
    """The tables of a model; empty ones for a model that compresses nothing."""

    names: tuple[str, ...] = ()
    uses_text: tuple[bool, ...] = ()
    values: tuple[str, ...] = ()

    def name(self, key: bytes) -> str:
        """The name that a stored key stands for."""
        index = _index(key)
        return key.decode("utf-8", errors="backslashreplace") if index is None else _at(self.names, index, NAMES)

    def value(self, key: bytes, stored: AttributeValue) -> AttributeValue:
        """The value that is meant by what is stored under ``key``."""
        index = _index(key)
        if index is None or not (index < len(self.uses_text) and self.uses_text[index]):
            return stored
        if isinstance(stored, list):
            return [_at(self.values, item, VALUES) if isinstance(item, int) else item for item in stored]
        return _at(self.values, stored, VALUES) if isinstance(stored, int) else stored


def tables_of(attributes: Mapping[str, AttributeValue]) -> NameTables | None:
    """The tables among the attributes of a model, None if it has none."""
    if VERSION not in attributes or NAMES not in attributes:
        return None
    names, uses_text, values = (attributes.get(key) for key in (NAMES, USES_TEXT, VALUES))
    return NameTables(_texts(names), _flags(uses_text), _texts(values))


def encode_key(index: int) -> bytes:
    """The key under which an attribute with that index is stored."""
    digits = bytearray(b"\0")
    while True:
        index, digit = divmod(index, _BASE)
        digits.append(digit + 1)
        if not index:
            return bytes(digits)


def _index(key: bytes) -> int | None:
    """The index in a compressed key; None for a name that stands there itself."""
    if not key.startswith(b"\0"):
        return None
    digits = key[1:]
    if not 1 <= len(digits) <= _MAX_DIGITS or not all(1 <= digit <= _BASE for digit in digits):
        raise NameTableError(f"the attribute key {key[:16].hex()} is no index")
    index = 0
    for digit in reversed(digits):
        index = index * _BASE + digit - 1
    return index


def _at(table: tuple[str, ...], index: int, name: str) -> str:
    if not 0 <= index < len(table):
        raise NameTableError(f"index {index} is outside {name} with its {len(table)} entries")
    return table[index]


def _texts(value: AttributeValue | None) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _flags(value: AttributeValue | None) -> tuple[bool, ...]:
    return tuple(bool(item) for item in value) if isinstance(value, list) else ()
