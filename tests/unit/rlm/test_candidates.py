from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.ids import RemoteLogSegmentId
from services.api.lineage import Lineage
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlm.copy.rules import candidate_log_segments, copied_through_offset, in_tier
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.losses import lost_before_copy
from services.rlm.tier import OffsetRanges, Tier
from tests.unit.rlm.kafka_bytes import NAME

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def lineage(*entries: tuple[int, int]) -> Lineage:
    return Lineage(segment_leader_epochs(entries))


def log(*bases: int, stable: int, start: int | None = None, removed: int = 0) -> LocalLog:
    """Return segments at `bases`, the last one active."""
    nexts: list[int | None] = [*bases[1:], None]
    segments = tuple(
        LocalSegment(Path("t-0"), base, 100, following)
        for base, following in zip(bases, nexts, strict=True)
    )
    first = bases[0] if start is None else start
    return LocalLog(segments, lineage((0, 0)), None, first, stable, stable, removed)


def bases(segments: list[LocalSegment]) -> list[int]:
    return [segment.base_offset for segment in segments]


@pytest.mark.parametrize(
    ("stable", "expected"),
    [(20, [5, 10]), (15, [5, 10]), (14, [5]), (10, [5]), (9, [])],
)
def test_a_segment_is_a_candidate_when_the_next_one_begins_at_or_below_the_last_stable_offset(
    stable: int, expected: list[int]
) -> None:
    assert bases(candidate_log_segments(log(5, 10, 15, stable=stable), OffsetRanges())) == (
        expected
    )


@pytest.mark.parametrize(
    ("covered", "expected"),
    [([(0, 9)], [10, 20]), ([(0, 14)], [10, 20]), ([(0, 9), (20, 29)], [10])],
)
def test_what_is_not_wholly_in_the_tier_is_copied_but_not_the_active_segment(
    covered: list[tuple[int, int]], expected: list[int]
) -> None:
    found = candidate_log_segments(log(0, 10, 20, 30, stable=40), OffsetRanges(covered))
    assert bases(found) == expected


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, [0, 10, 30]), (9, [0, 10, 30]), (10, [10, 30]), (20, [30])]
)
def test_segments_missing_before_the_tier_are_copied_down_to_the_log_start(
    log_start: int, expected: list[int]
) -> None:
    held = log(0, 10, 20, 30, 40, stable=40).from_offset(log_start)
    assert bases(candidate_log_segments(held, OffsetRanges([(20, 29)]))) == expected


def test_segments_below_the_log_start_are_left_out_and_the_one_that_holds_it_is_copied() -> None:
    found = candidate_log_segments(log(0, 10, 20, 30, stable=30, start=15), OffsetRanges())
    assert bases(found) == [10, 20]


def test_offsets_below_the_log_start_need_not_be_in_the_tier() -> None:
    held = log(0, 10, stable=10, start=5)
    assert bases(in_tier(held, OffsetRanges([(5, 9)]))) == [0]
    assert in_tier(held, OffsetRanges([(6, 9)])) == []


@pytest.mark.parametrize(
    ("covered", "candidates", "lost", "expected"),
    [
        ([], [], [], -1),
        ([], [0], [], -1),
        ([(0, 9)], [], [], 9),
        ([(0, 9)], [10], [], 9),
        ([(0, 9), (20, 29)], [10], [], 9),
        ([(50, 99)], [], [], 99),
        ([(0, 9), (20, 29)], [], [(10, 19)], 9),
        ([(0, 9), (20, 29)], [30], [(15, 19)], 9),
        ([(0, 9), (20, 29), (40, 49)], [30], [(50, 59)], 29),
    ],
)
def test_copied_through_is_the_end_of_the_prefix_without_a_gap(
    covered: list[tuple[int, int]],
    candidates: list[int],
    lost: list[tuple[int, int]],
    expected: int,
) -> None:
    segments = [LocalSegment(Path("t-0"), base, 100, base + 10) for base in candidates]
    assert copied_through_offset(OffsetRanges(covered), segments, lost) == expected


