"""Test adding and moving segments: table H, repeats, fences, bad input."""

from dataclasses import replace

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    CustomMetadataTooLargeError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_segments,
)
from services.api.segments import RemoteLogSegmentState, predecessors, segment_leader_epochs
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    OTHER_BROKER,
    STARTED,
    RlmmContractPart,
    add,
    finished,
    id_at,
    id_of,
    ids,
    move,
    revision_of,
    segment,
)

WAY_TO: dict[RemoteLogSegmentState, list[RemoteLogSegmentState]] = {
    STARTED: [],
    FINISHED: [FINISHED],
    DELETE_STARTED: [DELETE_STARTED],
    DELETE_FINISHED: [DELETE_STARTED, DELETE_FINISHED],
}
UPDATES = [FINISHED, DELETE_STARTED, DELETE_FINISHED]


def at_epoch(epoch: int) -> MutationContext:
    return MutationContext(broker_leader_epoch=epoch)


class TableH(RlmmContractPart):
    def test_a_segment_lives_through_its_states_and_nothing_else(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 10, 100, {5: 10}))

        def refused(state: RemoteLogSegmentState) -> None:
            before = list(all_segments(rlmm, tp))
            with pytest.raises(InvalidStateTransitionError):
                move(rlmm, only, state)
            assert list(all_segments(rlmm, tp)) == before

        def add_refused() -> None:
            with pytest.raises(InvalidStateTransitionError):
                rlmm.add_remote_log_segment_metadata(only)

        refused(DELETE_FINISHED)
        move(rlmm, only, FINISHED)
        refused(DELETE_FINISHED)
        add_refused()
        move(rlmm, only, DELETE_STARTED)
        refused(FINISHED)
        add_refused()
        move(rlmm, only, DELETE_FINISHED)
        assert ids(rlmm, tp) == []
        refused(FINISHED)
        assert not move(rlmm, only, DELETE_STARTED).applied
        assert ids(rlmm, tp) == []
        add_refused()

    @pytest.mark.parametrize("source", WAY_TO)
    @pytest.mark.parametrize("target", UPDATES)
    def test_every_pair_of_states_is_applied_repeated_or_refused(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        source: RemoteLogSegmentState,
        target: RemoteLogSegmentState,
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9), *WAY_TO[source])
        before = revision_of(rlmm, tp)
        if source in predecessors(target):
            outcome = move(rlmm, only, target)
            assert (outcome.applied, outcome.revision) == (True, before + 1)
        elif source is target or (source, target) == (DELETE_FINISHED, DELETE_STARTED):
            outcome = move(rlmm, only, target)
            assert (outcome.applied, outcome.revision) == (False, before)
        else:
            with pytest.raises(InvalidStateTransitionError):
                move(rlmm, only, target)
            assert revision_of(rlmm, tp) == before

    @pytest.mark.parametrize("target", UPDATES)
    def test_an_unknown_segment_is_reported(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, target: RemoteLogSegmentState
    ) -> None:
        unknown = segment(tp, 10, 19)
        with pytest.raises(RemoteResourceNotFoundError):
            move(rlmm, unknown, target)
        add(rlmm, segment(tp, 0, 9))
        with pytest.raises(RemoteResourceNotFoundError):
            move(rlmm, unknown, target)


