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
    add,
    id_at,
    id_of,
    ids,
    move,
    put_deletion,
    revision_of,
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
    def test_copies_of_several_partitions_begin_at_once(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        other = TopicIdPartition(tp.topic_id, tp.topic, 1)
        elsewhere = TopicIdPartition(uuid4(), "payments", 0)
        made = [
            segment(other, 0, 9),
            segment(tp, 0, 9),
            segment(elsewhere, 0, 9),
            segment(other, 10, 29, {0: 10, 3: 20}, custom_metadata=b"\0x", broker_leader_epoch=4),
        ]
        assert add_all(rlmm, made) == done(1, 1, 1, 2)
        assert rlmm.list_remote_log_segments(other).segments == (made[0], made[3])
        assert ids(rlmm, other, 3) == [id_of(made[3])]
        assert id_at(rlmm, other, 3, 25) is None
        move(rlmm, made[3], FINISHED)
        assert id_at(rlmm, other, 3, 25) == id_of(made[3])
        assert id_at(rlmm, other, 0, 19) == id_of(made[3])

    def test_a_batch_of_too_many_leader_epochs_is_refused_as_a_whole(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        many = {epoch: epoch for epoch in range(9_000)}
        made = [segment(tp, 0, 9_000, many) for _ in range(6)]
        with pytest.raises(InvalidRequestError, match=r"^adds: at most 50000 leader epochs"):
            add_all(rlmm, made)
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp)

    def test_the_same_additions_again_are_repeats(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        made = [segment(tp, start, start + 9) for start in (0, 10)]
        add_all(rlmm, made)
        again = add_all(rlmm, [*made, segment(tp, 20, 29)])
        assert again[:2] == [
            MutationOutcome(applied=False, revision=revision) for revision in (1, 2)
        ]
        assert again[2:] == done(3)

    def test_a_refused_addition_stops_no_other_and_leaves_no_trace(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known = add(rlmm, segment(tp, 0, 9))
        later = add(rlmm, segment(tp, 10, 19), FINISHED)
        marked = TopicIdPartition(tp.topic_id, tp.topic, 1)
        put_deletion(rlmm, marked, MARKED)
        before = revision_of(rlmm, tp)
        outcomes = add_all(
            rlmm,
            [
                replace(known, end_offset=8),
                later,
                segment(marked, 0, 9),
                segment(tp, 20, 29, custom_metadata=bytes(129)),
                segment(tp, 20, 29, state=FINISHED),
                segment(TopicIdPartition(tp.topic_id, "payments", 0), 0, 9),
                segment(tp, 30, 39),
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
        assert len(ids(rlmm, tp)) == 3

    def test_partition_stays_unknown_if_its_only_addition_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        other = TopicIdPartition(tp.topic_id, tp.topic, 1)
        expects = SegmentAddition(segment(tp, 0, 9), MutationContext(expected_revision=5))
        outcomes = rlmm.add_remote_log_segment_metadata_batch([expects])
        assert kinds(outcomes) == [ConcurrentUpdateError]
        outcomes = rlmm.add_remote_log_segment_metadata_batch(
            [SegmentAddition(segment(other, 0, 9)), expects]
        )
        assert outcomes[:1] == done(1)
        assert kinds(outcomes[1:]) == [ConcurrentUpdateError]
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp)

    def test_a_topic_of_which_nothing_was_added_can_have_another_name(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        context = MutationContext(expected_revision=5)
        assert kinds(add_all(rlmm, [segment(tp, 0, 9)], context)) == [ConcurrentUpdateError]
        renamed = TopicIdPartition(tp.topic_id, "payments", 0)
        assert add_all(rlmm, [segment(renamed, 0, 9)]) == done(1)

    def test_the_expected_revision_is_that_before_the_additions(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        add(rlmm, segment(tp, 0, 9))
        context = MutationContext(expected_revision=1)
        made = [segment(tp, 10, 19), segment(tp, 20, 29)]
        assert add_all(rlmm, made, context) == done(2, 3)
        late = add_all(rlmm, [segment(tp, 30, 39)], context)
        assert kinds(late) == [ConcurrentUpdateError]

    def test_an_addition_raises_the_leader_epoch_for_those_after_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 3)], [], BROKER)
        epochs = [2, 3, 5, 4, 5]
        made = [
            segment(tp, number, number, broker_leader_epoch=epoch)
            for number, epoch in enumerate(epochs)
        ]
        assert kinds(add_all(rlmm, made)) == [
            FencedLeaderEpochError,
            MutationOutcome,
            MutationOutcome,
            FencedLeaderEpochError,
            MutationOutcome,
        ]
        single = segment(tp, 9, 9, broker_leader_epoch=4)
        with pytest.raises(FencedLeaderEpochError):
            rlmm.add_remote_log_segment_metadata(single)

    def test_request_ids_of_additions_are_remembered(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        additions = [
            SegmentAddition(segment(tp, start, start), MutationContext(request_id=f"add-{start}"))
            for start in range(3)
        ]
        first = rlmm.add_remote_log_segment_metadata_batch(additions)
        assert first == done(1, 2, 3)
        move(rlmm, additions[0].metadata, FINISHED)
        assert rlmm.add_remote_log_segment_metadata_batch(additions) == first
        one = additions[1]
        assert rlmm.add_remote_log_segment_metadata(one.metadata, one.context) == first[1]
        other = SegmentAddition(segment(tp, 50, 59), one.context)
        refused = rlmm.add_remote_log_segment_metadata_batch([other])
        assert kinds(refused) == [InvalidRequestError]
        assert "context.request_id" in str(refused[0])

    def test_an_addition_batch_is_neither_empty_nor_too_large(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(InvalidRequestError, match="adds: must be 1 to 1000, are 0"):
            rlmm.add_remote_log_segment_metadata_batch([])
        with pytest.raises(InvalidRequestError, match="are 1001"):
            add_all(rlmm, [segment(tp, 0, 9) for _ in range(MAX_BATCH + 1)])

    def test_a_segment_is_added_once_in_a_batch(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        twice = segment(tp, 0, 9)
        with pytest.raises(InvalidRequestError, match=r"adds\[2\]: adds\[0\] has"):
            add_all(rlmm, [twice, segment(tp, 10, 19), twice])
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp)
