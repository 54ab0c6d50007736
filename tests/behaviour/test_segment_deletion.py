"""Test deletion with the real RLMM and RSM, from every interruption and by every party."""

from collections.abc import Sequence
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
from tests.harness.holds import hold
from tests.harness.tier import FileTier, SmallTier, now_ms, segment
from tests.harness.wrapper import Wrapper

PLAN_ID = "plan-1"
SWEEP = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id=PLAN_ID)
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def expired(segments: Sequence[RemoteLogSegmentMetadata]) -> list[Deletion]:
    return [Deletion(s, DeletionReason.RETENTION_TIME, f"at {s.start_offset}") for s in segments]


def end_of(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    return segments[-1].end_offset + 1


def revisions(tier: FileTier) -> ExpectedRevisions:
    page = tier.rlmm.list_remote_log_segments(tier.tp, page_size=1)
    return ExpectedRevisions(page.revision, tier.rlmm.topic_config(tier.tp.topic_id).revision)


def begin(
    tier: FileTier,
    segments: Sequence[RemoteLogSegmentMetadata],
    deleter: Deleter = SWEEP,
    expected: ExpectedRevisions | None = None,
) -> list[DeletionOutcome]:
    return begin_deletion(
        tier.rlmm, tier.tp, expired(segments), end_of(segments), expected, deleter, now_ms()
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
    tier: FileTier, database_url: str
) -> None:
    made = tier.fill(tier.tp, 3)
    before = tier.object_keys()
    assert errors(begin(tier, made[:2], expected=revisions(tier))) == [None, None]
    assert tier.object_keys() == before
    assert tier.rlmm.remote_log_segment_metadata(tier.tp, 0, 0).value is None
    assert [row.state for row in tier.rows(tier.tp)[:2]] == [DELETE_STARTED] * 2
    marked = events(database_url, tier.tp)
    assert marked == [
        ("LOG_START", "200", "retention", None, PLAN_ID),
        ("SEGMENT", "DELETE_SEGMENT_STARTED", "retention.ms breached", "at 0", PLAN_ID),
        ("SEGMENT", "DELETE_SEGMENT_STARTED", "retention.ms breached", "at 100", PLAN_ID),
    ]

    assert errors(finish(tier, tier.rows(tier.tp)[:2])) == [None, None]
    assert tier.rows(tier.tp) == [tier.rows(tier.tp)[0]]
    assert tier.rows(tier.tp)[0].remote_log_segment_id == made[2].remote_log_segment_id
    assert len(tier.object_keys()) == len(before) // 3
    assert (
        events(database_url, tier.tp)[3:]
        == [("SEGMENT", "DELETE_SEGMENT_FINISHED", "objects deleted", None, PLAN_ID)] * 2
    )


def test_each_step_again_is_a_success_that_changes_nothing(
    tier: FileTier, database_url: str
) -> None:
    made = tier.fill(tier.tp, 2)
    # As a task that Spark runs twice has them: the segments as they were before.
    for _ in range(2):
        assert errors(begin(tier, made)) == [None, None]
    for _ in range(2):
        assert errors(finish(tier, made)) == [None, None]
    assert tier.rows(tier.tp) == []
    assert len(events(database_url, tier.tp)) == 5


@pytest.mark.parametrize("stopped_after", ["log start", "some marked", "objects", "some confirmed"])
def test_deletion_resumes_from_any_interruption(tier: FileTier, stopped_after: str) -> None:
    made = tier.fill(tier.tp, 4)
    if stopped_after == "log start":
        tier.rlmm.raise_log_start_offset(tier.tp, end_of(made))
    if stopped_after == "some marked":
        begin(tier, made[:2])
    if stopped_after in ("objects", "some confirmed"):
        begin(tier, made)
        assert tier.rsm.delete_log_segment_data_batch(made) == [None] * 4
    if stopped_after == "some confirmed":
        finish(tier, made[:2])
    listed = tier.rows(tier.tp)
    other = Deleter(retention_owner=RetentionOwner.SWEEP, plan_id="plan-2")
    assert errors(begin(tier, listed, other)) == [None] * len(listed)
    assert errors(finish(tier, listed, other)) == [None] * len(listed)
    assert tier.rows(tier.tp) == []
    assert tier.object_keys() == []
    assert tier.rlmm.partition_state(tier.tp).value.log_start_offset == end_of(made)


@pytest.mark.deep
def test_more_than_a_batch_is_marked_on_the_revision_that_it_was_planned_for(
    tier: FileTier,
) -> None:
    """The log start and each batch move the revision: the next expects what the last one made."""
    made = [segment(tier.tp, number) for number in range(MAX_UPDATE_BATCH + 5)]
    for each in made:
        tier.rlmm.add_remote_log_segment_metadata(each)
    tier.report(tier.tp, len(made))
    outcomes = begin(tier, made, expected=revisions(tier))
    assert errors(outcomes) == [None] * len(made)
    assert errors(finish(tier, made)) == [None] * len(made)


def test_changed_revision_refuses_the_deletion_before_the_log_start_rises(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 2)
    planned_on = revisions(tier)
    tier.fill(tier.tp, 1, first=2)
    with pytest.raises(ConcurrentUpdateError, match="expected_revision"):
        begin(tier, made, expected=planned_on)
    now = revisions(tier)
    tier.settings(tier.tp.topic_id, {"retention.ms": "1"})
    with pytest.raises(ConcurrentUpdateError, match="expected_config_revision"):
        begin(tier, made, expected=now)
    assert tier.rlmm.partition_state(tier.tp).value.log_start_offset == 0
    assert {row.state for row in tier.rows(tier.tp)} == {
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    }


def test_changes_since_the_plan_refuse_each_segment_if_the_log_start_stays(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 2)
    planned_on = revisions(tier)
    tier.settings(tier.tp.topic_id, {})
    outcomes = begin_deletion(tier.rlmm, tier.tp, expired(made), None, planned_on, SWEEP, now_ms())
    assert [type(error) for error in errors(outcomes)] == [ConcurrentUpdateError] * 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (None, "hold audit"),
        ({"sediment.retention.owner": "rlm"}, "sediment.retention.owner is rlm, not sweep"),
    ],
)
def test_the_topics_settings_refuse_all_of_it_before_the_log_start_rises(
    tier: FileTier, entries: dict[str, str] | None, message: str
) -> None:
    made = tier.fill(tier.tp, 2)
    if entries is None:
        hold(tier.rlmm, tier.tp)
    else:
        tier.settings(tier.tp.topic_id, entries)
    with pytest.raises(DeletionRefusedError, match=message):
        begin(tier, made)
    assert tier.rlmm.partition_state(tier.tp).value.log_start_offset == 0
    assert tier.rlmm.remote_log_segment_metadata(tier.tp, 0, 0).value is not None