@pytest.mark.parametrize(
    ("covered", "first_here", "expected"),
    [
        ([], 20, []),
        ([(0, 9)], 0, []),
        ([(0, 9)], 10, []),
        ([(0, 9)], 5, []),
        ([(0, 9)], 20, [(10, 19)]),
        ([(0, 9), (20, 29)], 20, [(10, 19)]),
        ([(0, 9), (20, 29)], 40, [(10, 19), (30, 39)]),
        ([(0, 9), (20, 29)], 10, []),
        ([(30, 39)], 10, []),
    ],
)
def test_range_behind_a_copy_that_is_neither_copied_nor_local_is_lost(
    covered: list[tuple[int, int]], first_here: int, expected: list[tuple[int, int]]
) -> None:
    held = log(first_here, first_here + 10, stable=first_here + 10)
    assert lost_before_copy(held, OffsetRanges(covered), 0) == expected


@pytest.mark.parametrize(
    ("before", "expected"), [(10, [(10, 19)]), (15, [(15, 19)]), (19, [(19, 19)]), (20, [])]
)
def test_range_deleted_by_delete_records_is_not_lost(
    before: int, expected: list[tuple[int, int]]
) -> None:
    covered = OffsetRanges([(0, 9)])
    assert lost_before_copy(log(20, 30, stable=30, removed=before), covered, 0) == expected
    assert lost_before_copy(log(20, 30, stable=30), covered, before) == expected


@pytest.mark.parametrize(
    ("covered", "first_here", "expected"),
    [
        ([], 20, []),
        ([], 15, []),
        ([], 30, [(20, 29)]),
        ([(30, 39)], 40, [(20, 29)]),
        ([(30, 39)], 20, []),
        ([(20, 29)], 40, [(30, 39)]),
        ([(10, 19), (30, 39)], 50, [(20, 29), (40, 49)]),
        ([(15, 24)], 25, []),
    ],
)
def test_range_missing_behind_an_emptied_tier_is_lost(
    covered: list[tuple[int, int]], first_here: int, expected: list[tuple[int, int]]
) -> None:
    held = log(first_here, first_here + 10, stable=first_here + 10)
    assert lost_before_copy(held, OffsetRanges(covered), 20, 20) == expected


def test_an_emptied_tier_and_a_lost_disk_leave_the_log_end_unknown() -> None:
    assert lost_before_copy(None, OffsetRanges(), 20, 20) == []
    assert lost_before_copy(None, OffsetRanges([(30, 39)]), 20, 20) == [(20, 29)]


def test_of_a_lost_disk_the_gaps_in_the_tier_are_lost() -> None:
    assert lost_before_copy(None, OffsetRanges([(0, 9), (20, 29)]), 0) == [(10, 19)]


def test_ranges_that_touch_are_one() -> None:
    assert list(OffsetRanges([(10, 19), (0, 9), (30, 39), (35, 36)])) == [(0, 19), (30, 39)]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(0, 19, True), (5, 5, True), (0, 20, False), (20, 20, False), (30, 39, True)],
)
def test_ranges_cover_offsets_within_one_of_them(first: int, last: int, expected: bool) -> None:
    assert OffsetRanges([(0, 19), (30, 39)]).covers(first, last) is expected


@pytest.mark.parametrize(("offset", "expected"), [(0, None), (1, 0), (25, 19), (30, 19), (99, 39)])
def test_the_last_offset_below_another(offset: int, expected: int | None) -> None:
    assert OffsetRanges([(0, 19), (30, 39)]).last_below(offset) == expected


def remote(
    start: int, end: int, *epochs: tuple[int, int], state: RemoteLogSegmentState = FINISHED
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(NAME, uuid4()),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=-1,
        broker_id=1,
        event_timestamp_ms=0,
        segment_leader_epochs=segment_leader_epochs(epochs),
        segment_size_in_bytes=1000,
        state=state,
    )


