"""Test many copies that begin in one call: each has the outcome of a single call."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
from services.api.segment_batches import MAX_BATCH, AddOutcome, SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata
from tests.contract.rlmm.segments import (
    BROKER,
    FINISHED,
    MARKED,
    RlmmContractPart,
    id_at,
    id_of,
    ids,
    put_deletion,
    segment,
)


def add_all(
    rlmm: RemoteLogMetadataManager,
    metadatas: Sequence[RemoteLogSegmentMetadata],
    context: MutationContext = NO_CONTEXT,
) -> list[AddOutcome]:
    """Add all segments for one reason."""
    return rlmm.add_remote_log_segment_metadata_batch(
        [SegmentAddition(metadata, context) for metadata in metadatas]
    )


def done(*revisions: int) -> list[Any]:
    return [MutationOutcome(applied=True, revision=revision) for revision in revisions]


def kinds(outcomes: Sequence[AddOutcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


class AdditionBatches(RlmmContractPart):
    def test_copies_of_several_partitions_begin_at_once(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        elsewhere = TopicIdPartition(uuid4(), "payments", 0)
        made = [
            segment(other, 0, 9),
            self.segment(0, 9),
            segment(elsewhere, 0, 9),
            segment(other, 10, 29, {0: 10, 3: 20}, custom_metadata=b"\0x", broker_leader_epoch=4),
        ]
        assert add_all(self.rlmm, made) == done(1, 1, 1, 2)
        assert self.rlmm.list_remote_log_segments(other).segments == (made[0], made[3])
        assert ids(self.rlmm, other, 3) == [id_of(made[3])]
        assert id_at(self.rlmm, other, 3, 25) is None
        self.move(made[3], FINISHED)
        assert id_at(self.rlmm, other, 3, 25) == id_of(made[3])
        assert id_at(self.rlmm, other, 0, 19) == id_of(made[3])

    def test_a_batch_of_too_many_leader_epochs_is_refused_as_a_whole(self) -> None:
        many = {epoch: epoch for epoch in range(9_000)}
        made = [self.segment(0, 9_000, many) for _ in range(6)]
        with pytest.raises(InvalidRequestError, match=r"^adds: at most 50000 leader epochs"):
            add_all(self.rlmm, made)
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

    def test_the_same_additions_again_are_repeats(self) -> None:
        made = [self.segment(start, start + 9) for start in (0, 10)]
        add_all(self.rlmm, made)
        again = add_all(self.rlmm, [*made, self.segment(20, 29)])
        assert again[:2] == [
            MutationOutcome(applied=False, revision=revision) for revision in (1, 2)
        ]
        assert again[2:] == done(3)

    def test_a_refused_addition_stops_no_other_and_leaves_no_trace(self) -> None:
        known = self.add(self.segment(0, 9))
        later = self.add(self.segment(10, 19), FINISHED)
        marked = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        put_deletion(self.rlmm, marked, MARKED)
        before = self.revision()
        outcomes = add_all(
            self.rlmm,
            [
                replace(known, end_offset=8),
                later,
                segment(marked, 0, 9),
                self.segment(20, 29, custom_metadata=bytes(129)),
                self.segment(20, 29, state=FINISHED),
                segment(TopicIdPartition(self.tp.topic_id, "payments", 0), 0, 9),
                self.segment(30, 39),
            ],
        )
        assert kinds(outcomes[:-1]) == [
            SegmentAlreadyExistsError,
            InvalidStateTransitionError,
            InvalidStateTransitionError,
            CustomMetadataTooLargeError,
            InvalidRequestError,
            InvalidRequestError,
        ]
        assert outcomes[-1:] == done(before + 1)
        assert len(self.ids()) == 3

    def test_partition_stays_unknown_if_its_only_addition_is_refused(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        expects = SegmentAddition(self.segment(0, 9), MutationContext(expected_revision=5))
        outcomes = self.rlmm.add_remote_log_segment_metadata_batch([expects])
        assert kinds(outcomes) == [ConcurrentUpdateError]
        outcomes = self.rlmm.add_remote_log_segment_metadata_batch(
            [SegmentAddition(segment(other, 0, 9)), expects]
        )
        assert outcomes[:1] == done(1)
        assert kinds(outcomes[1:]) == [ConcurrentUpdateError]
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

    def test_a_topic_of_which_nothing_was_added_can_have_another_name(self) -> None:
        context = MutationContext(expected_revision=5)
        assert kinds(add_all(self.rlmm, [self.segment(0, 9)], context)) == [ConcurrentUpdateError]
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        assert add_all(self.rlmm, [segment(renamed, 0, 9)]) == done(1)

    def test_the_expected_revision_is_that_before_the_additions(self) -> None:
        self.add(self.segment(0, 9))
        context = MutationContext(expected_revision=1)
        made = [self.segment(10, 19), self.segment(20, 29)]
        assert add_all(self.rlmm, made, context) == done(2, 3)
        late = add_all(self.rlmm, [self.segment(30, 39)], context)
        assert kinds(late) == [ConcurrentUpdateError]

    def test_an_addition_raises_the_leader_epoch_for_those_after_it(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 3)], [], BROKER)
        epochs = [2, 3, 5, 4, 5]
        made = [
            self.segment(number, number, broker_leader_epoch=epoch)
            for number, epoch in enumerate(epochs)
        ]
        assert kinds(add_all(self.rlmm, made)) == [
            FencedLeaderEpochError,
            MutationOutcome,
            MutationOutcome,
            FencedLeaderEpochError,
            MutationOutcome,
        ]
        single = self.segment(9, 9, broker_leader_epoch=4)
        with pytest.raises(FencedLeaderEpochError):
            self.rlmm.add_remote_log_segment_metadata(single)

    def test_request_ids_of_additions_are_remembered(self) -> None:
        additions = [
            SegmentAddition(self.segment(start, start), MutationContext(request_id=f"add-{start}"))
            for start in range(3)
        ]
        first = self.rlmm.add_remote_log_segment_metadata_batch(additions)
        assert first == done(1, 2, 3)
        self.move(additions[0].metadata, FINISHED)
        assert self.rlmm.add_remote_log_segment_metadata_batch(additions) == first
        one = additions[1]
        assert self.rlmm.add_remote_log_segment_metadata(one.metadata, one.context) == first[1]
        other = SegmentAddition(self.segment(50, 59), one.context)
        refused = self.rlmm.add_remote_log_segment_metadata_batch([other])
        assert kinds(refused) == [InvalidRequestError]
        assert "context.request_id" in str(refused[0])

    def test_an_addition_batch_is_neither_empty_nor_too_large(self) -> None:
        with pytest.raises(InvalidRequestError, match="adds: must be 1 to 1000, are 0"):
            self.rlmm.add_remote_log_segment_metadata_batch([])
        with pytest.raises(InvalidRequestError, match="are 1001"):
            add_all(self.rlmm, [self.segment(0, 9) for _ in range(MAX_BATCH + 1)])

    def test_a_segment_is_added_once_in_a_batch(self) -> None:
        twice = self.segment(0, 9)
        with pytest.raises(InvalidRequestError, match=r"adds\[2\]: adds\[0\] has"):
            add_all(self.rlmm, [twice, self.segment(10, 19), twice])
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)
