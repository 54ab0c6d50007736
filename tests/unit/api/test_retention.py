"""Test retention by Kafka's own numbers: RemoteLogManagerTest, then each rule at its boundary."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.api.partitions import PartitionState
from services.api.retention import Deletion, DeletionReason, RetentionPlan, plan_retention
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, TopicConfig
from tests.unit.api.retention_partition import (
    DELETED,
    DELETING,
    NOW_MS,
    SIZE,
    STARTED,
    lineage,
    partition,
    raised,
    segment,
)

SEGMENTS, RECORDS, ONLY_LOCAL = 50, 100, 512
HISTORY = lineage((0, 0), (1, 20), (3, 50), (4, 100))
PARTITION = partition(HISTORY, SEGMENTS * RECORDS + 1, only_local_bytes=ONLY_LOCAL)
ALL = TopicConfig(retention_ms=0)
ONE_EPOCH = partition(lineage((0, 0)), 1000)
A_DAY_MS = 24 * 60 * 60 * 1000
DAY = TopicConfig(retention_ms=A_DAY_MS)

TIME, SIZE_BREACH = DeletionReason.RETENTION_TIME, DeletionReason.RETENTION_SIZE
BELOW_START, UNREFERENCED = DeletionReason.LOG_START_OFFSET, DeletionReason.UNREFERENCED
NOT_FINISHED = DeletionReason.DELETION_NOT_FINISHED


def fifty(*, expired: int = 0) -> list[RemoteLogSegmentMetadata]:
    """Return 50 segments of 100 records and 1024 bytes; the first `expired` are older than a
    day.
    """
    made = []
    for number in range(SEGMENTS):
        start = number * RECORDS
        epochs = [
            (epoch.leader_epoch, epoch.start_offset)
            for epoch in HISTORY.between(start, start + RECORDS)
        ]
        age_ms = A_DAY_MS + 1 if number < expired else 1
        made.append(segment(start, start + RECORDS - 1, epochs, age_ms=age_ms))
    return made


def plan(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    config: TopicConfig,
    *being_copied: RemoteLogSegmentMetadata,
) -> RetentionPlan:
    ids = [copied.remote_log_segment_id.id for copied in being_copied]
    return plan_retention(segments, state, config, config, being_copied=ids, now_ms=NOW_MS)


def ranges(planned: RetentionPlan) -> list[tuple[int, int]]:
    return [(d.segment.start_offset, d.segment.end_offset) for d in planned.deletions]


def reasons(planned: RetentionPlan) -> list[DeletionReason]:
    return [deletion.reason for deletion in planned.deletions]


@pytest.mark.parametrize(("deleted", "log_start"), [(0, None), (1, 100), (23, 2300), (50, 5000)])
def test_by_size_exactly_the_oldest_segments_that_are_too_many_go(
    deleted: int, log_start: int | None
) -> None:
    limit = TopicConfig(retention_bytes=(SEGMENTS - deleted) * SIZE + ONLY_LOCAL)
    planned = plan(fifty(), PARTITION, limit)
    assert [d.segment for d in planned.deletions] == fifty()[:deleted]
    assert reasons(planned) == [SIZE_BREACH] * deleted
    assert planned.log_start_offset == log_start
    assert planned.deleted_size_bytes == deleted * SIZE
    assert planned.notes == ()


@pytest.mark.parametrize(("deleted", "log_start"), [(0, None), (1, 100), (23, 2300), (50, 5000)])
def test_by_time_exactly_the_expired_segments_go(deleted: int, log_start: int | None) -> None:
    planned = plan(fifty(expired=deleted), PARTITION, DAY)
    assert [d.segment for d in planned.deletions] == fifty(expired=deleted)[:deleted]
    assert reasons(planned) == [TIME] * deleted
    assert planned.log_start_offset == log_start


def test_segments_deleted_by_time_count_towards_the_size() -> None:
    limit = TopicConfig(retention_ms=A_DAY_MS, retention_bytes=(SEGMENTS - 5) * SIZE + ONLY_LOCAL)
    planned = plan(fifty(expired=3), PARTITION, limit)
    assert reasons(planned) == [TIME] * 3 + [SIZE_BREACH] * 2
    planned = plan(fifty(expired=7), PARTITION, limit)
    assert reasons(planned) == [TIME] * 7


@pytest.mark.parametrize("config", [TopicConfig(retention_ms=0), TopicConfig(retention_bytes=0)])
def test_retention_of_0_deletes_everything_copied(config: TopicConfig) -> None:
    planned = plan(fifty(), PARTITION, config)
    assert len(planned.deletions) == SEGMENTS
    assert planned.log_start_offset == SEGMENTS * RECORDS


def test_unlimited_retention_deletes_nothing() -> None:
    assert plan(fifty(expired=50), PARTITION, TopicConfig()) == RetentionPlan(())


def test_a_partition_without_segments_has_nothing_to_delete() -> None:
    assert plan([], PARTITION, ALL) == RetentionPlan(())


# retention.ms


@pytest.mark.parametrize(("age_ms", "goes"), [(A_DAY_MS, False), (A_DAY_MS + 1, True)])
def test_a_segment_as_old_as_retention_ms_stays(age_ms: int, goes: bool) -> None:
    planned = plan([segment(0, 99, age_ms=age_ms)], ONE_EPOCH, DAY)
    assert bool(planned.deletions) is goes


def test_a_segment_that_is_written_this_very_moment_outlives_retention_0() -> None:
    assert plan([segment(0, 99)], ONE_EPOCH, ALL).deletions == ()


@pytest.mark.parametrize("retention_ms", [NOW_MS + 1, 2**63 - 1])
def test_retention_ms_larger_than_now_is_no_limit(retention_ms: int) -> None:
    nothing = segment(0, 99, age_ms=NOW_MS + 1)
    config = TopicConfig(retention_ms=retention_ms)
    assert plan([nothing], ONE_EPOCH, config) == RetentionPlan(())


def test_the_first_segment_that_may_stay_ends_the_scan() -> None:
    old, young = A_DAY_MS + 1, 1
    segments = [segment(n, n + 99, age_ms=a) for n, a in [(0, old), (100, young), (200, old)]]
    planned = plan(segments, ONE_EPOCH, DAY)
    assert ranges(planned) == [(0, 99)]
    assert planned.log_start_offset == 100


# retention.bytes


@pytest.mark.parametrize(
    ("excess", "deleted"), [(0, 0), (1, 0), (SIZE - 1, 0), (SIZE, 1), (2 * SIZE - 1, 1)]
)
def test_only_whole_segments_that_fit_in_the_excess_go(excess: int, deleted: int) -> None:
    config = TopicConfig(retention_bytes=SEGMENTS * SIZE + ONLY_LOCAL - excess)
    assert len(plan(fifty(), PARTITION, config).deletions) == deleted


def test_bytes_of_another_lineage_or_of_unfinished_copies_do_not_count() -> None:
    state = partition(lineage((0, 0), (2, 200)), 1000)
    counted = [segment(0, 99), segment(100, 199)]
    not_counted = [
        segment(100, 299, [(0, 100)]),
        segment(150, 199, [(1, 150)]),
        segment(100, 199, attempt=2, state=STARTED),
        segment(0, 99, attempt=2, state=DELETED),
    ]
    config = TopicConfig(retention_bytes=2 * SIZE)
    assert plan([*counted, *not_counted], state, config).deletions == ()
    config = TopicConfig(retention_bytes=SIZE)
    assert ranges(plan([*counted, *not_counted], state, config)) == [(0, 99)]


def test_a_segment_that_spans_epochs_counts_and_goes_once() -> None:
    state = partition(lineage((0, 0), (1, 50), (2, 100)), 1000)
    segments = [segment(0, 149, [(0, 0), (1, 50), (2, 100)]), segment(150, 199, [(2, 150)])]
    assert plan(segments, state, TopicConfig(retention_bytes=2 * SIZE)).deletions == ()
    assert ranges(plan(segments, state, TopicConfig(retention_bytes=SIZE))) == [(0, 149)]
    assert ranges(plan(segments, state, TopicConfig(retention_bytes=0))) == [(0, 149), (150, 199)]


def test_a_segment_of_unknown_size_counts_nothing() -> None:
    segments = [segment(0, 99, size=-1), segment(100, 199)]
    assert plan(segments, ONE_EPOCH, TopicConfig(retention_bytes=SIZE)).deletions == ()
    planned = plan(segments, ONE_EPOCH, TopicConfig(retention_bytes=0))
    assert ranges(planned) == [(0, 99), (100, 199)]
    assert planned.deleted_size_bytes == SIZE


# Overlaps, other lineages


@pytest.mark.parametrize("config", [DAY, TopicConfig(retention_bytes=0)])
def test_of_an_overlapping_pair_that_both_breach_both_go(config: TopicConfig) -> None:
    pair = [segment(0, 149, age_ms=A_DAY_MS + 1), segment(50, 99, age_ms=A_DAY_MS + 1)]
    planned = plan(pair, ONE_EPOCH, config)
    assert ranges(planned) == [(0, 149), (50, 99)]
    assert planned.log_start_offset == 150


def test_a_segment_of_another_lineage_is_skipped_and_ends_nothing() -> None:
    state = partition(lineage((0, 0), (2, 100)), 1000)
    old = A_DAY_MS + 1
    segments = [
        segment(0, 49, age_ms=old),
        segment(45, 149, age_ms=old),
        segment(50, 99, age_ms=old),
        segment(100, 199, [(2, 100)]),
    ]
    planned = plan(segments, state, DAY)
    assert ranges(planned) == [(0, 49), (50, 99)]
    assert planned.log_start_offset == 100


def test_segments_go_in_the_order_of_their_start_offsets() -> None:
    state = partition(lineage((0, 0), (1, 100)), 1000)
    segments = [
        segment(0, 49),
        segment(60, 149, [(0, 60), (1, 100)]),
        segment(100, 199, [(1, 100)]),
        segment(50, 99),
    ]
    planned = plan(segments, state, TopicConfig(retention_bytes=0))
    assert ranges(planned) == [(0, 49), (50, 99), (60, 149), (100, 199)]


# The log start


def test_below_the_log_start_everything_goes_and_the_log_start_stays() -> None:
    """DeleteRecords raised it: DeleteSegmentsDueToLogStartOffsetBreachTest."""
    history = HISTORY.from_offset(230)
    state = partition(history, 5001, log_start_offset=230)
    planned = plan(fifty(), state, TopicConfig())
    assert ranges(planned) == [(100, 199), (0, 99)]
    assert reasons(planned) == [BELOW_START, UNREFERENCED]
    assert planned.log_start_offset is None


@pytest.mark.parametrize(("log_start", "goes"), [(99, False), (100, True)])
def test_segment_that_ends_below_the_log_start_is_deleted(log_start: int, goes: bool) -> None:
    state = partition(lineage((0, log_start)), 1000, log_start_offset=log_start)
    planned = plan([segment(0, 99), segment(100, 199)], state, TopicConfig())
    assert reasons(planned) == [BELOW_START] * goes


def test_below_the_log_start_a_segment_with_a_later_epoch_is_not_judged() -> None:
    state = partition(lineage((1, 300), (2, 400)), 1000, log_start_offset=300)
    other = segment(100, 199, [(1, 100), (2, 150)])
    assert plan([other], state, TopicConfig()).deletions == ()


def test_an_unfinished_run_is_finished_by_the_next_one_for_the_log_start() -> None:
    """The log start was raised, nothing was deleted; then the leader moved."""
    config = TopicConfig(retention_bytes=(SEGMENTS - 23) * SIZE + ONLY_LOCAL)
    first = plan(fifty(), PARTITION, config)
    second = plan(fifty(), raised(PARTITION, first), config)
    assert {d.segment for d in second.deletions} == {d.segment for d in first.deletions}
    assert set(reasons(second)) == {BELOW_START, UNREFERENCED}
    assert second.log_start_offset is None


def test_the_log_start_is_not_lowered_to_a_segment_that_reached_across_it() -> None:
    # The second segment's end is above the present log start, that of the first is not.
    state = partition(lineage((0, 120)), 1000, log_start_offset=120)
    segments = [segment(0, 99), segment(50, 149, age_ms=A_DAY_MS + 1)]
    planned = plan(segments, state, DAY)
    assert reasons(planned) == [BELOW_START, TIME]
    assert planned.log_start_offset == 150


# Unreferenced


@pytest.mark.parametrize(
    ("epochs", "goes"), [([(2, 0)], True), ([(1, 0), (2, 50)], True), ([(2, 0), (3, 50)], False)]
)
def test_segment_with_only_epochs_before_the_lineage_is_deleted(
    epochs: Sequence[tuple[int, int]], goes: bool
) -> None:
    state = partition(lineage((3, 100)), 1000, log_start_offset=100 if goes else 50)
    planned = plan([segment(0, 99, epochs)], state, TopicConfig())
    assert reasons(planned) == [UNREFERENCED] * goes
    assert planned.log_start_offset is None


@pytest.mark.parametrize("config", [TopicConfig(), DAY, TopicConfig(retention_bytes=10 * SIZE)])
def test_broker_restarted_with_empty_disk_deletes_nothing_from_the_tier(
    config: TopicConfig,
) -> None:
    before = lineage((0, 0), (2, 30))
    after = before.merged_with_report(lineage((3, 0)))
    segments = [segment(0, 29, [(0, 0)]), segment(30, 59, [(2, 30)])]
    assert plan(segments, partition(after, 0), config).deletions == ()


def test_before_the_lineage_is_before_its_very_first_epoch_with_records_or_not() -> None:
    state = partition(lineage((1, 50), (2, 50)), 1000)
    assert plan([segment(0, 99, [(1, 0)])], state, TopicConfig()).deletions == ()


def test_unreferenced_segment_is_deleted_despite_the_end_of_the_scan() -> None:
    state = partition(lineage((3, 50)), 1000, log_start_offset=50)
    stale, valid = segment(0, 49, [(2, 0)], state=STARTED), segment(50, 99, [(3, 50)])
    assert reasons(plan([stale, valid], state, DAY)) == [UNREFERENCED]


def test_a_segment_of_no_known_epoch_that_is_not_before_the_lineage_stays() -> None:
    state = partition(lineage((3, 50), (5, 90)), 1000)
    strays = [segment(0, 40, [(4, 0)]), segment(0, 40, [(6, 0)])]
    assert plan(strays, state, ALL).deletions == ()


# Copies of the same offsets, and records without a time


def test_a_second_copy_of_the_same_offsets_is_no_excess() -> None:
    state = partition(lineage((0, 0)), 200)
    twice = [
        segment(start, start + 9, attempt=attempt)
        for start in range(0, 100, 10)
        for attempt in (1, 2)
    ]
    keeps_all = TopicConfig(retention_bytes=10 * SIZE)
    assert plan(twice, state, keeps_all).deletions == ()
    gone = plan(twice, state, TopicConfig(retention_bytes=8 * SIZE))
    assert ranges(gone) == [(0, 9), (0, 9), (10, 19), (10, 19)]
    assert gone.log_start_offset == 20


def test_segment_without_record_times_is_as_old_as_its_latest_event() -> None:
    state = partition(lineage((0, 0)), 100)
    fresh = replace(segment(0, 49), max_timestamp_ms=-1)
    old = replace(fresh, event_timestamp_ms=NOW_MS - A_DAY_MS - 1)
    assert plan([fresh], state, DAY).deletions == ()
    assert reasons(plan([old], state, DAY)) == [TIME]


# Copies that are under way, or were left behind


def test_nothing_goes_from_the_segment_that_is_being_copied_on() -> None:
    copied = segment(0, 149, age_ms=5, state=STARTED)
    segments = [copied, segment(150, 199, age_ms=5)]
    planned = plan(segments, ONE_EPOCH, ALL, copied)
    assert planned.deletions == ()
    assert planned.notes == ("stopped at a segment that is being copied: 0-AAAAAAAAAAAAAAAAAACVAQ",)


def test_a_leased_copy_is_in_progress_for_every_caller() -> None:
    copied = replace(segment(0, 149, age_ms=5, state=STARTED), copy_leased=True)
    planned = plan([copied, segment(150, 199, age_ms=5)], ONE_EPOCH, ALL)
    assert planned.deletions == ()
    assert planned.notes == ("stopped at a segment that is being copied: 0-AAAAAAAAAAAAAAAAAACVAQ",)


def test_no_rule_takes_a_leased_copy() -> None:
    known = partition(lineage((3, 300)), 1000, log_start_offset=300)
    both = [segment(0, 99, [(1, 0)], state=STARTED), segment(100, 199, [(3, 100)], state=STARTED)]
    assert plan([replace(s, copy_leased=True) for s in both], known, ALL).deletions == ()


def test_once_its_copy_is_over_the_segment_goes() -> None:
    copied = segment(0, 149, age_ms=5)
    assert ranges(plan([copied], ONE_EPOCH, ALL)) == [(0, 149)]


@pytest.mark.parametrize("state", [STARTED, DELETING])
def test_a_segment_under_work_is_left_alone_by_every_rule(state: RemoteLogSegmentState) -> None:
    known = partition(lineage((3, 300)), 1000, log_start_offset=300)
    unreferenced = segment(0, 99, [(1, 0)], state=state)
    below_start = segment(100, 199, [(3, 100)], state=state)
    both = [unreferenced, below_start]
    assert len(plan(both, known, ALL).deletions) == 2
    assert plan(both, known, ALL, *both).deletions == ()


def test_a_copy_left_behind_goes_when_retention_reaches_it() -> None:
    dangling = segment(0, 99, state=STARTED, age_ms=A_DAY_MS + 1)
    planned = plan([dangling, segment(100, 199)], ONE_EPOCH, DAY)
    assert reasons(planned) == [TIME]
    assert planned.log_start_offset == 100


def test_a_copy_left_behind_uses_up_the_excess_and_the_finished_one_goes_with_it() -> None:
    # Kafka's next run deletes it, below the log start that this one raised.
    dangling = segment(0, 99, attempt=1, state=STARTED)
    copied = segment(0, 99, attempt=2)
    segments = [dangling, copied, segment(100, 199)]
    config = TopicConfig(retention_bytes=SIZE)
    planned = plan(segments, ONE_EPOCH, config)
    assert [d.segment for d in planned.deletions] == [dangling, copied]
    assert reasons(planned) == [SIZE_BREACH, BELOW_START]


def test_a_copy_left_behind_that_may_stay_ends_the_scan() -> None:
    dangling = segment(0, 99, state=STARTED, size=3 * SIZE)
    segments = [dangling, segment(100, 199), segment(200, 299)]
    assert plan(segments, ONE_EPOCH, TopicConfig(retention_bytes=SIZE)).deletions == ()


# Deletions that did not finish


def test_unfinished_deletion_continues_at_any_place_of_the_log() -> None:
    state = partition(lineage((0, 0), (3, 100)), 1000)
    unfinished = [
        segment(0, 149, [(0, 0), (3, 100)], state=DELETING),
        segment(500, 599, [(3, 500)], state=DELETING),
        segment(0, 99, [(7, 0)], state=DELETING),
    ]
    planned = plan([segment(0, 99), *unfinished], state, DAY)
    assert ranges(planned) == [(0, 99), (0, 149), (500, 599)]
    assert reasons(planned) == [NOT_FINISHED] * 3
    assert planned.log_start_offset is None


def test_deleted_segments_are_not_deleted_again() -> None:
    gone = [segment(0, 99, age_ms=5, state=DELETED), segment(0, 9, [(0, 0)], state=DELETED)]
    state = partition(lineage((1, 100)), 1000, log_start_offset=100)
    assert plan(gone, ONE_EPOCH, ALL).deletions == ()
    assert plan(gone, state, ALL).deletions == ()


def test_an_unfinished_deletion_neither_counts_nor_ends_the_scan() -> None:
    segments = [segment(0, 99, state=DELETING), segment(100, 199), segment(200, 299)]
    planned = plan(segments, ONE_EPOCH, TopicConfig(retention_bytes=SIZE))
    assert reasons(planned) == [NOT_FINISHED, SIZE_BREACH]


# What people read


@pytest.mark.parametrize(
    ("config", "detail"),
    [
        (
            TopicConfig(retention_ms=A_DAY_MS),
            "max_timestamp 1699913599999 < 1699913600000 (retention.ms 86400000)",
        ),
        (
            TopicConfig(retention_bytes=24),
            "its 1024 bytes fit into the excess of 2024 over retention.bytes 24",
        ),
    ],
)
def test_the_detail_has_the_figures_of_the_rule(config: TopicConfig, detail: str) -> None:
    segments = [segment(0, 99, age_ms=A_DAY_MS + 1), segment(100, 199)]
    assert plan(segments, ONE_EPOCH, config).deletions[0].detail == detail


def test_the_detail_of_the_other_rules() -> None:
    state = partition(lineage((3, 300)), 1000, log_start_offset=300)
    segments = [
        segment(0, 99, [(1, 0)]),
        segment(100, 199, [(3, 100)]),
        segment(200, 299, [(3, 200)], state=DELETING),
    ]
    assert [d.detail for d in plan(segments, state, TopicConfig()).deletions] == [
        "found DELETE_SEGMENT_STARTED",
        "end_offset 199 < log start 300",
        "last leader epoch 1 < 3, the first of the lineage; end_offset 99 < log start 300",
    ]


def test_the_longest_detail_fits_into_the_audit_trail() -> None:
    largest = 2**63 - 1
    config = TopicConfig(retention_ms=0, retention_bytes=UNLIMITED)
    old = segment(0, 99, age_ms=1)
    planned = plan_retention([old], ONE_EPOCH, config, config, now_ms=largest)
    assert len(planned.deletions[0].detail) <= 256


def test_a_deletion_of_a_whole_partition_has_a_reason_too() -> None:
    assert Deletion(segment(0, 99), DeletionReason.PARTITION_DELETED, "").detail == ""