class Repeats(RlmmContractPart):
    def test_the_same_add_again_changes_nothing(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first = segment(tp, 0, 9, custom_metadata=b"early", broker_leader_epoch=3)
        applied = rlmm.add_remote_log_segment_metadata(first)
        repeated = rlmm.add_remote_log_segment_metadata(first)
        assert (applied.applied, repeated.applied) == (True, False)
        assert repeated.revision == applied.revision == revision_of(rlmm, tp)

    @pytest.mark.parametrize(
        "difference",
        [
            {"end_offset": 10},
            {"event_timestamp_ms": 1},
            {"broker_id": OTHER_BROKER},
            {"custom_metadata": b""},
            {"segment_leader_epochs": segment_leader_epochs([(0, 0), (1, 5)])},
            {"txn_idx_empty": True},
            {"broker_leader_epoch": 4},
        ],
        ids=lambda difference: ",".join(difference),
    )
    def test_the_same_id_with_other_content_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, difference: dict[str, object]
    ) -> None:
        first = add(rlmm, segment(tp, 0, 9))
        with pytest.raises(SegmentAlreadyExistsError):
            rlmm.add_remote_log_segment_metadata(replace(first, **difference))  # type: ignore[arg-type]
        assert list(all_segments(rlmm, tp)) == [first]

    def test_a_repeat_returns_the_revision_of_the_change_not_the_present_one(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first = add(rlmm, segment(tp, 0, 9))
        applied = move(rlmm, first, FINISHED)
        add(rlmm, segment(tp, 10, 19))
        assert move(rlmm, first, FINISHED).revision == applied.revision

    def test_repeated_finish_does_not_change_the_look_up(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        displaced, displacer = finished(rlmm, tp, 10, 100), finished(rlmm, tp, 5, 150)
        move(rlmm, displaced, FINISHED)
        assert id_at(rlmm, tp, 0, 50) == id_of(displacer)

    @pytest.mark.parametrize(
        ("stored", "again", "is_repeat"),
        [
            (b"a", b"a", True),
            (b"a", None, True),
            (None, None, True),
            (b"", b"", True),
            (b"", None, True),
            (b"a", b"b", False),
            (b"a", b"", False),
            (None, b"", False),
            (b"", b"a", False),
        ],
    )
    def test_an_update_again_is_a_repeat_with_the_same_custom_metadata_or_none(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        stored: bytes | None,
        again: bytes | None,
        is_repeat: bool,
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        move(rlmm, only, FINISHED, custom_metadata=stored)
        if is_repeat:
            assert move(rlmm, only, FINISHED, custom_metadata=again).applied is False
        else:
            with pytest.raises(SegmentAlreadyExistsError):
                move(rlmm, only, FINISHED, custom_metadata=again)
        (listed,) = all_segments(rlmm, tp)
        assert listed.custom_metadata == stored

    def test_absent_custom_metadata_keeps_the_stored_one(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        move(rlmm, only, FINISHED, custom_metadata=b"where it is")
        move(rlmm, only, DELETE_STARTED)
        (listed,) = all_segments(rlmm, tp)
        assert listed.custom_metadata == b"where it is"

    def test_a_later_update_may_bring_other_custom_metadata(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9, custom_metadata=b"early"))
        move(rlmm, only, FINISHED, custom_metadata=b"")
        (listed,) = all_segments(rlmm, tp)
        assert listed.custom_metadata == b""

    def test_an_update_brings_its_broker_and_time(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        move(rlmm, only, FINISHED, broker_id=OTHER_BROKER, event_timestamp_ms=9_999)
        (listed,) = all_segments(rlmm, tp)
        assert (listed.broker_id, listed.event_timestamp_ms) == (OTHER_BROKER, 9_999)


class BadSegments(RlmmContractPart):
    @pytest.mark.parametrize("state", UPDATES)
    def test_an_add_in_another_state_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, state: RemoteLogSegmentState
    ) -> None:
        with pytest.raises(InvalidRequestError, match="state"):
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9, state=state))
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp)

    def test_custom_metadata_over_the_limit_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        with pytest.raises(CustomMetadataTooLargeError, match="custom_metadata"):
            move(rlmm, only, FINISHED, custom_metadata=b"x" * 129)
        with pytest.raises(CustomMetadataTooLargeError, match="custom_metadata"):
            add(rlmm, segment(tp, 10, 19, custom_metadata=b"x" * 129))
        assert move(rlmm, only, FINISHED, custom_metadata=b"x" * 128).applied

    def test_text_that_cannot_be_stored_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(InvalidRequestError, match="reason"):
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), MutationContext(reason="a\0b"))

    def test_any_other_text_is_stored(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        why = MutationContext(request_id="é'\";--%s:x", reason="%(a)s ☃", plan_id="p")
        only = segment(tp, 0, 9)
        assert rlmm.add_remote_log_segment_metadata(only, why).applied
        assert rlmm.add_remote_log_segment_metadata(only, why).applied

    def test_a_segment_with_many_epochs_is_found_in_each(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        wide = finished(rlmm, tp, 0, 499, {epoch: epoch for epoch in range(500)})
        found = {id_at(rlmm, tp, epoch, epoch) for epoch in (0, 1, 250, 498, 499)}
        assert found == {id_of(wide)}

    def test_the_greatest_numbers_there_are_are_kept(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        most = finished(
            rlmm, tp, 2**63 - 2, 2**63 - 1, {2**31 - 1: 2**63 - 2}, segment_size_in_bytes=2**31 - 1
        )
        assert id_at(rlmm, tp, 2**31 - 1, 2**63 - 1) == id_of(most)
        assert rlmm.highest_offset_for_epoch(tp, 2**31 - 1).value == 2**63 - 1


class Fences(RlmmContractPart):
    @pytest.mark.parametrize("way", ["leadership", "context", "metadata"])
    def test_an_older_leader_may_not_add(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, way: str
    ) -> None:
        if way == "leadership":
            rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], BROKER)
        elif way == "context":
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), at_epoch(7))
        else:
            add(rlmm, segment(tp, 0, 9, broker_leader_epoch=7))
        before = revision_of(rlmm, tp)
        with pytest.raises(FencedLeaderEpochError):
            rlmm.add_remote_log_segment_metadata(segment(tp, 10, 19), at_epoch(6))
        with pytest.raises(FencedLeaderEpochError):
            add(rlmm, segment(tp, 10, 19, broker_leader_epoch=6))
        assert revision_of(rlmm, tp) == before
        assert rlmm.add_remote_log_segment_metadata(segment(tp, 10, 19), at_epoch(7)).applied

    def test_the_calls_epoch_counts_before_the_segments(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], BROKER)
        late = segment(tp, 0, 9, broker_leader_epoch=3)
        assert rlmm.add_remote_log_segment_metadata(late, at_epoch(7)).applied

    def test_no_epoch_is_no_fence(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], BROKER)
        only = finished(rlmm, tp, 0, 9)
        assert move(rlmm, only, DELETE_STARTED).applied

    @pytest.mark.parametrize(
        ("way", "target", "broker", "is_allowed"),
        [
            pytest.param([], FINISHED, BROKER, True, id="finishing its copy"),
            pytest.param([], DELETE_STARTED, BROKER, True, id="cleaning up its own copy"),
            pytest.param([], DELETE_STARTED, OTHER_BROKER, False, id="another's copy"),
            pytest.param([FINISHED], DELETE_STARTED, BROKER, False, id="deleting a segment"),
            pytest.param([DELETE_STARTED], DELETE_STARTED, OTHER_BROKER, True, id="a repeat"),
            pytest.param([DELETE_STARTED], DELETE_FINISHED, OTHER_BROKER, True, id="the end of it"),
        ],
    )
    def test_transitions_allowed_to_an_older_leader(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        way: list[RemoteLogSegmentState],
        target: RemoteLogSegmentState,
        broker: int,
        is_allowed: bool,
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9, broker_leader_epoch=6), *way)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], OTHER_BROKER)
        before = list(all_segments(rlmm, tp))
        if is_allowed:
            move(rlmm, only, target, context=at_epoch(6), broker_id=broker)
        else:
            with pytest.raises(FencedLeaderEpochError):
                move(rlmm, only, target, context=at_epoch(6), broker_id=broker)
            assert list(all_segments(rlmm, tp)) == before

    def test_an_older_leadership_changes_nothing(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 7)], [], BROKER)
        before = revision_of(rlmm, tp)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 5)], [], BROKER)
        rlmm.on_partition_leadership_changes([], [PartitionLeadership(tp)], BROKER)
        assert revision_of(rlmm, tp) == before
        with pytest.raises(FencedLeaderEpochError):
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), at_epoch(6))


