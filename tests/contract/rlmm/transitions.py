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
    id_of,
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
    def test_a_segment_lives_through_its_states_and_nothing_else(self) -> None:
        only = self.add(self.segment(10, 100, {5: 10}))

        def refused(state: RemoteLogSegmentState) -> None:
            before = list(all_segments(self.rlmm, self.tp))
            with pytest.raises(InvalidStateTransitionError):
                self.move(only, state)
            assert list(all_segments(self.rlmm, self.tp)) == before

        def add_refused() -> None:
            with pytest.raises(InvalidStateTransitionError):
                self.rlmm.add_remote_log_segment_metadata(only)

        refused(DELETE_FINISHED)
        self.move(only, FINISHED)
        refused(DELETE_FINISHED)
        add_refused()
        self.move(only, DELETE_STARTED)
        refused(FINISHED)
        add_refused()
        self.move(only, DELETE_FINISHED)
        assert self.ids() == []
        refused(FINISHED)
        assert not self.move(only, DELETE_STARTED).applied
        assert self.ids() == []
        add_refused()

    def test_a_repeat_for_the_same_plan_is_applied_and_one_for_another_is_not(self) -> None:
        only = self.add(self.segment(10, 100, {5: 10}), FINISHED)
        plans = ["a", "a", "b", None]
        for state in (DELETE_STARTED, DELETE_FINISHED):
            contexts = [MutationContext(plan_id=plan) for plan in plans]
            outcomes = [self.move(only, state, context=context) for context in contexts]
            assert [outcome.applied for outcome in outcomes] == [True, True, False, False]
            assert {outcome.revision for outcome in outcomes} == {self.revision()}

    @pytest.mark.parametrize(("finisher", "owner"), [(None, "a"), ("b", "b")])
    def test_a_deletion_stays_of_the_plan_that_marked_it_unless_another_plan_finishes_it(
        self, finisher: str | None, owner: str
    ) -> None:
        only = self.add(self.segment(10, 100, {5: 10}), FINISHED)
        self.move(only, DELETE_STARTED, context=MutationContext(plan_id="a"))
        self.move(only, DELETE_FINISHED, context=MutationContext(plan_id=finisher))
        for plan in ("a", "b", None):
            repeat = self.move(only, DELETE_FINISHED, context=MutationContext(plan_id=plan))
            assert repeat.applied is (plan == owner)

    @pytest.mark.parametrize("source", WAY_TO)
    @pytest.mark.parametrize("target", UPDATES)
    def test_every_pair_of_states_is_applied_repeated_or_refused(
        self, source: RemoteLogSegmentState, target: RemoteLogSegmentState
    ) -> None:
        only = self.add(self.segment(0, 9), *WAY_TO[source])
        before = self.revision()
        if source in predecessors(target):
            outcome = self.move(only, target)
            assert (outcome.applied, outcome.revision) == (True, before + 1)
        elif source is target or (source, target) == (DELETE_FINISHED, DELETE_STARTED):
            outcome = self.move(only, target)
            assert (outcome.applied, outcome.revision) == (False, before)
        else:
            with pytest.raises(InvalidStateTransitionError):
                self.move(only, target)
            assert self.revision() == before

    @pytest.mark.parametrize("target", UPDATES)
    def test_an_unknown_segment_is_reported(self, target: RemoteLogSegmentState) -> None:
        unknown = self.segment(10, 19)
        with pytest.raises(RemoteResourceNotFoundError):
            self.move(unknown, target)
        self.add(self.segment(0, 9))
        with pytest.raises(RemoteResourceNotFoundError):
            self.move(unknown, target)


