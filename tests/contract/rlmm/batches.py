"""Test many updates in one call: an outcome each, and one transaction for each partition."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    MAX_UPDATE_BATCH,
    PartitionLeadership,
    RemoteLogMetadataManager,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    RlmmContractPart,
    finished,
    id_of,
    revision_of,
    segment,
    update_to,
)


def item(
    metadata: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    context: MutationContext = NO_CONTEXT,
) -> SegmentUpdate:
    return SegmentUpdate(update_to(metadata, state), context)


def batch(
    rlmm: RemoteLogMetadataManager,
    metadatas: Sequence[RemoteLogSegmentMetadata],
    state: RemoteLogSegmentState,
    context: MutationContext = NO_CONTEXT,
) -> list[UpdateOutcome]:
    """Move all segments to one state, for one reason."""
    return rlmm.update_remote_log_segment_metadata_batch(
        [item(metadata, state, context) for metadata in metadatas]
    )


def applied(*revisions: int) -> list[UpdateOutcome]:
    return [MutationOutcome(applied=True, revision=revision) for revision in revisions]


def classes(outcomes: Sequence[UpdateOutcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


class UpdateBatches(RlmmContractPart):
    def test_each_item_has_its_outcome_and_its_own_revision(self) -> None:
        segments = [self.finished(start, start + 9) for start in (0, 10, 20)]
        before = self.revision()
        assert batch(self.rlmm, segments, DELETE_STARTED) == applied(
            before + 1, before + 2, before + 3
        )
        assert self.revision() == before + 3
        assert self.id_at(0, 15) is None
        assert batch(self.rlmm, segments, DELETE_FINISHED) == applied(
            before + 4, before + 5, before + 6
        )
        assert self.ids() == []
        assert self.ids(0) == []

    def test_outcomes_of_several_partitions_are_in_the_order_of_the_items(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        mixed = [
            finished(self.rlmm, other, 0, 9),
            self.finished(0, 9),
            finished(self.rlmm, other, 10, 19),
        ]
        in_tp, in_other = self.revision(), revision_of(self.rlmm, other)
        assert batch(self.rlmm, mixed, DELETE_STARTED) == applied(
            in_other + 1, in_tp + 1, in_other + 2
        )

    def test_a_refused_item_stops_no_other_and_leaves_no_trace(self) -> None:
        first, last = [self.add(self.segment(o, o + 9), DELETE_STARTED) for o in (0, 10)]
        unmarked = self.finished(20, 29)
        unknown = self.segment(30, 39)
        elsewhere = segment(TopicIdPartition(uuid4(), "orders", 0), 0, 9)
        renamed = segment(TopicIdPartition(self.tp.topic_id, "payments", 0), 0, 9)
        before = self.revision()
        items = [first, unknown, elsewhere, unmarked, renamed, last]
        outcomes = batch(self.rlmm, items, DELETE_FINISHED)
        assert [outcomes[0], outcomes[5]] == applied(before + 1, before + 2)
        assert classes(outcomes[1:5]) == [
            RemoteResourceNotFoundError,
            RemoteResourceNotFoundError,
            InvalidStateTransitionError,
            InvalidRequestError,
        ]
        assert self.revision() == before + 2

    def test_a_repeat_answers_the_revision_that_carries_the_state(self) -> None:
        only = self.finished(0, 9)
        marked = self.move(only, DELETE_STARTED)
        self.finished(10, 19)
        assert batch(self.rlmm, [only], DELETE_STARTED) == [replace(marked, applied=False)]

    def test_copies_finish_one_after_another(self) -> None:
        inner, outer = self.add(self.segment(10, 19)), self.add(self.segment(0, 99))
        before = self.revision()
        assert batch(self.rlmm, [inner, outer], FINISHED) == applied(before + 1, before + 2)
        assert self.id_at(0, 15) == id_of(outer)

    def test_finished_copies_and_deletions_keep_their_order(self) -> None:
        old, failed = self.finished(0, 9), self.add(self.segment(10, 19))
        new = self.add(self.segment(0, 9))
        before = self.revision()
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(
            [item(failed, DELETE_STARTED), item(new, FINISHED), item(old, DELETE_STARTED)]
        )
        assert outcomes == applied(before + 1, before + 2, before + 3)
        assert self.id_at(0, 5) == id_of(new)

    def test_the_expected_revision_is_that_before_the_batch(self) -> None:
        segments = [self.finished(start, start + 9) for start in (0, 10, 20)]
        copy = self.add(self.segment(30, 39))
        before = self.revision()
        context = MutationContext(expected_revision=before)
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(
            [
                item(segments[0], DELETE_STARTED, context),
                item(copy, FINISHED, context),
                item(segments[1], DELETE_STARTED, context),
            ]
        )
        assert outcomes == applied(before + 1, before + 2, before + 3)
        late = batch(self.rlmm, segments[1:], DELETE_STARTED, context)
        assert late[0] == MutationOutcome(applied=False, revision=before + 3)
        assert classes(late[1:]) == [ConcurrentUpdateError]
        assert self.revision() == before + 3

    def test_the_topics_settings_hold_for_each_item(self) -> None:
        copied, failed = self.finished(0, 9), self.add(self.segment(10, 19))
        self.rlmm.put_topic_config(self.tp.topic_id, {"sediment.retention.owner": "sweep"})
        outcomes = batch(self.rlmm, [copied, failed], DELETE_STARTED)
        assert classes(outcomes) == [DeletionRefusedError, MutationOutcome]
        sweep = MutationContext(retention_owner=RetentionOwner.SWEEP, expected_config_revision=1)
        assert classes(batch(self.rlmm, [copied], DELETE_STARTED, sweep)) == [MutationOutcome]

    def test_settings_that_changed_refuse_each_item(self) -> None:
        segments = [self.finished(0, 9), self.finished(10, 19)]
        self.rlmm.put_topic_config(self.tp.topic_id, {"retention.ms": "1000"})
        context = MutationContext(expected_config_revision=0)
        outcomes = batch(self.rlmm, segments, DELETE_STARTED, context)
        assert classes(outcomes) == [ConcurrentUpdateError] * 2

    def test_an_older_leader_is_fenced_except_for_its_own_failed_copy(self) -> None:
        copied, failed = self.finished(0, 9), self.add(self.segment(10, 19))
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        context = MutationContext(broker_leader_epoch=6)
        outcomes = batch(self.rlmm, [copied, failed], DELETE_STARTED, context)
        assert classes(outcomes) == [FencedLeaderEpochError, MutationOutcome]

    def test_custom_metadata_is_kept_replaced_and_checked(self) -> None:
        kept, replaced = self.add(self.segment(0, 9)), self.add(self.segment(10, 19))
        large = self.add(self.segment(20, 29))
        self.move(kept, FINISHED, custom_metadata=b"kept")
        updates = [
            update_to(kept, DELETE_STARTED),
            update_to(replaced, DELETE_STARTED, custom_metadata=b"new"),
            update_to(large, DELETE_STARTED, custom_metadata=bytes(129)),
        ]
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(
            list(map(SegmentUpdate, updates))
        )
        assert classes(outcomes[2:]) == [CustomMetadataTooLargeError]
        stored = [
            each.custom_metadata for each in self.rlmm.list_remote_log_segments(self.tp).segments
        ]
        assert stored == [b"kept", b"new", None]
        other = SegmentUpdate(update_to(replaced, DELETE_STARTED, custom_metadata=b"other"))
        again = self.rlmm.update_remote_log_segment_metadata_batch([other])
        assert classes(again) == [SegmentAlreadyExistsError]

    @pytest.mark.parametrize("state", [FINISHED, DELETE_STARTED])
    def test_request_ids_are_remembered_with_their_outcomes(
        self, state: RemoteLogSegmentState
    ) -> None:
        segments = [self.add(self.segment(start, start + 9)) for start in (0, 10)]
        updates = [
            item(metadata, state, MutationContext(request_id=f"mark-{metadata.start_offset}"))
            for metadata in segments
        ]
        first = self.rlmm.update_remote_log_segment_metadata_batch(updates)
        if state is FINISHED:
            self.move(segments[0], DELETE_STARTED)
        before = self.revision()
        assert self.rlmm.update_remote_log_segment_metadata_batch(updates) == first
        assert (
            self.rlmm.update_remote_log_segment_metadata(updates[1].update, updates[1].context)
            == (first[1])
        )
        assert self.revision() == before

    @pytest.mark.parametrize("states", [(FINISHED, DELETE_STARTED), (DELETE_STARTED,) * 2])
    def test_a_request_id_cannot_stand_for_two_items(
        self, states: Sequence[RemoteLogSegmentState]
    ) -> None:
        first, second = self.add(self.segment(0, 9)), self.add(self.segment(10, 19))
        context = MutationContext(request_id="one")
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(
            [item(first, states[0], context), item(second, states[1], context)]
        )
        assert classes(outcomes) == [MutationOutcome, InvalidRequestError]
        assert "request_id" in str(outcomes[1])

    def test_a_refused_item_of_a_batch_is_not_remembered(self) -> None:
        copy = self.add(self.segment(0, 9))
        context = MutationContext(request_id="one")
        refused = batch(self.rlmm, [copy], DELETE_FINISHED, context)
        assert classes(refused) == [InvalidStateTransitionError]
        assert classes(batch(self.rlmm, [copy], DELETE_STARTED, context)) == [MutationOutcome]

    def test_a_batch_is_neither_empty_nor_too_large(self) -> None:
        with pytest.raises(InvalidRequestError, match="updates: must be 1 to 1000, are 0"):
            self.rlmm.update_remote_log_segment_metadata_batch([])
        many = [self.segment(0, 9) for _ in range(MAX_UPDATE_BATCH + 1)]
        with pytest.raises(InvalidRequestError, match="are 1001"):
            batch(self.rlmm, many, DELETE_STARTED)

    def test_a_segment_comes_once_in_a_batch(self) -> None:
        twice, other = self.finished(0, 9), self.finished(10, 19)
        before = self.revision()
        with pytest.raises(InvalidRequestError, match=r"updates\[2\]: updates\[0\] has"):
            batch(self.rlmm, [twice, other, twice], DELETE_STARTED)
        assert self.revision() == before
