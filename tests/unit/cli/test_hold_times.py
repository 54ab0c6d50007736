"""Test which whole segments have the offsets of a hold by time."""

import pytest

from services.api.retention import NO_TIMESTAMP
from services.cli.holds import offsets_between
from tests.contract.rlmm.segments import segment
from tests.harness.tier import a_topic

[TP] = a_topic("orders")
IN_ORDER = (1_000, 2_000, 3_000)


@pytest.mark.parametrize(
    ("newest_ms", "from_ms", "to_ms", "kept"),
    [
        # Up to the first segment that is newer: it may begin with records of these times.
        (IN_ORDER, 1_500, 1_800, (10, 19)),
        (IN_ORDER, 1_500, 2_000, (10, 29)),
        (IN_ORDER, 1_000, 1_000, (0, 19)),
        (IN_ORDER, None, 500, (0, 9)),
        (IN_ORDER, 2_500, None, (20, None)),
        # No segment is newer: what comes may have such records.
        (IN_ORDER, None, 3_000, (0, None)),
        (IN_ORDER, 4_000, None, (30, None)),
        (IN_ORDER, 4_000, 5_000, (30, None)),
        ((), 1_000, 2_000, (0, None)),
        # Times of producers need not rise.
        ((3_000, 1_000, 2_000, 5_000), 1_500, 2_500, (0, 39)),
        ((1_000, 3_000, 1_500, 4_000), 1_200, 1_600, (10, 39)),
        # Without a time it may have any.
        ((1_000, NO_TIMESTAMP, 3_000, 4_000), 2_500, 3_500, (10, 39)),
        ((1_000, 3_000, NO_TIMESTAMP, 4_000), 500, 600, (0, 39)),
    ],
)
def test_all_segments_that_may_have_records_of_the_times_are_kept(
    newest_ms: tuple[int, ...],
    from_ms: int | None,
    to_ms: int | None,
    kept: tuple[int, int | None],
) -> None:
    segments = [
        segment(TP, 10 * number, 10 * number + 9, max_timestamp_ms=at)
        for number, at in enumerate(newest_ms)
    ]
    for listed in (segments, segments[::-1]):
        assert offsets_between(listed, from_ms, to_ms) == kept
