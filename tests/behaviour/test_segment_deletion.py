"""Test deletion with the real RLMM and RSM, from every interruption and by every party."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import MAX_UPDATE_BATCH
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.retention import Deletion, DeletionReason
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.workflows.deletion import (
    Deleter,
    DeletionOutcome,
    ExpectedRevisions,
    begin_deletion,
    finish_deletion,
)
from tests.harness.tier import SmallTier, now_ms, segment

PLAN_ID = "plan-1"
SWEEP = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id=PLAN_ID)
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def expired(segments: Sequence[RemoteLogSegmentMetadata]) -> list[Deletion]:
    return [Deletion(s, DeletionReason.RETENTION_TIME, f"at {s.start_offset}") for s in segments]


def end_of(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    return segments[-1].end_offset + 1


def revisions(tier: SmallTier, tp: TopicIdPartition) -> ExpectedRevisions:
    page = tier.rlmm.list_remote_log_segments(tp, page_size=1)
    return ExpectedRevisions(page.revision, tier.rlmm.topic_config(tp.topic_id).revision)


def begin(
    tier: SmallTier,
    tp: TopicIdPartition,
    segments: Sequence[RemoteLogSegmentMetadata],
    deleter: Deleter = SWEEP,
    expected: ExpectedRevisions | None = None,
) -> list[DeletionOutcome]:
    return begin_deletion(
        tier.rlmm, tp, expired(segments), end_of(segments), expected, deleter, now_ms()
    )


def finish(
    tier: SmallTier, segments: Sequence[RemoteLogSegmentMetadata], deleter: Deleter = SWEEP
) -> list[DeletionOutcome]:
    return list(finish_deletion(tier.rlmm, tier.rsm, segments, deleter, now_ms()))


def errors(outcomes: Sequence[DeletionOutcome]) -> list[RemoteStorageError | None]:
    return [outcome.error for outcome in outcomes]


def events(database_url: str, tp: TopicIdPartition) -> list[tuple[object, ...]]:
    """The partition's deletions in the audit trail, in order."""
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        found = connection.execute(
            "SELECT kind, to_state, reason, rule_detail, plan_id FROM events "
            "WHERE topic_id = %s AND partition = %s ORDER BY revision",
            (tp.topic_id, tp.partition),
        ).fetchall()
    return [row for row in found if row[4] is not None]


def test_the_log_start_rises_then_segments_are_marked_then_gone_then_confirmed(
    tier: SmallTier,
    tp: TopicIdPartition,
    keys: Callable[[], Sequence[str]],
    database_url: str,
) -> None:
    made = tier.fill(tp, 3)
    before = keys()
    assert errors(begin(tier, tp, made[:2], expected=revisions(tier, tp))) == [None, None]
    assert keys() == before
    assert tier.rlmm.remote_log_segment_metadata(tp, 0, 0).value is None
    assert [row.state for row in tier.rows(tp)[:2]] == [DELETE_STARTED] * 2
    marked = events(database_url, tp)
    assert marked == [
        ("LOG_START", "200", "retention", None, PLAN_ID),
        ("SEGMENT", "DELETE_SEGMENT_STARTED", "retention.ms breached", "at 0", PLAN_ID),
        ("SEGMENT", "DELETE_SEGMENT_STARTED", "retention.ms breached", "at 100", PLAN_ID),
    ]

    assert errors(finish(tier, tier.rows(tp)[:2])) == [None, None]
    assert tier.rows(tp) == [tier.rows(tp)[0]]
    assert tier.rows(tp)[0].remote_log_segment_id == made[2].remote_log_segment_id
    assert len(keys()) == len(before) // 3
    assert (
        events(database_url, tp)[3:]
        == [("SEGMENT", "DELETE_SEGMENT_FINISHED", "objects deleted", None, PLAN_ID)] * 2
    )


def test_each_step_again_is_a_success_that_changes_nothing(
    tier: SmallTier, tp: TopicIdPartition, database_url: str
) -> None:
    made = tier.fill(tp, 2)
    # As a task that Spark runs twice has them: the segments as they were before.
    for _ in range(2):
        assert errors(begin(tier, tp, made)) == [None, None]
    for _ in range(2):
        assert errors(finish(tier, made)) == [None, None]
    assert tier.rows(tp) == []
    assert len(events(database_url, tp)) == 5


@pytest.mark.parametrize("stopped_after", ["log start", "some marked", "objects", "some confirmed"])
def test_deletion_resumes_from_any_interruption(
    tier: SmallTier,
    tp: TopicIdPartition,
    keys: Callable[[], Sequence[str]],
    stopped_after: str,
) -> None:
    made = tier.fill(tp, 4)
    if stopped_after == "log start":
        tier.rlmm.raise_log_start_offset(tp, end_of(made))
    if stopped_after == "some marked":
        begin(tier, tp, made[:2])
    if stopped_after in ("objects", "some confirmed"):
        begin(tier, tp, made)
        assert tier.rsm.delete_log_segment_data_batch(made) == [None] * 4
    if stopped_after == "some confirmed":
        finish(tier, made[:2])
    listed = tier.rows(tp)
    other = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id="plan-2")
    assert errors(begin(tier, tp, listed, other)) == [None] * len(listed)
    assert errors(finish(tier, listed, other)) == [None] * len(listed)
    assert tier.rows(tp) == []
    assert keys() == []
    assert tier.rlmm.partition_state(tp).value.log_start_offset == end_of(made)


