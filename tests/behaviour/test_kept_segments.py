"""Test the objects of segments that a broker deleted: who leaves them, who deletes them."""

import pytest

from services.api.calls import MutationContext
from services.api.remote_log_metadata_manager import all_kept_segments
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import RetentionOwner
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.kept_segments import delete_kept_segments
from services.workflows.rebuild import Rebuild, RebuildPlan
from services.workflows.rebuild_report import DifferenceKind
from services.workflows.reconcile import Reconciliation, ReconciliationPlan
from services.workflows.removal import removal_of, remove_partition
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    move,
    put_deletion,
)
from tests.harness.eventually import eventually
from tests.harness.tier import FileTier, ids, now_ms

BY_BROKER = MutationContext(reason="broker 1", retention_owner=RetentionOwner.BROKER)
AT_ONCE = {"sediment.delete.grace.ms": "1"}


def kept(tier: FileTier, *, due_only: bool = False) -> list[RemoteLogSegmentMetadata]:
    listed = all_kept_segments(tier.rlmm, due_only=due_only)
    return [each for each in listed if each.topic_id_partition == tier.tp]


def delete_kept(tier: FileTier) -> list[RemoteLogSegmentMetadata]:
    """Return what RLM's pass has deleted."""
    outcomes = list(delete_kept_segments(tier.rlmm, tier.rsm, RetentionOwner.RLM, now_ms()))
    assert [each.error for each in outcomes if each.error is not None] == []
    return [each.segment for each in outcomes]


def test_kept_objects_are_deleted_when_they_are_due(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 3)
    before = tier.object_keys()
    for each in made[:2]:
        move(tier.rlmm, each, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
    assert delete_kept(tier) == []
    assert tier.object_keys() == before
    tier.rlmm.put_topic_config(tier.tp.topic_id, AT_ONCE)
    move(tier.rlmm, made[2], DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
    eventually(lambda: kept(tier, due_only=True))
    assert ids(delete_kept(tier)) == ids(made[2:])
    assert len(tier.object_keys()) == len(before) * 2 // 3
    assert ids(kept(tier)) == ids(made[:2])
    assert delete_kept(tier) == []


def test_objects_that_a_lifecycle_has_deleted_first_are_no_error(tier: FileTier) -> None:
    [only] = tier.fill(tier.tp, 1)
    tier.rlmm.put_topic_config(tier.tp.topic_id, AT_ONCE)
    move(tier.rlmm, only, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
    tier.rsm.delete_log_segment_data(only)
    eventually(lambda: kept(tier, due_only=True))
    assert ids(delete_kept(tier)) == ids([only])
    assert kept(tier) == []


def test_who_finishes_a_brokers_deletion_leaves_the_objects(tier: FileTier) -> None:
    [only] = tier.fill(tier.tp, 1)
    before = tier.object_keys()
    move(tier.rlmm, only, DELETE_STARTED, context=BY_BROKER)
    [listed] = tier.rows(tier.tp)
    outcomes = list(finish_deletion(tier.rlmm, tier.rsm, [listed], Deleter(), now_ms()))
    assert [each.error for each in outcomes] == [None]
    assert tier.object_keys() == before
    assert ids(kept(tier)) == ids([only])


def test_a_broker_that_marks_between_a_list_and_a_mark_keeps_the_objects(tier: FileTier) -> None:
    [only] = tier.fill(tier.tp, 1)
    before = tier.object_keys()
    [listed] = tier.rows(tier.tp)
    move(tier.rlmm, only, DELETE_STARTED, context=BY_BROKER)
    deletions, deleter = [removal_of(listed)], Deleter(retention_owner=RetentionOwner.RLM)
    begun = begin_deletion(tier.rlmm, tier.tp, deletions, None, None, deleter, now_ms())
    marked = [each.segment for each in begun]
    list(finish_deletion(tier.rlmm, tier.rsm, marked, deleter, now_ms()))
    assert tier.object_keys() == before
    assert ids(kept(tier)) == ids([only])


@pytest.mark.parametrize("is_removed", [False, True], ids=["known", "removed"])
def test_reconcile_and_rebuild_leave_kept_objects_alone(tier: FileTier, is_removed: bool) -> None:
    [only] = tier.fill(tier.tp, 1)
    before = tier.object_keys()
    if is_removed:
        tier.mark_deleted(tier.tp)
    move(tier.rlmm, only, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
    if is_removed:
        put_deletion(tier.rlmm, tier.tp, PARTITION_STARTED, PARTITION_FINISHED)
    for run_id in ("first", "second"):
        plan = ReconciliationPlan(run_id, now_ms() + 1_000, 0, delete=True, locations=(0,))
        done = Reconciliation(tier.rlmm, tier.rsm, tier.rsm.objects, plan).run()
        assert dict(done.anomalies) == {}
    assert tier.object_keys() == before
    rebuilt = Rebuild(tier.rlmm, tier.rsm, tier.rsm.objects, RebuildPlan("third")).run()
    assert [each.kind for each in rebuilt.differences] == [DifferenceKind.DELETED]


def test_a_partition_is_removed_after_its_kept_objects(tier: FileTier) -> None:
    [only, _] = tier.fill(tier.tp, 2)
    tier.rlmm.put_topic_config(tier.tp.topic_id, AT_ONCE)
    tier.mark_deleted(tier.tp)
    move(tier.rlmm, only, DELETE_STARTED, context=BY_BROKER)
    removal = remove_partition(tier.rlmm, tier.rsm, tier.tp, Deleter(), now_ms())
    assert "those of kept segments go when they are due" in removal.left
    assert tier.rows(tier.tp) == []
    eventually(lambda: kept(tier, due_only=True))
    assert ids(delete_kept(tier)) == ids([only])
    assert remove_partition(tier.rlmm, tier.rsm, tier.tp, Deleter(), now_ms()).left == ""
    assert tier.object_keys() == []
