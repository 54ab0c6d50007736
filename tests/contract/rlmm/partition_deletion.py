"""Test a partition's deletion: table D and the order that we enforce."""

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    FencedLeaderEpochError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    add,
    finished,
    id_at,
    id_of,
    ids,
    move,
    put_deletion,
    revision_of,
    segment,
)

ORDER = [MARKED, PARTITION_STARTED, PARTITION_FINISHED]


class TableD(RlmmContractPart):
    def test_segments_are_found_until_the_partition_is_deleted(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 100, {0: 0, 1: 20, 2: 50, 3: 80})
        assert id_at(rlmm, tp, 1, 30) == id_of(only)
        put_deletion(rlmm, tp, MARKED)
        assert id_at(rlmm, tp, 1, 30) == id_of(only)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        assert id_at(rlmm, tp, 1, 30) == id_of(only)
        move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
        put_deletion(rlmm, tp, PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            rlmm.remote_log_segment_metadata(tp, 1, 30)


class DeletionOrder(RlmmContractPart):
    @pytest.mark.parametrize("reached", range(4))
    @pytest.mark.parametrize("target", range(3))
    def test_every_pair_of_deletion_states_is_applied_repeated_or_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, reached: int, target: int
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 1)], [], BROKER)
        done: list[RemotePartitionDeleteState] = ORDER[:reached]
        outcomes = {state: put_deletion(rlmm, tp, state) for state in done}
        state = ORDER[target]
        if target == reached:
            assert put_deletion(rlmm, tp, state).applied
        elif done and state in (MARKED, done[-1]):
            repeat = put_deletion(rlmm, tp, state)
            assert (repeat.applied, repeat.revision) == (False, outcomes[state].revision)
        else:
            with pytest.raises(InvalidStateTransitionError):
                put_deletion(rlmm, tp, state)

    @pytest.mark.parametrize("state", [PARTITION_STARTED, PARTITION_FINISHED])
    def test_an_unknown_partition_must_be_marked_first(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        state: RemotePartitionDeleteState,
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            put_deletion(rlmm, tp, state)

    def test_marking_makes_a_partition_known(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        assert put_deletion(rlmm, tp, MARKED).applied
        assert ids(rlmm, tp) == []

    def test_no_partition_is_finished_while_segments_remain(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        for step in (DELETE_STARTED, DELETE_FINISHED):
            with pytest.raises(InvalidStateTransitionError, match="segments"):
                put_deletion(rlmm, tp, PARTITION_FINISHED)
            move(rlmm, only, step)
        assert put_deletion(rlmm, tp, PARTITION_FINISHED).applied

    def test_from_marked_on_nothing_is_added_and_copies_in_progress_finish(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        under_way = add(rlmm, segment(tp, 0, 9))
        put_deletion(rlmm, tp, MARKED)
        with pytest.raises(InvalidStateTransitionError):
            add(rlmm, segment(tp, 10, 19))
        assert move(rlmm, under_way, FINISHED).applied
        put_deletion(rlmm, tp, PARTITION_STARTED)
        with pytest.raises(InvalidStateTransitionError):
            add(rlmm, segment(tp, 10, 19))

    def test_an_older_leader_may_not_mark(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], BROKER)
        older, same = (MutationContext(broker_leader_epoch=epoch) for epoch in (6, 7))
        with pytest.raises(FencedLeaderEpochError):
            put_deletion(rlmm, tp, MARKED, context=older)
        assert put_deletion(rlmm, tp, MARKED, context=same).applied
        assert put_deletion(rlmm, tp, PARTITION_STARTED, context=older).applied


class AfterDeletion(RlmmContractPart):
    @pytest.fixture
    def deleted(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> TopicIdPartition:
        only = finished(rlmm, tp, 0, 9)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
        put_deletion(rlmm, tp, PARTITION_FINISHED)
        return tp

    def test_every_read_is_not_found(
        self, rlmm: RemoteLogMetadataManager, deleted: TopicIdPartition
    ) -> None:
        for read in (
            lambda: rlmm.remote_log_segment_metadata(deleted, 0, 0),
            lambda: rlmm.highest_offset_for_epoch(deleted, 0),
            lambda: rlmm.list_remote_log_segments(deleted),
            lambda: rlmm.list_remote_log_segments(deleted, 0),
            lambda: rlmm.list_remote_log_segments(deleted, if_revision_not=1),
            lambda: rlmm.remote_log_size(deleted, 0),
            lambda: rlmm.next_segment_with_txn_index(deleted, 0, 0),
        ):
            with pytest.raises(RemoteResourceNotFoundError):
                read()

    def test_neither_leadership_nor_an_add_brings_it_back(
        self, rlmm: RemoteLogMetadataManager, deleted: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(deleted, 9)], [], BROKER)
        with pytest.raises(InvalidStateTransitionError):
            add(rlmm, segment(deleted, 0, 9))
        with pytest.raises(RemoteResourceNotFoundError):
            revision_of(rlmm, deleted)

    def test_an_update_is_not_found(
        self, rlmm: RemoteLogMetadataManager, deleted: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            move(rlmm, segment(deleted, 0, 9), FINISHED)

    def test_another_topic_of_the_same_name_is_another_partition(
        self, rlmm: RemoteLogMetadataManager, deleted: TopicIdPartition
    ) -> None:
        again = TopicIdPartition(
            segment(deleted, 0, 0).remote_log_segment_id.id, deleted.topic, deleted.partition
        )
        only = finished(rlmm, again, 0, 9)
        assert ids(rlmm, again) == [id_of(only)]
