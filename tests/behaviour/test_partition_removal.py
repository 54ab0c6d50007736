"""Test the removal of a partition with real services, from every point of an interrupted run."""

from collections.abc import Callable, Sequence

import pytest

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_partitions
from services.api.segments import RemoteLogSegmentState
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.removal import (
    Removal,
    begin_removal,
    finish_removal,
    removal_of,
    remove_partition,
)
from tests.harness.tier import SmallTier, a_topic, ids, now_ms, segment

REMOVER = Deleter(plan_id="plan-1")
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


def remove(tier: SmallTier, tp: TopicIdPartition) -> Removal:
    return remove_partition(tier.rlmm, tier.rsm, tp, REMOVER, now_ms())


def known(tier: SmallTier) -> list[TopicIdPartition]:
    return [summary.topic_id_partition for summary in all_partitions(tier.rlmm)]


def test_marked_partition_is_removed_with_segments_in_any_state(
    tier: SmallTier, tp: TopicIdPartition, keys: Callable[[], Sequence[str]]
) -> None:
    made = tier.fill(tp, 3)
    tier.rlmm.add_remote_log_segment_metadata(segment(tp, 3))
    tier.move(made[0], RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    tier.mark_deleted(tp)
    removal = remove(tier, tp)
    assert removal.is_finished
    assert [outcome.error for outcome in removal.outcomes] == [None] * 4
    assert keys() == []
    assert known(tier) == []
    with pytest.raises(RemoteResourceNotFoundError):
        tier.rows(tp)


def test_a_partition_without_segments_goes_too(tier: SmallTier, tp: TopicIdPartition) -> None:
    tier.mark_deleted(tp)
    assert remove(tier, tp) == Removal((), is_finished=True)
    assert known(tier) == []


def test_a_partition_that_is_gone_or_was_never_known_has_nothing_left(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    assert remove(tier, tp) == Removal((), is_finished=True)
    tier.mark_deleted(tp)
    remove(tier, tp)
    tier.mark_deleted(tp)
    assert remove(tier, tp) == Removal((), is_finished=True)
    assert known(tier) == []


def test_a_removal_that_was_decided_on_an_earlier_mark_does_not_begin(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    tier.fill(tp, 1)
    tier.mark_deleted(tp)
    decided_on = tier.rlmm.list_partitions().partitions[0].revision
    tier.rlmm.undelete_partition(tp)
    tier.mark_deleted(tp)
    with pytest.raises(ConcurrentUpdateError):
        begin_removal(tier.rlmm, tp, REMOVER, now_ms(), decided_on)
    present = tier.rlmm.list_partitions().partitions[0].revision
    begin_removal(tier.rlmm, tp, REMOVER, now_ms(), present)
    begin_removal(tier.rlmm, tp, REMOVER, now_ms(), decided_on)


def test_a_partition_that_is_not_marked_is_not_touched(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    made = tier.fill(tp, 1)
    with pytest.raises(InvalidStateTransitionError):
        remove(tier, tp)
    assert ids(tier.rows(tp)) == ids(made)


@pytest.mark.parametrize(
    "stopped_after",
    ["marked twice", "started", "some marked", "all marked", "objects", "some confirmed", "all"],
)
def test_removal_resumes_from_any_interruption(
    tier: SmallTier, tp: TopicIdPartition, keys: Callable[[], Sequence[str]], stopped_after: str
) -> None:
    made = tier.fill(tp, 3)
    tier.mark_deleted(tp)
    if stopped_after == "marked twice":
        tier.mark_deleted(tp)
    else:
        begin_removal(tier.rlmm, tp, REMOVER, now_ms())
    marks = {"some marked": made[:1], "started": [], "marked twice": []}.get(stopped_after, made)
    doomed = [removal_of(each) for each in marks]
    begin_deletion(tier.rlmm, tp, doomed, None, None, REMOVER, now_ms())
    if stopped_after == "objects":
        tier.rsm.delete_log_segment_data_batch(made)
    confirmed = {"some confirmed": made[:1], "all": made}.get(stopped_after, [])
    list(finish_deletion(tier.rlmm, tier.rsm, confirmed, REMOVER, now_ms()))
    if stopped_after != "all":
        tier.mark_deleted(tp)
    assert remove(tier, tp).is_finished
    assert keys() == []
    assert known(tier) == []


def test_on_hold_nothing_of_it_goes(
    tier: SmallTier, tp: TopicIdPartition, keys: Callable[[], Sequence[str]]
) -> None:
    made = tier.fill(tp, 2)
    before = keys()
    tier.mark_deleted(tp)
    tier.settings(tp.topic_id, {"sediment.hold": "true"})
    with pytest.raises(DeletionRefusedError, match=r"sediment\.hold is set"):
        remove(tier, tp)
    assert ids(tier.rows(tp)) == ids(made)
    assert keys() == before


def test_hold_set_after_the_start_keeps_unmarked_segments(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    made = tier.fill(tp, 2)
    tier.mark_deleted(tp)
    begin_removal(tier.rlmm, tp, REMOVER, now_ms())
    begin_deletion(tier.rlmm, tp, [removal_of(made[0])], None, None, REMOVER, now_ms())
    tier.settings(tp.topic_id, {"sediment.hold": "true"})
    removal = remove(tier, tp)
    assert not removal.is_finished
    assert [type(outcome.error) for outcome in removal.outcomes] == [
        DeletionRefusedError,
        type(None),
    ]
    assert ids(tier.rows(tp)) == ids(made[1:])


def test_segments_that_remain_keep_the_partition(tier: SmallTier, tp: TopicIdPartition) -> None:
    tier.fill(tp, 1)
    tier.mark_deleted(tp)
    begin_removal(tier.rlmm, tp, REMOVER, now_ms())
    assert not finish_removal(tier.rlmm, tp, REMOVER, now_ms())
    assert known(tier) == [tp]


def test_a_copy_in_progress_may_finish_before_and_not_after(
    tier: SmallTier, tp: TopicIdPartition
) -> None:
    early, late = segment(tp, 0), segment(tp, 1)
    for each in (early, late):
        tier.rlmm.add_remote_log_segment_metadata(each)
    tier.mark_deleted(tp)
    tier.finish(early)
    assert [row.state for row in tier.rows(tp)] == [early.state.COPY_SEGMENT_FINISHED, STARTED]
    assert remove(tier, tp).is_finished
    with pytest.raises((RemoteResourceNotFoundError, InvalidStateTransitionError)):
        tier.finish(late)


def test_a_leased_copy_is_left_to_the_next_run(
    tier: SmallTier, tp: TopicIdPartition, keys: Callable[[], Sequence[str]]
) -> None:
    made, copied = tier.fill(tp, 1), segment(tp, 1)
    tier.rlmm.add_remote_log_segment_metadata(copied, lease_ms=3_600_000)
    tier.mark_deleted(tp)
    removal = remove(tier, tp)
    assert not removal.is_finished
    errors = {o.segment.start_offset: o.error for o in removal.outcomes}
    assert errors.pop(made[0].start_offset) is None
    (refusal,) = errors.values()
    assert isinstance(refusal, DeletionRefusedError)
    assert "under a lease that ends 20" in str(refusal)
    assert tier.rows(tp) == [copied]
    tier.finish(copied)
    assert remove(tier, tp).is_finished
    assert keys() == []


def test_its_own_broker_removes_a_leased_copy(tier: SmallTier, tp: TopicIdPartition) -> None:
    copied = segment(tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(copied, lease_ms=3_600_000)
    tier.mark_deleted(tp)
    own = Deleter(broker_id=copied.broker_id)
    assert remove_partition(tier.rlmm, tier.rsm, tp, own, now_ms()).is_finished


def test_a_topic_of_the_same_name_is_another(tier: SmallTier, tp: TopicIdPartition) -> None:
    [again] = a_topic(tp.topic)
    tier.fill(tp, 1)
    kept = tier.fill(again, 2)
    tier.mark_deleted(tp)
    assert remove(tier, tp).is_finished
    assert ids(tier.rows(again)) == ids(kept)
    assert b"".join(tier.rsm.fetch_log_segment(kept[0], 0)) != b""
