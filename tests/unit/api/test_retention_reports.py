"""Test retention away from the leader: the use of a report, and the rules without one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.api.holds import Hold, HoldKind
from services.api.lineage import Lineage
from services.api.partitions import PartitionState
from services.api.retention import (
    DEFAULT_MAX_REPORT_AGE_MS,
    DeletionReason,
    RetentionPlan,
    plan_retention,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import TopicConfig
from tests.unit.api.retention_partition import (
    DELETING,
    NOW_MS,
    SIZE,
    lineage,
    partition,
    segment,
)

ALL_BY_SIZE = TopicConfig(retention_bytes=0)
ALL_BY_TIME = TopicConfig(retention_ms=0)
SECOND = 1000
UNFINISHED = segment(500, 599, state=DELETING)
NO_LEADER = "no leader has reported: its lineage is not known, nothing new is deleted"


def plan(
    segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState, config: TopicConfig
) -> RetentionPlan:
    return plan_retention(segments, state, config, config, now_ms=NOW_MS)


def ranges(planned: RetentionPlan) -> list[tuple[int, int]]:
    return [(d.segment.start_offset, d.segment.end_offset) for d in planned.deletions]


# The sizes of a report


@pytest.mark.parametrize(
    ("age_ms", "deleted", "notes"),
    [
        (0, 2, ()),
        # The database's clock may be set back.
        (-1, 2, ()),
        (DEFAULT_MAX_REPORT_AGE_MS, 2, ()),
        (
            DEFAULT_MAX_REPORT_AGE_MS + 50 * SECOND,
            0,
            ("retention.bytes not applied: the leader's report is 950 s old, at most 900 s",),
        ),
    ],
)
def test_the_size_rule_wants_a_young_report(
    age_ms: int, deleted: int, notes: tuple[str, ...]
) -> None:
    state = partition(lineage((0, 0)), 200, report_age_ms=age_ms)
    planned = plan([segment(0, 99), segment(100, 199)], state, ALL_BY_SIZE)
    assert len(planned.deletions) == deleted
    assert planned.notes == notes


def test_how_old_a_report_may_be_is_the_callers_to_say() -> None:
    state = partition(lineage((0, 0)), 200, report_age_ms=2 * SECOND)
    segments = [segment(0, 99)]
    for limit_ms, deleted in [(SECOND, 0), (2 * SECOND, 1)]:
        planned = plan_retention(
            segments, state, ALL_BY_SIZE, ALL_BY_SIZE, now_ms=NOW_MS, max_report_age_ms=limit_ms
        )
        assert len(planned.deletions) == deleted


def test_a_report_of_unknown_age_is_too_old() -> None:
    state = replace(partition(lineage((0, 0)), 200), reported_at_ms=None)
    planned = plan([segment(0, 99)], state, ALL_BY_SIZE)
    assert planned.deletions == ()
    assert planned.notes == (
        "retention.bytes not applied: the leader's report is of unknown age, at most 900 s",
    )


@pytest.mark.parametrize(("copied_through", "deleted"), [(199, 1), (198, 0), (99, 0), (-1, 0)])
def test_the_size_rule_wants_a_report_that_knows_all_copies(
    copied_through: int, deleted: int
) -> None:
    """Otherwise the bytes of the second segment count twice: here and in only_local_bytes."""
    state = partition(
        lineage((0, 0)), 300, only_local_bytes=SIZE, copied_through_offset=copied_through
    )
    config = TopicConfig(retention_bytes=2 * SIZE)
    planned = plan([segment(0, 99), segment(100, 199)], state, config)
    assert len(planned.deletions) == deleted
    assert bool(planned.notes) is not bool(planned.deletions)


def test_the_note_says_how_far_the_report_knew() -> None:
    state = partition(lineage((0, 0)), 300, copied_through_offset=99)
    planned = plan([segment(0, 99), segment(100, 199)], state, ALL_BY_SIZE)
    assert planned.notes == (
        "retention.bytes not applied: copied through 199, the leader's report through 99",
    )


def test_a_copy_of_another_lineage_does_not_make_a_report_unfit() -> None:
    state = partition(lineage((0, 0), (2, 100)), 300, copied_through_offset=99)
    diverged = segment(100, 199, [(1, 100)])
    planned = plan([segment(0, 99), diverged], state, ALL_BY_SIZE)
    assert ranges(planned) == [(0, 99)]


def test_without_retention_bytes_an_old_report_gives_no_note() -> None:
    state = partition(lineage((0, 0)), 200, report_age_ms=2 * DEFAULT_MAX_REPORT_AGE_MS)
    assert plan([segment(0, 99)], state, ALL_BY_TIME).notes == ()


def test_an_old_report_does_not_stop_the_time_rule() -> None:
    state = partition(lineage((0, 0)), 200, report_age_ms=2 * DEFAULT_MAX_REPORT_AGE_MS)
    config = TopicConfig(retention_ms=0, retention_bytes=0)
    planned = plan([segment(0, 99, age_ms=1), segment(100, 199)], state, config)
    assert [d.reason for d in planned.deletions] == [DeletionReason.RETENTION_TIME]
    assert len(planned.notes) == 1


# The end of the log


def test_segments_copied_after_the_last_report_still_expire() -> None:
    state = partition(lineage((0, 0), (1, 50)), 120, report_age_ms=10 * DEFAULT_MAX_REPORT_AGE_MS)
    segments = [
        segment(0, 99, [(0, 0), (1, 50)], age_ms=5),
        segment(100, 199, [(1, 100)], age_ms=5),
        segment(200, 299, [(1, 200)], age_ms=5),
    ]
    planned = plan(segments, state, ALL_BY_TIME)
    assert ranges(planned) == [(0, 99), (100, 199), (200, 299)]
    assert planned.log_start_offset == 300


def test_segment_truncated_by_unclean_election_does_not_raise_the_log_start() -> None:
    # Epoch 1 was elected at 120 and wrote nothing yet; epoch 0 had copied up to 199.
    state = partition(lineage((0, 0)), 120, leader_epoch=1)
    segments = [segment(0, 99, age_ms=5), segment(100, 199, age_ms=5)]
    planned = plan(segments, state, ALL_BY_TIME)
    assert ranges(planned) == [(0, 99)]
    assert planned.log_start_offset == 100


# No lineage


def test_until_a_leader_reports_only_unfinished_deletions_continue() -> None:
    segments = [segment(0, 99, age_ms=5), UNFINISHED]
    for state in (
        PartitionState(),
        PartitionState(log_start_offset=300),
        replace(partition(lineage((0, 0)), 1000, log_start_offset=300), report=None),
        replace(partition(lineage((0, 0)), 1000, log_start_offset=300), lineage=Lineage()),
    ):
        planned = plan(segments, state, ALL_BY_TIME)
        assert [d.segment for d in planned.deletions] == [UNFINISHED]
        assert planned.log_start_offset is None
        assert planned.notes == (NO_LEADER,)


def test_a_broker_that_kept_one_local_segment_does_not_cost_the_tier() -> None:
    """A stock broker's retention moves its log start and cuts its leader epochs to what is left on
    its disk. Taken for the partition's, they would make all that was copied unreferenced."""
    history = lineage((0, 0), (2, 100), (5, 200), (6, 300))
    tiered = [
        segment(0, 99, [(0, 0)]),
        segment(100, 199, [(2, 100)]),
        segment(200, 299, [(5, 200)]),
        segment(300, 399, [(6, 300)]),
    ]
    keep_all = TopicConfig()
    reported = lineage((6, 400))

    merged = history.merged_with_report(reported)
    assert plan(tiered, partition(merged, 450), keep_all) == RetentionPlan(())

    # The danger is real: this is what the broker's own word would do.
    planned = plan(tiered, partition(reported, 450, log_start_offset=400), keep_all)
    assert len(planned.deletions) == 4


# Legal hold


def test_on_hold_only_unfinished_deletions_continue() -> None:
    state = partition(lineage((3, 300)), 1000, log_start_offset=300)
    unreferenced = segment(0, 99, [(1, 0)])
    below_start = segment(100, 199, [(3, 100)])
    expired = segment(300, 399, [(3, 300)], age_ms=5)
    segments = [unreferenced, below_start, expired, UNFINISHED]
    config = TopicConfig(retention_ms=0, retention_bytes=0)
    assert len(plan(segments, state, config).deletions) == 4

    hold = Hold("audit", HoldKind.OPERATOR, reason="test")
    planned = plan(segments, replace(state, holds=(hold,)), config)
    assert [d.segment for d in planned.deletions] == [UNFINISHED]
    assert planned.log_start_offset is None
    assert planned.retained_for == hold
