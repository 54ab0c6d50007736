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
from services.api.remote_log_metadata_manager import PartitionLeadership
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    finished,
    id_of,
    ids,
    revision_of,
    segment,
)

ORDER = [MARKED, PARTITION_STARTED, PARTITION_FINISHED]


class TableD(RlmmContractPart):
    def test_segments_are_found_until_the_partition_is_deleted(self) -> None:
        only = self.finished(0, 100, {0: 0, 1: 20, 2: 50, 3: 80})
        assert self.id_at(1, 30) == id_of(only)
        self.put_deletion(MARKED)
        assert self.id_at(1, 30) == id_of(only)
        self.put_deletion(PARTITION_STARTED)
        assert self.id_at(1, 30) == id_of(only)
        self.move(only, DELETE_STARTED, DELETE_FINISHED)
        self.put_deletion(PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            self.rlmm.remote_log_segment_metadata(self.tp, 1, 30)


class DeletionOrder(RlmmContractPart):
    @pytest.mark.parametrize("reached", range(4))
    @pytest.mark.parametrize("target", range(3))
    def test_every_pair_of_deletion_states_is_applied_repeated_or_refused(
        self, reached: int, target: int
    ) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 1)], [], BROKER)
        done: list[RemotePartitionDeleteState] = ORDER[:reached]
        outcomes = {state: self.put_deletion(state) for state in done}
        state = ORDER[target]
        if target == reached:
            assert self.put_deletion(state).applied
        elif done and state in (MARKED, done[-1]):
            repeat = self.put_deletion(state)
            assert (repeat.applied, repeat.revision) == (False, outcomes[state].revision)
        else:
            with pytest.raises(InvalidStateTransitionError):
                self.put_deletion(state)

    @pytest.mark.parametrize("state", [PARTITION_STARTED, PARTITION_FINISHED])
    def test_an_unknown_partition_must_be_marked_first(
        self, state: RemotePartitionDeleteState
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.put_deletion(state)

    def test_marking_makes_a_partition_known(self) -> None:
        assert self.put_deletion(MARKED).applied
        assert self.ids() == []

    def test_no_partition_is_finished_while_segments_remain(self) -> None:
        only = self.finished(0, 9)
        self.put_deletion(MARKED, PARTITION_STARTED)
        for step in (DELETE_STARTED, DELETE_FINISHED):
            with pytest.raises(InvalidStateTransitionError, match="segments"):
                self.put_deletion(PARTITION_FINISHED)
            self.move(only, step)
        assert self.put_deletion(PARTITION_FINISHED).applied

    def test_from_marked_on_nothing_is_added_and_copies_in_progress_finish(self) -> None:
        under_way = self.add(self.segment(0, 9))
        self.put_deletion(MARKED)
        with pytest.raises(InvalidStateTransitionError):
            self.add(self.segment(10, 19))
        assert self.move(under_way, FINISHED).applied
        self.put_deletion(PARTITION_STARTED)
        with pytest.raises(InvalidStateTransitionError):
            self.add(self.segment(10, 19))

    def test_an_older_leader_may_not_mark(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        older, same = (MutationContext(broker_leader_epoch=epoch) for epoch in (6, 7))
        with pytest.raises(FencedLeaderEpochError):
            self.put_deletion(MARKED, context=older)
        assert self.put_deletion(MARKED, context=same).applied
        assert self.put_deletion(PARTITION_STARTED, context=older).applied


class AfterDeletion(RlmmContractPart):
    @pytest.fixture
    def deleted(self) -> TopicIdPartition:
        only = self.finished(0, 9)
        self.put_deletion(MARKED, PARTITION_STARTED)
        self.move(only, DELETE_STARTED, DELETE_FINISHED)
        self.put_deletion(PARTITION_FINISHED)
        return self.tp

    def test_every_read_is_not_found(self, deleted: TopicIdPartition) -> None:
        for read in (
            lambda: self.rlmm.remote_log_segment_metadata(deleted, 0, 0),
            lambda: self.rlmm.highest_offset_for_epoch(deleted, 0),
            lambda: self.rlmm.list_remote_log_segments(deleted),
            lambda: self.rlmm.list_remote_log_segments(deleted, 0),
            lambda: self.rlmm.list_remote_log_segments(deleted, if_revision_not=1),
            lambda: self.rlmm.remote_log_size(deleted, 0),
            lambda: self.rlmm.next_segment_with_txn_index(deleted, 0, 0),
        ):
            with pytest.raises(RemoteResourceNotFoundError):
                read()

    def test_neither_leadership_nor_an_add_brings_it_back(self, deleted: TopicIdPartition) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(deleted, 9)], [], BROKER)
        with pytest.raises(InvalidStateTransitionError):
            self.add(segment(deleted, 0, 9))
        with pytest.raises(RemoteResourceNotFoundError):
            revision_of(self.rlmm, deleted)

    def test_an_update_is_not_found(self, deleted: TopicIdPartition) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.move(segment(deleted, 0, 9), FINISHED)

    def test_another_topic_of_the_same_name_is_another_partition(
        self, deleted: TopicIdPartition
    ) -> None:
        again = TopicIdPartition(
            segment(deleted, 0, 0).remote_log_segment_id.id, deleted.topic, deleted.partition
        )
        only = finished(self.rlmm, again, 0, 9)
        assert ids(self.rlmm, again) == [id_of(only)]
