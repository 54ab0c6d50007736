"""Test the removal of a partition with real services, from every point of an interrupted run."""

from contextlib import closing
from pathlib import Path

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
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.layout import segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion
from services.workflows.removal import (
    Removal,
    begin_removal,
    finish_removal,
    removal_of,
    remove_partition,
)
from tests.harness.databases import OwnRlmm
from tests.harness.holds import hold
from tests.harness.tier import FileTier, a_topic, ids, now_ms, segment

REMOVER = Deleter(plan_id="plan-1")
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


def remove(tier: FileTier) -> Removal:
    return remove_partition(tier.rlmm, tier.rsm, tier.tp, REMOVER, now_ms())


def known(tier: FileTier) -> list[TopicIdPartition]:
    return [summary.topic_id_partition for summary in all_partitions(tier.rlmm)]


def test_marked_partition_is_removed_with_segments_in_any_state(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 3)
    tier.rlmm.add_remote_log_segment_metadata(segment(tier.tp, 3))
    tier.move(made[0], RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    tier.mark_deleted(tier.tp)
    removal = remove(tier)
    assert removal.left == ""
    assert [outcome.error for outcome in removal.outcomes] == [None] * 4
    assert tier.object_keys() == []
    assert known(tier) == []
    with pytest.raises(RemoteResourceNotFoundError):
        tier.rows(tier.tp)


def test_a_partition_without_segments_goes_too(tier: FileTier) -> None:
    tier.mark_deleted(tier.tp)
    assert remove(tier) == Removal(())
    assert known(tier) == []


def test_a_partition_that_is_gone_or_was_never_known_has_nothing_left(tier: FileTier) -> None:
    assert remove(tier) == Removal(())
    tier.mark_deleted(tier.tp)
    remove(tier)
    tier.mark_deleted(tier.tp)
    assert remove(tier) == Removal(())
    assert known(tier) == []


def test_a_removal_that_was_decided_on_an_earlier_mark_does_not_begin(tier: FileTier) -> None:
    tier.fill(tier.tp, 1)
    tier.mark_deleted(tier.tp)
    decided_on = tier.rlmm.list_partitions().partitions[0].revision
    tier.rlmm.undelete_partition(tier.tp)
    tier.mark_deleted(tier.tp)
    with pytest.raises(ConcurrentUpdateError):
        begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms(), decided_on)
    present = tier.rlmm.list_partitions().partitions[0].revision
    begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms(), present)
    begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms(), decided_on)


def test_a_partition_that_is_not_marked_is_not_touched(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 1)
    with pytest.raises(InvalidStateTransitionError):
        remove(tier)
    assert ids(tier.rows(tier.tp)) == ids(made)


@pytest.mark.parametrize(
    "stopped_after",
    ["marked twice", "started", "some marked", "all marked", "objects", "some confirmed", "all"],
)
def test_removal_resumes_from_any_interruption(tier: FileTier, stopped_after: str) -> None:
    made = tier.fill(tier.tp, 3)
    tier.mark_deleted(tier.tp)
    if stopped_after == "marked twice":
        tier.mark_deleted(tier.tp)
    else:
        begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms())
    marks = {"some marked": made[:1], "started": [], "marked twice": []}.get(stopped_after, made)
    doomed = [removal_of(each) for each in marks]
    begin_deletion(tier.rlmm, tier.tp, doomed, None, None, REMOVER, now_ms())
    if stopped_after == "objects":
        tier.rsm.delete_log_segment_data_batch(made)
    confirmed = {"some confirmed": made[:1], "all": made}.get(stopped_after, [])
    list(finish_deletion(tier.rlmm, tier.rsm, confirmed, REMOVER, now_ms()))
    if stopped_after != "all":
        tier.mark_deleted(tier.tp)
    assert remove(tier).left == ""
    assert tier.object_keys() == []
    assert known(tier) == []


def test_on_hold_nothing_of_it_goes(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 2)
    before = tier.object_keys()
    tier.mark_deleted(tier.tp)
    hold(tier.rlmm, tier.tp)
    with pytest.raises(DeletionRefusedError, match="hold audit"):
        remove(tier)
    assert ids(tier.rows(tier.tp)) == ids(made)
    assert tier.object_keys() == before


def test_hold_set_after_the_start_keeps_unmarked_segments(tier: FileTier) -> None:
    made = tier.fill(tier.tp, 2)
    tier.mark_deleted(tier.tp)
    begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms())
    begin_deletion(tier.rlmm, tier.tp, [removal_of(made[0])], None, None, REMOVER, now_ms())
    hold(tier.rlmm, tier.tp)
    removal = remove(tier)
    assert removal.left
    assert [type(outcome.error) for outcome in removal.outcomes] == [
        DeletionRefusedError,
        type(None),
    ]
    assert ids(tier.rows(tier.tp)) == ids(made[1:])