def tier(*segments: RemoteLogSegmentMetadata, log_start_offset: int = 0) -> Tier:
    made = Tier(known=True, log_start_offset=log_start_offset)
    for segment in segments:
        made.add(segment)
    return made


@pytest.mark.parametrize(("offset", "expected"), [(0, 5), (7, 7), (99, 30)])
def test_the_tiers_log_start_only_raises_that_of_the_log(offset: int, expected: int) -> None:
    assert log(0, 10, stable=30, start=5).from_offset(offset).log_start_offset == expected


def test_nothing_is_lost_below_the_tiers_log_start() -> None:
    made = tier(remote(0, 9, (0, 0)), remote(30, 39, (0, 30)), log_start_offset=25)
    covered = made.covered(lineage((0, 0)))
    assert lost_before_copy(None, covered, made.deleted_before_offset) == [(25, 29)]
    made.log_start_offset = 30
    assert lost_before_copy(None, covered, made.deleted_before_offset) == []


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, 0), (5, 5), (10, 10), (15, 15), (20, None)]
)
def test_the_tier_begins_at_its_log_start(log_start: int, expected: int | None) -> None:
    made = tier(remote(0, 9, (0, 0)), remote(10, 19, (0, 10)), log_start_offset=log_start)
    assert made.start_offset == expected
    assert made.end_offset == 20
    assert made.has_finished_below_log_start is (log_start >= 10)


def test_tier_from_which_all_expired_ends_at_its_log_start() -> None:
    assert tier(log_start_offset=100).end_offset == 100


def test_only_finished_segments_count() -> None:
    made = tier(
        remote(0, 9, (0, 0)),
        remote(10, 19, (0, 10), state=STARTED),
        remote(20, 29, (0, 20), state=DELETING),
    )
    assert (made.segments, made.size_bytes, made.start_offset, made.end_offset) == (1, 1000, 0, 10)
    assert list(made.covered(lineage((0, 0)))) == [(0, 9)]
    assert [s.start_offset for s in made.unfinished] == [10, 20]


def test_segments_being_deleted_are_counted_but_not_in_the_tier() -> None:
    deleting = remote(20, 29, (0, 20), state=DELETING)
    made = tier(remote(0, 9, (0, 0)), deleting, replace(deleting, custom_metadata=b"where"))
    assert (made.deleting_segments, made.deleting_bytes) == (1, 1000)
    assert made.unfinished == [deleting]
    assert (made.segments, made.end_offset) == (1, 10)


def test_tier_starts_at_the_first_offset_that_a_look_up_finds() -> None:
    assert tier(remote(0, 9, (0, 5))).start_offset == 5


def test_a_segment_copied_from_inside_shows_a_deletion_on_request() -> None:
    assert tier(remote(0, 9, (0, 0)), remote(20, 29, (0, 20))).removed_before_offset == 0
    assert tier(remote(0, 9, (0, 0)), remote(20, 29, (0, 25))).removed_before_offset == 25


def test_offsets_of_an_overruled_leader_are_not_covered() -> None:
    made = tier(remote(0, 149, (0, 0), (1, 100)), remote(150, 199, (1, 150)))
    assert list(made.covered(lineage((0, 0), (2, 120)))) == [(0, 99)]
    assert list(made.covered(lineage((0, 0), (1, 100), (2, 180)))) == [(0, 179)]


def test_epochs_that_the_broker_forgot_still_count() -> None:
    made = tier(remote(0, 99, (0, 0), (1, 50)), remote(100, 199, (1, 100), (3, 150)))
    assert list(made.covered(lineage((3, 180)))) == [(0, 199)]
    assert list(made.covered(lineage((1, 60), (3, 150)))) == [(0, 199)]


def test_the_newest_segment_is_of_the_latest_epoch() -> None:
    made = tier(remote(0, 199, (1, 0)), remote(100, 149, (1, 100), (2, 120)))
    assert made.newest is not None
    assert made.end_offset == 150