def test_an_older_leader_is_fenced(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 1, broker_leader_epoch=5)
    old = Deleter(broker_id=1, retention_owner=RetentionOwner.RLM, broker_leader_epoch=4)
    with pytest.raises(FencedLeaderEpochError):
        begin(tier, made, old)
    assert tier.rlmm.partition_state(tier.tp).value.log_start_offset == 0


def test_a_hold_that_comes_after_the_mark_does_not_leave_half_a_deletion(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 2)
    begin(tier, made)
    hold(tier.rlmm, tier.tp)
    assert errors(begin(tier, tier.rows(tier.tp))) == [None, None]
    assert errors(finish(tier, tier.rows(tier.tp))) == [None, None]
    assert tier.object_keys() == []


def test_an_unknown_segment_is_its_own_error(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 1)
    unknown = segment(tier.tp, 0)
    outcomes = begin(tier, [*made, unknown])
    assert [outcome.segment for outcome in outcomes] == [*made, unknown]
    assert [error is None for error in errors(outcomes)] == [True, False]


def test_deletion_not_confirmed_by_the_store_stays_marked(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 3)
    begin(tier, made)
    stuck = SmallTier(_Stuck(tier.rsm, made[1].remote_log_segment_id.id), tier.rlmm)
    outcomes = finish(stuck, made)
    assert [error is None for error in errors(outcomes)] == [True, False, True]
    [left] = tier.rows(tier.tp)
    assert left.remote_log_segment_id == made[1].remote_log_segment_id
    assert left.state is DELETE_STARTED
    assert errors(finish(tier, [left])) == [None]


def test_deletion_of_an_unmarked_segment_is_not_confirmed(tier: FileTier) -> None:
    [made] = tier.fill(tier.tp, 1)
    [outcome] = finish(tier, [made])
    assert outcome.error is not None
    assert tier.rows(tier.tp) != []


class _Stuck(Wrapper[RemoteStorageManager]):
    """An RSM that cannot delete one of the segments."""

    def __init__(self, rsm: RemoteStorageManager, stuck: UUID) -> None:
        super().__init__(rsm)
        self._stuck = stuck

    def delete_log_segment_data_batch(
        self, metadatas: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteStorageError | None]:
        kept = [m for m in metadatas if m.remote_log_segment_id.id != self._stuck]
        outcomes = dict(zip(kept, self.real.delete_log_segment_data_batch(kept), strict=True))
        busy = RetriableRemoteStorageError("the store is busy")
        return [outcomes.get(m, busy) if m in outcomes else busy for m in metadatas]
