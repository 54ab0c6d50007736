"""Check that `make bench-check` sees each rise of a count."""

import pytest

from benchmarks.count_table import TABLE, Counts, fallen, from_toml, risen, to_toml

KNOWN = {"copy": Counts({"request: PutObject.log": 1, "statements": 36.3}, tolerance=0.02)}


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ({"statements": 36.9}, []),
        ({"statements": 37.3}, ["copy: statements rose from 36.3 to 37.3"]),
        ({"request: PutObject.log": 2}, ["copy: request: PutObject.log rose from 1 to 2"]),
        ({"request: HeadObject.log": 1}, ["copy: request: HeadObject.log rose from 0 to 1"]),
    ],
    ids=["within the tolerance", "above it", "one more", "a new one"],
)
def test_a_rise_is_named_with_both_numbers(found: dict[str, float], lines: list[str]) -> None:
    assert list(risen(KNOWN, {"copy": Counts(found)})) == lines


def test_an_operation_without_a_row_has_no_counts_yet() -> None:
    assert list(risen({}, KNOWN)) == [
        "copy: request: PutObject.log rose from 0 to 1",
        "copy: statements rose from 0 to 36.3",
    ]


def test_a_fall_is_named_and_a_count_that_is_gone_is_0() -> None:
    assert list(fallen(KNOWN, {"copy": Counts({"statements": 36})})) == [
        "copy: request: PutObject.log fell from 1 to 0"
    ]


def test_a_table_is_read_as_it_was_written() -> None:
    assert from_toml(to_toml(KNOWN)) == KNOWN


def test_the_committed_table_is_as_the_command_writes_it() -> None:
    text = TABLE.read_text()
    assert to_toml(from_toml(text)) == text
