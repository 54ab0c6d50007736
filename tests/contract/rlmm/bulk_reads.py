"""Test bulk reads, and reads of the tier's first offset."""

from collections.abc import Sequence
from uuid import uuid4

import pytest

from services.api.calls import AtRevision
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import segments_by_id
from services.api.segment_batches import MAX_BATCH, MAX_REVISIONS, LookupOutcome, SegmentLookup
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    finished,
    id_of,
    put_deletion,
    segment,
)


def none_at(revision: int) -> LookupOutcome:
    return AtRevision(None, revision)


class LookupBatches(RlmmContractPart):
    def test_each_look_up_is_answered_as_if_it_came_alone(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        self.finished(0, 29, {0: 0, 2: 10, 5: 20})
        self.finished(40, 49, {5: 40})
        self.finished(42, 44, {5: 42})
        self.add(self.segment(50, 59, {5: 50}))
        finished(self.rlmm, other, 0, 9)
        lookups = [
            SegmentLookup(partition, epoch, offset)
            for offset in range(0, 62)
            for epoch in (0, 2, 5, 9)
            for partition in (self.tp, other)
        ]
        found = list(self.rlmm.remote_log_segment_metadata_batch(lookups))
        singly = [
            self.rlmm.remote_log_segment_metadata(
                lookup.topic_id_partition, lookup.epoch_for_offset, lookup.offset
            )
            for lookup in lookups
        ]
        assert found == singly
        assert len({each.value for each in singly}) == 5  # every finished one, and none

    def test_a_look_up_in_an_unknown_partition_stops_no_other(self) -> None:
        found = self.finished(0, 9)
        stored = self.rlmm.remote_log_segment_metadata(self.tp, 0, 5)
        assert stored.value is not None
        assert id_of(stored.value) == id_of(found)
        unknown = TopicIdPartition(uuid4(), "orders", 0)
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        tps, offsets = (unknown, self.tp, renamed, self.tp, self.tp, unknown), (5, 5, 5, 10, 5, 6)
        first, second, third, *others, last = self.rlmm.remote_log_segment_metadata_batch(
            [SegmentLookup(tp, 0, offset) for tp, offset in zip(tps, offsets, strict=True)]
        )
        assert isinstance(first, RemoteResourceNotFoundError)
        assert isinstance(third, InvalidRequestError)
        assert [second, *others] == [stored, none_at(2), stored]
        assert isinstance(last, RemoteResourceNotFoundError)

    def test_a_look_up_in_a_deleted_partition_finds_none(self) -> None:
        self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        (outcome,) = self.rlmm.remote_log_segment_metadata_batch([SegmentLookup(self.tp, 0, 5)])
        assert isinstance(outcome, RemoteResourceNotFoundError)

    def test_look_ups_are_neither_none_nor_too_many(self) -> None:
        with pytest.raises(InvalidRequestError, match="lookups: must be 1 to 1000, are 0"):
            self.rlmm.remote_log_segment_metadata_batch([])
        with pytest.raises(InvalidRequestError, match="are 1001"):
            self.rlmm.remote_log_segment_metadata_batch(
                [SegmentLookup(self.tp, 0, 0)] * (MAX_BATCH + 1)
            )

    def test_as_many_look_ups_as_a_batch_holds(self) -> None:
        self.finished(0, 9)
        outcomes = self.rlmm.remote_log_segment_metadata_batch(
            [SegmentLookup(self.tp, 0, 5)] * MAX_BATCH
        )
        assert list(outcomes) == [self.rlmm.remote_log_segment_metadata(self.tp, 0, 5)] * MAX_BATCH


class SegmentsById(RlmmContractPart):
    def test_segments_are_found_in_any_state_ascending_by_start_offset(self) -> None:
        made = [self.segment(start, start + 9) for start in (30, 20, 10, 0)]
        self.add(made[0])
        finished_one = self.finished(40, 49)
        self.add(made[1], DELETE_STARTED)
        self.add(made[2], DELETE_STARTED, DELETE_FINISHED)
        ids = [id_of(each) for each in [*made, finished_one]]
        found = self.rlmm.remote_log_segment_metadata_by_id(self.tp, [*ids, uuid4(), ids[0]])
        assert [id_of(each) for each in found.value] == [ids[2], ids[1], ids[0], ids[4]]
        assert [each.state for each in found.value][:2] == [DELETE_FINISHED, DELETE_STARTED]
        assert found.value[2] == made[0]
        assert found.revision == self.revision()

    def test_of_another_partition_no_segment_is_found(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        only = self.add(self.segment(0, 9))
        self.add(segment(other, 0, 9))
        found = self.rlmm.remote_log_segment_metadata_by_id(other, [id_of(only)])
        assert found == AtRevision((), 1)

    def test_segments_of_an_unknown_partition(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.remote_log_segment_metadata_by_id(self.tp, [uuid4()])
        self.add(self.segment(0, 9))
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with pytest.raises(InvalidRequestError, match="topic"):
            self.rlmm.remote_log_segment_metadata_by_id(renamed, [uuid4()])

    def test_ids_are_neither_none_nor_too_many(self) -> None:
        with pytest.raises(InvalidRequestError, match="ids: must be 1 to 1000, are 0"):
            self.rlmm.remote_log_segment_metadata_by_id(self.tp, [])
        with pytest.raises(InvalidRequestError, match="are 1001"):
            self.rlmm.remote_log_segment_metadata_by_id(self.tp, [uuid4()] * (MAX_BATCH + 1))

    def test_any_number_of_ids_is_asked_for_in_turns(self) -> None:
        made = [self.add(self.segment(start, start)) for start in range(3)]
        ids = [id_of(each) for each in made]
        asked = [ids[0], *(uuid4() for _ in range(MAX_BATCH)), ids[1], uuid4(), ids[2], ids[0]]
        assert sorted(id_of(each) for each in segments_by_id(self.rlmm, self.tp, asked)) == sorted(
            ids
        )


class EarliestOffsets(RlmmContractPart):
    def test_the_earliest_offset_is_that_of_the_first_finished_segment(self) -> None:
        self.add(self.segment(0, 9))
        assert self.rlmm.earliest_log_offset(self.tp) == AtRevision(None, 1)
        second = self.finished(20, 29)
        first = self.finished(10, 19)
        assert self.rlmm.earliest_log_offset(self.tp) == AtRevision(10, 5)
        self.move(first, DELETE_STARTED)
        assert self.rlmm.earliest_log_offset(self.tp).value == 20
        self.move(second, DELETE_STARTED, DELETE_FINISHED)
        assert self.rlmm.earliest_log_offset(self.tp).value is None

    @pytest.mark.parametrize(
        ("log_start", "earliest"), [(5, 10), (10, 10), (13, 13), (19, 19), (20, 40), (45, 45)]
    )
    def test_the_earliest_offset_is_not_below_the_log_start(
        self, log_start: int, earliest: int
    ) -> None:
        self.finished(10, 19)
        self.finished(40, 49)
        self.rlmm.raise_log_start_offset(self.tp, log_start)
        assert self.rlmm.earliest_log_offset(self.tp).value == earliest

    def test_no_finished_segment_reaches_the_log_start(self) -> None:
        self.finished(0, 9)
        self.rlmm.raise_log_start_offset(self.tp, 10)
        assert self.rlmm.earliest_log_offset(self.tp).value is None

    def test_the_earliest_offset_of_an_unknown_partition(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.earliest_log_offset(self.tp)


class PartitionRevisions(RlmmContractPart):
    def test_revisions_are_in_the_order_of_the_partitions(self) -> None:
        others = [TopicIdPartition(self.tp.topic_id, self.tp.topic, number) for number in (1, 2, 3)]
        finished(self.rlmm, others[0], 0, 9)
        self.add(self.segment(0, 9))
        put_deletion(self.rlmm, others[2], MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        asked: Sequence[TopicIdPartition] = [others[1], others[0], self.tp, others[2], others[0]]
        assert self.rlmm.partition_revisions(asked) == [0, 2, 1, 0, 2]

    def test_a_revision_is_not_returned_under_another_name(self) -> None:
        self.add(self.segment(0, 9))
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with pytest.raises(InvalidRequestError, match=r"partitions\[1\]\.topic: topic id"):
            self.rlmm.partition_revisions([self.tp, renamed])

    def test_partitions_are_neither_none_nor_too_many(self) -> None:
        with pytest.raises(InvalidRequestError, match="partitions: must be 1 to 10000, are 0"):
            self.rlmm.partition_revisions([])
        with pytest.raises(InvalidRequestError, match="are 10001"):
            self.rlmm.partition_revisions([self.tp] * (MAX_REVISIONS + 1))
        assert self.rlmm.partition_revisions([self.tp] * MAX_REVISIONS) == [0] * MAX_REVISIONS
