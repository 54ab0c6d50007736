"""Test where a read by time begins, by the time index of a segment."""

from struct import pack

import pytest

from services.records.index_files import first_offset_since

TIMES = b"".join(pack(">qi", *entry) for entry in [(1_000, 9), (2_000, 19), (3_000, 99)])


@pytest.mark.parametrize(
    ("time_ms", "offset"), [(0, 100), (1_000, 100), (1_001, 109), (2_500, 119), (9_000, 199)]
)
def test_older_records_are_skipped(time_ms: int, offset: int) -> None:
    assert first_offset_since(TIMES, 100, 199, time_ms) == offset


def test_no_offset_is_behind_the_segment() -> None:
    assert first_offset_since(TIMES, 100, 150, 9_000) == 150
    assert first_offset_since(b"", 100, 150, 9_000) == 100