class Repeats(RlmmContractPart):
    def test_the_same_add_again_changes_nothing(self) -> None:
        first = self.segment(0, 9, custom_metadata=b"early", broker_leader_epoch=3)
        applied = self.rlmm.add_remote_log_segment_metadata(first)
        repeated = self.rlmm.add_remote_log_segment_metadata(first)
        assert (applied.applied, repeated.applied) == (True, False)
        assert repeated.revision == applied.revision == self.revision()

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
    def test_the_same_id_with_other_content_is_refused(self, difference: dict[str, object]) -> None:
        first = self.add(self.segment(0, 9))
        with pytest.raises(SegmentAlreadyExistsError):
            self.rlmm.add_remote_log_segment_metadata(replace(first, **difference))  # type: ignore[arg-type]
        assert list(all_segments(self.rlmm, self.tp)) == [first]

    def test_a_repeat_returns_the_revision_of_the_change_not_the_present_one(self) -> None:
        first = self.add(self.segment(0, 9))
        applied = self.move(first, FINISHED)
        self.add(self.segment(10, 19))
        assert self.move(first, FINISHED).revision == applied.revision

    def test_repeated_finish_does_not_change_the_look_up(self) -> None:
        displaced, displacer = self.finished(10, 100), self.finished(5, 150)
        self.move(displaced, FINISHED)
        assert self.id_at(0, 50) == id_of(displacer)

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
        self, stored: bytes | None, again: bytes | None, is_repeat: bool
    ) -> None:
        only = self.add(self.segment(0, 9))
        self.move(only, FINISHED, custom_metadata=stored)
        if is_repeat:
            assert self.move(only, FINISHED, custom_metadata=again).applied is False
        else:
            with pytest.raises(SegmentAlreadyExistsError):
                self.move(only, FINISHED, custom_metadata=again)
        (listed,) = all_segments(self.rlmm, self.tp)
        assert listed.custom_metadata == stored

    def test_absent_custom_metadata_keeps_the_stored_one(self) -> None:
        only = self.add(self.segment(0, 9))
        self.move(only, FINISHED, custom_metadata=b"where it is")
        self.move(only, DELETE_STARTED)
        (listed,) = all_segments(self.rlmm, self.tp)
        assert listed.custom_metadata == b"where it is"

    def test_a_later_update_may_bring_other_custom_metadata(self) -> None:
        only = self.add(self.segment(0, 9, custom_metadata=b"early"))
        self.move(only, FINISHED, custom_metadata=b"")
        (listed,) = all_segments(self.rlmm, self.tp)
        assert listed.custom_metadata == b""

    def test_an_update_brings_its_broker_and_time(self) -> None:
        only = self.add(self.segment(0, 9))
        self.move(only, FINISHED, broker_id=OTHER_BROKER, event_timestamp_ms=9_999)
        (listed,) = all_segments(self.rlmm, self.tp)
        assert (listed.broker_id, listed.event_timestamp_ms) == (OTHER_BROKER, 9_999)


class BadSegments(RlmmContractPart):
    @pytest.mark.parametrize("state", UPDATES)
    def test_an_add_in_another_state_is_refused(self, state: RemoteLogSegmentState) -> None:
        with pytest.raises(InvalidRequestError, match="state"):
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9, state=state))
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

    def test_custom_metadata_over_the_limit_is_refused(self) -> None:
        only = self.add(self.segment(0, 9))
        with pytest.raises(CustomMetadataTooLargeError, match="custom_metadata"):
            self.move(only, FINISHED, custom_metadata=b"x" * 129)
        with pytest.raises(CustomMetadataTooLargeError, match="custom_metadata"):
            self.add(self.segment(10, 19, custom_metadata=b"x" * 129))
        assert self.move(only, FINISHED, custom_metadata=b"x" * 128).applied

    def test_text_that_cannot_be_stored_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="reason"):
            self.rlmm.add_remote_log_segment_metadata(
                self.segment(0, 9), MutationContext(reason="a\0b")
            )

    def test_any_other_text_is_stored(self) -> None:
        why = MutationContext(request_id="é'\";--%s:x", reason="%(a)s ☃", plan_id="p")
        only = self.segment(0, 9)
        assert self.rlmm.add_remote_log_segment_metadata(only, why).applied
        assert self.rlmm.add_remote_log_segment_metadata(only, why).applied

    def test_a_segment_with_many_epochs_is_found_in_each(self) -> None:
        wide = self.finished(0, 499, {epoch: epoch for epoch in range(500)})
        found = {self.id_at(epoch, epoch) for epoch in (0, 1, 250, 498, 499)}
        assert found == {id_of(wide)}

    def test_the_greatest_numbers_there_are_are_kept(self) -> None:
        most = self.finished(
            2**63 - 2, 2**63 - 1, {2**31 - 1: 2**63 - 2}, segment_size_in_bytes=2**31 - 1
        )
        assert self.id_at(2**31 - 1, 2**63 - 1) == id_of(most)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 2**31 - 1).value == 2**63 - 1


