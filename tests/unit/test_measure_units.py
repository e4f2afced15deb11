import math

import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.measure.units import format_bytes, format_value, parse_percent


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