class Leadership(RlmmContractPart):
    def test_a_batch_with_one_wrong_name_changes_nothing(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        add(rlmm, segment(tp, 0, 9))
        renamed = TopicIdPartition(tp.topic_id, "payments", 2)
        new = TopicIdPartition(tp.topic_id, tp.topic, 1)
        with pytest.raises(InvalidRequestError, match="topic"):
            rlmm.on_partition_leadership_changes(
                [PartitionLeadership(new, 1)], [PartitionLeadership(renamed, 1)], BROKER
            )
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(new)

    def test_a_partition_named_twice_has_the_higher_epoch(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes(
            [PartitionLeadership(tp, 7)], [PartitionLeadership(tp, 5), PartitionLeadership(tp)], 1
        )
        assert revision_of(rlmm, tp) == 1
        with pytest.raises(FencedLeaderEpochError):
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), at_epoch(6))

    def test_stopping_touches_no_metadata(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        before = revision_of(rlmm, tp)
        rlmm.on_stop_partitions([tp], BROKER)
        rlmm.on_stop_partitions([tp], BROKER)
        assert ids(rlmm, tp) == [id_of(only)]
        assert revision_of(rlmm, tp) == before

    def test_stopping_an_unknown_partition_does_not_make_it_known(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_stop_partitions([tp], BROKER)
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp)

    def test_a_migrated_database_is_ready_for_any_partition(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        assert rlmm.is_ready(tp)