class Fences(RlmmContractPart):
    @pytest.mark.parametrize("way", ["leadership", "context", "metadata"])
    def test_an_older_leader_may_not_add(self, way: str) -> None:
        if way == "leadership":
            self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        elif way == "context":
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), at_epoch(7))
        else:
            self.add(self.segment(0, 9, broker_leader_epoch=7))
        before = self.revision()
        with pytest.raises(FencedLeaderEpochError):
            self.rlmm.add_remote_log_segment_metadata(self.segment(10, 19), at_epoch(6))
        with pytest.raises(FencedLeaderEpochError):
            self.add(self.segment(10, 19, broker_leader_epoch=6))
        assert self.revision() == before
        assert self.rlmm.add_remote_log_segment_metadata(self.segment(10, 19), at_epoch(7)).applied

    def test_the_calls_epoch_counts_before_the_segments(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        late = self.segment(0, 9, broker_leader_epoch=3)
        assert self.rlmm.add_remote_log_segment_metadata(late, at_epoch(7)).applied

    def test_no_epoch_is_no_fence(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        only = self.finished(0, 9)
        assert self.move(only, DELETE_STARTED).applied

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
        way: list[RemoteLogSegmentState],
        target: RemoteLogSegmentState,
        broker: int,
        is_allowed: bool,
    ) -> None:
        only = self.add(self.segment(0, 9, broker_leader_epoch=6), *way)
        self.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(self.tp, 7)], [], OTHER_BROKER
        )
        before = list(all_segments(self.rlmm, self.tp))
        if is_allowed:
            self.move(only, target, context=at_epoch(6), broker_id=broker)
        else:
            with pytest.raises(FencedLeaderEpochError):
                self.move(only, target, context=at_epoch(6), broker_id=broker)
            assert list(all_segments(self.rlmm, self.tp)) == before

    def test_an_older_leadership_changes_nothing(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        before = self.revision()
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 5)], [], BROKER)
        self.rlmm.on_partition_leadership_changes([], [PartitionLeadership(self.tp)], BROKER)
        assert self.revision() == before
        with pytest.raises(FencedLeaderEpochError):
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), at_epoch(6))


class Leadership(RlmmContractPart):
    def test_a_batch_with_one_wrong_name_changes_nothing(self) -> None:
        self.add(self.segment(0, 9))
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 2)
        new = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        with pytest.raises(InvalidRequestError, match="topic"):
            self.rlmm.on_partition_leadership_changes(
                [PartitionLeadership(new, 1)], [PartitionLeadership(renamed, 1)], BROKER
            )
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(new)

    def test_a_partition_named_twice_has_the_higher_epoch(self) -> None:
        self.rlmm.on_partition_leadership_changes(
            [PartitionLeadership(self.tp, 7)],
            [PartitionLeadership(self.tp, 5), PartitionLeadership(self.tp)],
            1,
        )
        assert self.revision() == 1
        with pytest.raises(FencedLeaderEpochError):
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), at_epoch(6))

    def test_stopping_touches_no_metadata(self) -> None:
        only = self.finished(0, 9)
        before = self.revision()
        self.rlmm.on_stop_partitions([self.tp], BROKER)
        self.rlmm.on_stop_partitions([self.tp], BROKER)
        assert self.ids() == [id_of(only)]
        assert self.revision() == before

    def test_stopping_an_unknown_partition_does_not_make_it_known(self) -> None:
        self.rlmm.on_stop_partitions([self.tp], BROKER)
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

    def test_a_migrated_database_is_ready_for_any_partition(self) -> None:
        assert self.rlmm.is_ready(self.tp)
