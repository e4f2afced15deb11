import pytest

from pytest_cannlm.errors import UsageError
from pytest_cannlm.sizes import parse_size


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
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text",
    ["1500", 1500, 1.5, True, None, "1,5 GB", "-1GiB", "GiB", "1.5", "1.5Gib", "1.5gb", "nanGiB", "1e3MB", ".5GiB", ""],
)
def test_what_is_not_a_size_is_refused_with_the_accepted_forms(text):
    with pytest.raises(UsageError, match="1\\.5GiB") as error:
        parse_size(text, field="peak")
    assert error.value.field == "peak"
    assert error.value.found == repr(text)