@pytest.mark.deep
def test_more_than_a_batch_is_marked_on_the_revision_that_it_was_planned_for(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    """The log start and each batch move the revision: the next expects what the last one made."""
    made = [segment(tp, number) for number in range(MAX_UPDATE_BATCH + 5)]
    for each in made:
        tier.rlmm.add_remote_log_segment_metadata(each)
    tier.report(tp, len(made))
    outcomes = begin(tier, tp, made, expected=revisions(tier, tp))
    assert errors(outcomes) == [None] * len(made)
    assert errors(finish(tier, made)) == [None] * len(made)


def test_changed_revision_refuses_the_deletion_before_the_log_start_rises(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    made = tier.fill(tp, 2)
    planned_on = revisions(tier, tp)
    tier.fill(tp, 1, first=2)
    with pytest.raises(ConcurrentUpdateError, match="expected_revision"):
        begin(tier, tp, made, expected=planned_on)
    now = revisions(tier, tp)
    tier.settings(tp.topic_id, {"retention.ms": "1"})
    with pytest.raises(ConcurrentUpdateError, match="expected_config_revision"):
        begin(tier, tp, made, expected=now)
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 0
    assert {row.state for row in tier.rows(tp)} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}


def test_changes_since_the_plan_refuse_each_segment_if_the_log_start_stays(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    made = tier.fill(tp, 2)
    planned_on = revisions(tier, tp)
    tier.settings(tp.topic_id, {})
    outcomes = begin_deletion(tier.rlmm, tp, expired(made), None, planned_on, SWEEP, now_ms())
    assert [type(error) for error in errors(outcomes)] == [ConcurrentUpdateError] * 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"sediment.hold": "true"}, "sediment.hold is set"),
        ({"sediment.sweep.paused": "true"}, "sediment.sweep.paused is set"),
        ({"sediment.retention.owner": "rlm"}, "sediment.retention.owner is rlm, not sweep"),
    ],
)
def test_the_topics_settings_refuse_all_of_it_before_the_log_start_rises(
    tier: SmallTier, tp: TopicIdPartition, entries: dict[str, str], message: str
) -> None:
    made = tier.fill(tp, 2)
    tier.settings(tp.topic_id, entries)
    with pytest.raises(DeletionRefusedError, match=message):
        begin(tier, tp, made)
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 0
    assert tier.rlmm.remote_log_segment_metadata(tp, 0, 0).value is not None


def test_an_older_leader_is_fenced(tier: SmallTier, tp: TopicIdPartition) -> None:
    made = tier.fill(tp, 1, broker_leader_epoch=5)
    old = Deleter(broker_id=1, retention_owner=RetentionOwner.RLM, broker_leader_epoch=4)
    with pytest.raises(FencedLeaderEpochError):
        begin(tier, tp, made, old)
    assert tier.rlmm.partition_state(tp).value.log_start_offset == 0


def test_a_hold_that_comes_after_the_mark_does_not_leave_half_a_deletion(
    tier: SmallTier, tp: TopicIdPartition, keys: Callable[[], Sequence[str]]
) -> None:
    made = tier.fill(tp, 2)
    begin(tier, tp, made)
    tier.settings(tp.topic_id, {"sediment.hold": "true"})
    assert errors(begin(tier, tp, tier.rows(tp))) == [None, None]
    assert errors(finish(tier, tier.rows(tp))) == [None, None]
    assert keys() == []


def test_an_unknown_segment_is_its_own_error(tier: SmallTier, tp: TopicIdPartition) -> None:
    made = tier.fill(tp, 1)
    unknown = segment(tp, 0)
    outcomes = begin(tier, tp, [*made, unknown])
    assert [outcome.segment for outcome in outcomes] == [*made, unknown]
    assert [error is None for error in errors(outcomes)] == [True, False]


def test_deletion_not_confirmed_by_the_store_stays_marked(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    made = tier.fill(tp, 3)
    begin(tier, tp, made)
    stuck = SmallTier(_Stuck(tier.rsm, made[1].remote_log_segment_id.id), tier.rlmm)
    outcomes = finish(stuck, made)
    assert [error is None for error in errors(outcomes)] == [True, False, True]
    [left] = tier.rows(tp)
    assert left.remote_log_segment_id == made[1].remote_log_segment_id
    assert left.state is DELETE_STARTED
    assert errors(finish(tier, [left])) == [None]


def test_deletion_of_an_unmarked_segment_is_not_confirmed(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    [made] = tier.fill(tp, 1)
    [outcome] = finish(tier, [made])
    assert outcome.error is not None
    assert tier.rows(tp) != []


class _Stuck:
    """An RSM that cannot delete one of the segments."""

    def __init__(self, rsm: RemoteStorageManager, stuck: UUID) -> None:
        self._rsm = rsm
        self._stuck = stuck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rsm, name)

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        kept = [m for m in metadatas if m.remote_log_segment_id.id != self._stuck]
        outcomes = dict(zip(kept, self._rsm.delete_log_segment_data_batch(kept), strict=True))
        busy = RetriableRemoteStorageError("the store is busy")
        return [outcomes.get(m, busy) if m in outcomes else busy for m in metadatas]
