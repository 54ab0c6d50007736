"""Test which segments leave a local log: the rules alone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.lineage import Lineage
from services.api.segments import SegmentLeaderEpoch
from services.api.topic_config import UNLIMITED, TopicConfig, topic_config
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.retention.local_task import (
    Copied,
    LocalDeletion,
    LocalDeletionReason,
    LocalLimits,
    allowed_local_deletions,
    due_local_deletions,
    local_limits,
)
from services.rlm.tier_state import OffsetRanges

BELOW = LocalDeletionReason.LOG_START_OFFSET
SIZE, TIME = LocalDeletionReason.SIZE, LocalDeletionReason.TIME
NOW_MS = 10_000


def log(*sizes: int, first: int = 0) -> list[LocalSegment]:
    """Return segments of ten offsets each; the last one is active."""
    bases = [first + 10 * number for number in range(len(sizes))]
    nexts: list[int | None] = [*bases[1:], None]
    return [LocalSegment(Path(), *row) for row in zip(bases, sizes, nexts, strict=True)]


def lineage(*epochs: tuple[int, int]) -> Lineage:
    return Lineage(tuple(SegmentLeaderEpoch(*epoch) for epoch in epochs))


def due(
    segments: list[LocalSegment],
    limits: LocalLimits,
    log_start: int = 0,
    ages_ms: tuple[int | None, ...] = (),
) -> list[tuple[int, LocalDeletionReason]]:
    def timestamp_ms(segment: LocalSegment) -> int | None:
        age_ms = ages_ms[segments.index(segment)]
        return None if age_ms is None else NOW_MS - age_ms

    found = due_local_deletions(segments, log_start, limits, NOW_MS, timestamp_ms)
    return [(deletion.segment.base_offset, deletion.reason) for deletion in found]


def test_nothing_set_nothing_goes() -> None:
    assert due(log(5, 5, 5), local_limits(TopicConfig()), ages_ms=(9999, 9999, 9999)) == []


@pytest.mark.parametrize(
    ("entries", "limits"),
    [
        ({"retention.ms": "7", "retention.bytes": "9"}, LocalLimits(7, 9)),
        ({"retention.ms": "7", "local.retention.ms": "-2"}, LocalLimits(7, UNLIMITED)),
        ({"retention.ms": "7", "local.retention.ms": "3"}, LocalLimits(3, UNLIMITED)),
        ({"local.retention.bytes": "0"}, LocalLimits(UNLIMITED, 0)),
        ({"retention.ms": "7", "remote.log.copy.disable": "true"}, LocalLimits(7, UNLIMITED)),
    ],
)
def test_a_local_retention_that_is_not_set_is_as_the_whole(
    entries: dict[str, str], limits: LocalLimits
) -> None:
    assert local_limits(topic_config(entries)) == limits


@pytest.mark.parametrize(
    ("size_bytes", "bases"),
    [(30, []), (26, []), (25, [0]), (21, [0]), (20, [0, 10]), (0, [0, 10, 20, 30])],
)
def test_size_rule_leaves_at_least_the_size_limit(size_bytes: int, bases: list[int]) -> None:
    segments = log(5, 5, 5, 5, 10)
    found = due(segments, LocalLimits(size_bytes=size_bytes))
    assert found == [(base, SIZE) for base in bases]


def test_older_than_the_time_limit_and_not_as_old() -> None:
    assert due(log(1, 1, 1, 1), LocalLimits(ms=100), ages_ms=(102, 101, 100, 999)) == [
        (0, TIME),
        (10, TIME),
    ]


def test_the_active_segment_never_goes_and_neither_does_the_future() -> None:
    assert due(log(5), LocalLimits(0, 0), ages_ms=(9999,)) == []
    assert due(log(5, 5), LocalLimits(ms=0), ages_ms=(-50, 9999)) == []
    assert due(log(5, 5), LocalLimits(ms=0), ages_ms=(None, 9999)) == []


def test_a_segment_that_stays_keeps_all_behind_it() -> None:
    assert due(log(1, 1, 1), LocalLimits(ms=100), ages_ms=(50, 500, 500)) == []


def test_segments_below_the_log_start_are_deleted_without_limits() -> None:
    assert due(log(5, 5, 5, 5), LocalLimits(), log_start=25) == [(0, BELOW), (10, BELOW)]
    assert due(log(5, 5, 5), LocalLimits(), log_start=9) == []


def test_bytes_deleted_by_one_rule_count_for_the_others() -> None:
    limits = LocalLimits(size_bytes=10)
    assert due(log(5, 5, 5, 5), limits, log_start=10) == [(0, BELOW), (10, SIZE)]


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    limit=st.integers(-1, 300),
    log_start=st.integers(0, 90),
)
def test_a_prefix_goes_and_a_second_pass_finds_nothing(
    sizes: list[int], limit: int, log_start: int
) -> None:
    segments = log(*sizes)
    found = due_local_deletions(
        segments, log_start, LocalLimits(size_bytes=limit), NOW_MS, lambda _: None
    )
    assert [d.segment for d in found] == segments[: len(found)]
    left = segments[len(found) :]
    assert left
    by_size = [d for d in found if d.reason is SIZE]
    if by_size:
        assert sum(s.size_bytes for s in left) >= limit
    limits = LocalLimits(size_bytes=limit)
    assert due_local_deletions(left, log_start, limits, NOW_MS, lambda _: None) == []


def ranges(*of_epochs: tuple[int, int, int]) -> dict[int, OffsetRanges]:
    found: dict[int, OffsetRanges] = {}
    for epoch, first, last in of_epochs:
        found.setdefault(epoch, OffsetRanges()).add(first, last)
    return found


LINEAGE = lineage((0, 0), (2, 15))


def copied(
    *of_epochs: tuple[int, int, int], local: Lineage = LINEAGE, tier: Lineage = LINEAGE
) -> Copied:
    return Copied(ranges(*of_epochs), tier, local)


@pytest.mark.parametrize(
    ("in_tier", "has"),
    [
        (copied((0, 0, 14), (2, 15, 19)), True),
        (copied((0, 0, 9), (0, 10, 14), (2, 15, 40)), True),
        (copied((0, 0, 14), (2, 15, 18)), False),
        (copied((0, 0, 13), (2, 15, 19)), False),
        (copied((0, 0, 14)), False),
        (copied((0, 0, 19)), False),  # an overruled leader's records, from 15 on
        (copied((0, 0, 14), (1, 15, 19)), False),  # another leader's
        (copied((0, 0, 14), (2, 15, 19), local=lineage((2, 15))), False),
        (copied((0, 0, 14), (2, 15, 19), local=Lineage()), False),
        (copied((0, 0, 14), (2, 15, 19), tier=Lineage()), False),
        (copied((0, 0, 14), (2, 15, 19), tier=lineage((0, 0), (3, 15))), False),
        (copied((0, 0, 14), (2, 15, 19), tier=lineage((0, 0), (2, 14))), False),
    ],
)
def test_only_offsets_in_the_tier_with_the_same_epochs_count_as_copied(
    in_tier: Copied, has: bool
) -> None:
    assert in_tier.has(log(5, 5, 5)[1], 0) is has


def test_only_offsets_from_the_log_start_must_be_in_the_tier() -> None:
    in_tier = copied((0, 12, 14), (2, 15, 19))
    segment = log(5, 5, 5)[1]
    assert in_tier.has(segment, 12)
    assert not in_tier.has(segment, 11)


def test_first_uncopied_segment_ends_deletion_except_below_the_log_start() -> None:
    segments = log(5, 5, 5, 5, 5)
    deletions = [LocalDeletion(segments[0], BELOW)]
    deletions += [LocalDeletion(segment, TIME) for segment in segments[1:4]]
    in_tier = copied((2, 20, 29), (2, 30, 39))
    assert allowed_local_deletions(deletions, in_tier, 10) == deletions[:1]
    in_tier = copied((0, 10, 14), (2, 15, 19), (2, 30, 39))
    assert allowed_local_deletions(deletions, in_tier, 10) == deletions[:2]
