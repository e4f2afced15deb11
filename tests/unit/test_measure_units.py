import math

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.units import format_bytes, format_value, parse_bytes, parse_percent


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1.5GiB", 1610612736),
        ("1.5GB", 1500000000),
        ("400MiB", 419430400),
        ("400 MB", 400000000),
        ("23040B", 23040),
        ("22.5KiB", 23040),
        ("1kB", 1000),
        ("0.1GB", 100000000),
    ],
)
def test_sizes_are_read_exactly(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["1500", 1500, 1.5, True, None, "1,5 GB", "-1GiB", "GiB", "1.5", "1.5Gib", "1.5gb", "nanGiB", "1e3MB", ".5GiB", ""],
)
def test_what_is_not_a_size_is_refused_with_the_accepted_forms(text):
    with pytest.raises(UsageError, match="1\\.5GiB") as error:
        parse_bytes(text, field="peak")
    assert error.value.field == "peak"
    assert error.value.found == repr(text)


def test_percentages_need_their_sign():
    assert parse_percent("5%") == 5.0
    assert parse_percent("2.5 %") == 2.5
    for wrong in ("5", 5, 0.05, "5 percent", "-5%", "nan%", None):
        with pytest.raises(UsageError):
            parse_percent(wrong)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (45.0, "ms/token", "45 ms/token"),
        (45.123456, "ms", "45.12 ms"),
        (12345.6, "ms", "12346 ms"),
        (400 * 2**20, "bytes", "400.0 MiB"),
        (23040.0, "bytes/token", "22.5 KiB/token"),
        (0.5, "", "0.5"),
        (math.inf, "dB", "inf dB"),
        (math.nan, "nats", "nan nats"),
        (math.inf, "bytes", "inf B"),
    ],
)
def test_values_are_written_with_their_unit(value, unit, text):
    assert format_value(value, unit) == text


def test_small_and_negative_sizes():
    assert format_bytes(0) == "0 B"
    assert format_bytes(-2048) == "-2.0 KiB"