def test_segments_that_remain_keep_the_partition(tier: FileTier) -> None:
    tier.fill(tier.tp, 1)
    tier.mark_deleted(tier.tp)
    begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms())
    assert "store still has" in finish_removal(tier.rlmm, tier.rsm, tier.tp, REMOVER, now_ms())
    assert known(tier) == [tier.tp]


def test_a_copy_that_finished_after_the_deletion_keeps_the_partition(tier: FileTier) -> None:
    late = segment(tier.tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(late)
    tier.mark_deleted(tier.tp)
    begin_removal(tier.rlmm, tier.tp, REMOVER, now_ms())
    left = finish_removal(tier.rlmm, tier.rsm, tier.tp, REMOVER, now_ms())
    assert left.startswith("segments remain")
    assert known(tier) == [tier.tp]


@pytest.mark.parametrize("location", [1, 2])
def test_an_object_that_no_segment_names_keeps_the_partition(
    rlmm: OwnRlmm, tmp_path: Path, location: int
) -> None:
    """The current location is 1; 2 is one of those that are only read and deleted from."""
    roots = tmp_path / "one", tmp_path / "two"
    for root in roots:
        root.mkdir()
    stores = [FilesystemStorage(root) for root in roots]
    buffers = PartBuffers(2, 64 * 1024, 60_000)
    here, there = (Location(number + 1, store, "") for number, store in enumerate(stores))
    with closing(ObjectRemoteStorageManager(Locations(here, [there]), buffers, 1)) as rsm:
        tier = FileTier(rsm, rlmm, stores[0])
        tier.fill(tier.tp, 1)
        stray = segment_keys("", segment(tier.tp, 7)).log("a" * 16)
        stores[location - 1].put(stray, b"of a copy that nobody knows")
        tier.mark_deleted(tier.tp)
        removal = remove(tier)
        assert [outcome.error for outcome in removal.outcomes] == [None]
        assert f"such as {location}:{stray};" in removal.left
        assert "`sediment reconcile`" in removal.left
        assert known(tier) == [tier.tp]
        stores[location - 1].delete([stray])
        assert remove(tier) == Removal(())
        assert known(tier) == []


def test_a_copy_in_progress_may_finish_before_and_not_after(tier: FileTier) -> None:
    early, late = segment(tier.tp, 0), segment(tier.tp, 1)
    for each in (early, late):
        tier.rlmm.add_remote_log_segment_metadata(each)
    tier.mark_deleted(tier.tp)
    tier.finish(early)
    assert [row.state for row in tier.rows(tier.tp)] == [early.state.COPY_SEGMENT_FINISHED, STARTED]
    assert remove(tier).left == ""
    with pytest.raises((RemoteResourceNotFoundError, InvalidStateTransitionError)):
        tier.finish(late)


def test_a_leased_copy_is_left_to_the_next_run(tier: FileTier) -> None:
    made, copied = tier.fill(tier.tp, 1), segment(tier.tp, 1)
    tier.rlmm.add_remote_log_segment_metadata(copied, lease_ms=3_600_000)
    tier.mark_deleted(tier.tp)
    removal = remove(tier)
    assert removal.left
    errors = {o.segment.start_offset: o.error for o in removal.outcomes}
    assert errors.pop(made[0].start_offset) is None
    (refusal,) = errors.values()
    assert isinstance(refusal, DeletionRefusedError)
    assert "under a lease that ends 20" in str(refusal)
    assert tier.rows(tier.tp) == [copied]
    tier.finish(copied)
    assert remove(tier).left == ""
    assert tier.object_keys() == []


def test_its_own_broker_removes_a_leased_copy(tier: FileTier) -> None:
    copied = segment(tier.tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(copied, lease_ms=3_600_000)
    tier.mark_deleted(tier.tp)
    own = Deleter(broker_id=copied.broker_id)
    assert remove_partition(tier.rlmm, tier.rsm, tier.tp, own, now_ms()).left == ""


def test_a_topic_of_the_same_name_is_another(tier: FileTier) -> None:
    [again] = a_topic(tier.tp.topic)
    tier.fill(tier.tp, 1)
    kept = tier.fill(again, 2)
    tier.mark_deleted(tier.tp)
    assert remove(tier).left == ""
    assert ids(tier.rows(again)) == ids(kept)
    assert b"".join(tier.rsm.fetch_log_segment(kept[0], 0)) != b""
