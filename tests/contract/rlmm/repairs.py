"""Test the repairs of administrators: a mark for deletion, a wrong leader epoch."""

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    PartitionSummary,
    RemoteLogMetadataManager,
    all_events,
    all_partitions,
)
from services.api.validation import INT32_MAX
from tests.contract.rlmm.gaps import WRONG_EXPECTATIONS, gaps, known, last_event, record
from tests.contract.rlmm.partition_states import lineage, report_of, taken
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


def summary_of(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> PartitionSummary:
    [found] = [
        each for each in all_partitions(rlmm, topic=tp.topic) if each.topic_id_partition == tp
    ]
    return found


class Undeletion(RlmmContractPart):
    def test_undelete_restores_all_segments_of_a_marked_partition(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first = finished(rlmm, tp, 0, 9)
        second = finished(rlmm, tp, 10, 19, {1: 10})
        third = finished(rlmm, tp, 20, 29, {1: 20}, txn_idx_empty=True)
        under_way, going = add(rlmm, segment(tp, 30, 39, {1: 30})), finished(rlmm, tp, 40, 49)
        record(rlmm, tp, 60, 69)
        rlmm.raise_log_start_offset(tp, 5)
        put_deletion(rlmm, tp, MARKED)
        move(rlmm, under_way, FINISHED)
        move(rlmm, going, DELETE_STARTED)
        before = revision_of(rlmm, tp)
        assert rlmm.undelete_partition(tp) == MutationOutcome(True, before + 1)
        found = [id_at(rlmm, tp, 0, 9), *(id_at(rlmm, tp, 1, at) for at in (10, 25, 39))]
        assert found == [id_of(first), id_of(second), id_of(third), id_of(under_way)]
        assert id_at(rlmm, tp, 0, 45) is None
        highest = [rlmm.highest_offset_for_epoch(tp, epoch).value for epoch in (0, 1)]
        assert highest == [49, 39]
        assert rlmm.earliest_log_offset(tp).value == 5
        assert rlmm.partition_state(tp).value.log_start_offset == 5
        assert gaps(rlmm, tp) == [(60, 69)]
        assert len(ids(rlmm, tp)) == 5
        last = finished(rlmm, tp, 50, 59, {1: 50})
        assert id_at(rlmm, tp, 1, 50) == id_of(last)

    def test_a_search_for_a_transaction_index_is_right_after_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        for start in (0, 10, 20, 40):
            finished(rlmm, tp, start, start + 9, txn_idx_empty=True)
        under_way = add(rlmm, segment(tp, 30, 39, txn_idx_empty=True))
        put_deletion(rlmm, tp, MARKED)
        move(rlmm, under_way, FINISHED)
        rlmm.undelete_partition(tp)
        last = finished(rlmm, tp, 50, 59, txn_idx_empty=False)
        answer = rlmm.next_segment_with_txn_index(tp, 0, 0).value
        assert answer is not None
        assert id_of(answer) == id_of(last)

    def test_it_is_listed_as_one_that_is_not_being_deleted_and_is_in_the_audit_trail(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED)
        marked = summary_of(rlmm, tp)
        assert (marked.delete_state, marked.marked_at_ms is None) == (MARKED, False)
        why = MutationContext(reason="a wrong name was deleted")
        outcome = rlmm.undelete_partition(tp, why)
        listed = summary_of(rlmm, tp)
        assert (listed.delete_state, listed.marked_at_ms) == (None, None)
        assert listed.revision == outcome.revision
        marks = all_partitions(rlmm, topic=tp.topic, delete_states=[MARKED])
        assert tp not in [each.topic_id_partition for each in marks]
        event = last_event(rlmm, tp)
        assert (event.revision, event.kind) == (outcome.revision, "PARTITION_DELETE")
        assert (event.from_state, event.to_state) == ("DELETE_PARTITION_MARKED", "")
        assert event.reason == "a wrong name was deleted"

    def test_a_partition_that_is_not_being_deleted_is_a_repeat(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9)
        before = revision_of(rlmm, tp)
        wrong = MutationContext(expected_revision=before + 9)
        assert rlmm.undelete_partition(tp, wrong) == MutationOutcome(False, before)
        put_deletion(rlmm, tp, MARKED)
        taken_back = rlmm.undelete_partition(tp)
        assert rlmm.undelete_partition(tp) == MutationOutcome(False, taken_back.revision)
        assert revision_of(rlmm, tp) == taken_back.revision
        assert {event.repeat_count for event in all_events(rlmm, EventQuery(tp))} == {0}

    def test_it_can_be_marked_again_and_a_repeat_returns_the_latest_mark(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED)
        rlmm.undelete_partition(tp)
        with pytest.raises(InvalidStateTransitionError):
            put_deletion(rlmm, tp, PARTITION_STARTED)
        again = put_deletion(rlmm, tp, MARKED)
        assert again.applied
        assert put_deletion(rlmm, tp, MARKED) == MutationOutcome(False, again.revision)
        assert put_deletion(rlmm, tp, PARTITION_STARTED).applied
        assert put_deletion(rlmm, tp, MARKED) == MutationOutcome(False, again.revision)

    def test_undelete_is_refused_after_the_removal_has_begun(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            rlmm.undelete_partition(tp)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        before = revision_of(rlmm, tp)
        with pytest.raises(InvalidStateTransitionError, match="DELETE_PARTITION_STARTED"):
            rlmm.undelete_partition(tp)
        assert revision_of(rlmm, tp) == before
        put_deletion(rlmm, tp, PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            rlmm.undelete_partition(tp)

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_an_undeletion_may_expect_a_revision(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, wrong: MutationContext
    ) -> None:
        put_deletion(rlmm, tp, MARKED)
        with pytest.raises(ConcurrentUpdateError):
            rlmm.undelete_partition(tp, wrong)
        assert summary_of(rlmm, tp).delete_state is MARKED
        right = MutationContext(expected_revision=1, expected_config_revision=0)
        assert rlmm.undelete_partition(tp, right).applied

    def test_neither_a_fence_nor_a_hold_stops_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp, 7)
        put_deletion(rlmm, tp, MARKED)
        rlmm.put_topic_config(tp.topic_id, {"sediment.hold": "true"})
        assert rlmm.undelete_partition(tp, MutationContext(broker_leader_epoch=1)).applied

    def test_the_same_request_again_takes_no_later_mark_back(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED)
        why = MutationContext(request_id="one")
        first = rlmm.undelete_partition(tp, why)
        put_deletion(rlmm, tp, MARKED)
        assert rlmm.undelete_partition(tp, why) == first
        assert summary_of(rlmm, tp).delete_state is MARKED
        with pytest.raises(InvalidRequestError, match="request_id"):
            rlmm.undelete_partition(tp, MutationContext(request_id="one", reason="another"))
        with pytest.raises(InvalidRequestError, match="request_id"):
            rlmm.reset_leader_epoch(tp, 3, why)

    def test_an_undeletion_is_asked_for_rightly(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            rlmm.undelete_partition(TopicIdPartition(tp.topic_id, "payments", 0))
        with pytest.raises(
            InvalidRequestError, match=r"^context\.request_id: must not contain NUL"
        ):
            rlmm.undelete_partition(tp, MutationContext(request_id="\0"))


class LeaderEpochResets(RlmmContractPart):
    @pytest.mark.parametrize(
        ("old", "new"),
        [(900, 5), (5, 900), (900, None), (None, 5), (900, 0), (5, INT32_MAX)],
    )
    def test_it_is_set_higher_or_lower_and_is_in_the_audit_trail(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        old: int | None,
        new: int | None,
    ) -> None:
        known(rlmm, tp, old)
        why = MutationContext(reason="a wrong epoch", broker_leader_epoch=1)
        outcome = rlmm.reset_leader_epoch(tp, new, why)
        assert outcome == MutationOutcome(True, 2)
        event = last_event(rlmm, tp)
        assert (event.revision, event.kind) == (2, "LEADER_EPOCH_RESET")
        reported = ["" if epoch is None else str(epoch) for epoch in (old, new)]
        assert [event.from_state, event.to_state] == reported
        assert (event.broker_id, event.broker_leader_epoch) == (-1, new)
        assert event.reason == "a wrong epoch"
        if new:
            with pytest.raises(FencedLeaderEpochError):
                add(rlmm, segment(tp, 0, 9, broker_leader_epoch=new - 1))
        add(rlmm, segment(tp, 0, 9, broker_leader_epoch=new or 0))

    def test_the_epoch_that_it_has_is_a_repeat(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp)
        assert rlmm.reset_leader_epoch(tp, None) == MutationOutcome(False, 1)
        known(rlmm, tp, 7)
        wrong = MutationContext(expected_revision=9)
        assert rlmm.reset_leader_epoch(tp, 7, wrong) == MutationOutcome(False, 2)
        assert revision_of(rlmm, tp) == 2

    def test_the_right_leader_reports_again_and_the_wrong_report_is_gone(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        history = lineage((0, 0), (3, 50))
        taken(rlmm, report_of(tp, 1))
        wrong = report_of(
            tp, 50, leader_epoch=900, lineage=lineage((0, 0), (900, 60)), high_watermark=99
        )
        taken(rlmm, wrong)
        with pytest.raises(FencedLeaderEpochError):
            taken(rlmm, report_of(tp, 2))
        rlmm.reset_leader_epoch(tp, 3)
        overruled = rlmm.partition_state(tp).value
        assert (overruled.report, overruled.reported_at_ms) == (None, None)
        assert overruled.lineage == wrong.lineage
        with pytest.raises(InvalidRangeError):
            rlmm.raise_log_start_offset(tp, 95)
        assert taken(rlmm, report_of(tp, 2)).report == report_of(tp, 2)
        found = rlmm.partition_state(tp).value
        assert (found.report, found.lineage) == (report_of(tp, 2), history)
        with pytest.raises(ConcurrentUpdateError, match=r"stored report 2\b"):
            taken(rlmm, report_of(tp, 1))

    @pytest.mark.parametrize("reset_to", [3, None])
    @pytest.mark.parametrize("rises_to", [900, 901])
    def test_an_overruled_report_stays_so_when_the_epoch_rises_again(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        reset_to: int | None,
        rises_to: int,
    ) -> None:
        history = lineage((0, 0), (900, 60))
        taken(rlmm, report_of(tp, 50, leader_epoch=900, lineage=history, high_watermark=99))
        rlmm.reset_leader_epoch(tp, reset_to)
        known(rlmm, tp, rises_to)
        found = rlmm.partition_state(tp).value
        assert (found.report, found.reported_at_ms) == (None, None)
        assert found.lineage == history
        with pytest.raises(InvalidRangeError):
            rlmm.raise_log_start_offset(tp, 95)
        first = report_of(tp, 1, leader_epoch=901, lineage=history)
        assert taken(rlmm, first).report == first
        assert rlmm.partition_state(tp).value.report == first

    def test_the_highest_epoch_is_returned(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp)
        reported = [rlmm.partition_state(tp).value.highest_broker_leader_epoch]
        known(rlmm, tp, 9)
        reported.append(rlmm.partition_state(tp).value.highest_broker_leader_epoch)
        rlmm.reset_leader_epoch(tp, 3)
        reported.append(taken(rlmm, report_of(tp)).highest_broker_leader_epoch)
        reported.append(rlmm.partition_state(tp).value.highest_broker_leader_epoch)
        assert reported == [None, 9, 3, 3]

    def test_after_no_epoch_is_known_any_report_is_taken(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        taken(rlmm, report_of(tp, 50))
        rlmm.reset_leader_epoch(tp, None)
        assert rlmm.partition_state(tp).value.report is None
        first = report_of(tp, 0, leader_epoch=0, lineage=lineage((0, 0)))
        assert taken(rlmm, first).report == first

    def test_a_report_of_an_epoch_that_is_not_above_stays(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        taken(rlmm, report_of(tp, 5))
        rlmm.reset_leader_epoch(tp, 9)
        assert rlmm.partition_state(tp).value.report == report_of(tp, 5)
        rlmm.reset_leader_epoch(tp, 3)
        with pytest.raises(ConcurrentUpdateError, match=r"stored report 5\b"):
            taken(rlmm, report_of(tp, 4))

    def test_reset_of_the_epoch_keeps_copied_segments(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9, broker_leader_epoch=900)
        rlmm.reset_leader_epoch(tp, 5)
        assert id_at(rlmm, tp, 0, 5) == id_of(only)
        assert rlmm.highest_offset_for_epoch(tp, 0).value == 9

    def test_there_is_nothing_to_reset_if_nothing_is_known(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            rlmm.reset_leader_epoch(tp, 5)
        known(rlmm, tp, 9)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        assert rlmm.reset_leader_epoch(tp, 5).applied
        put_deletion(rlmm, tp, PARTITION_FINISHED)
        for epoch in (5, 6):
            with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
                rlmm.reset_leader_epoch(tp, epoch)

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_a_reset_may_expect_a_revision(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, wrong: MutationContext
    ) -> None:
        known(rlmm, tp, 9)
        with pytest.raises(ConcurrentUpdateError):
            rlmm.reset_leader_epoch(tp, 5, wrong)
        with pytest.raises(FencedLeaderEpochError):
            add(rlmm, segment(tp, 0, 9, broker_leader_epoch=8))
        right = MutationContext(expected_revision=1, expected_config_revision=0)
        assert rlmm.reset_leader_epoch(tp, 5, right).applied

    def test_the_same_request_again_resets_nothing_twice(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp, 9)
        why = MutationContext(request_id="one")
        first = rlmm.reset_leader_epoch(tp, 5, why)
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 8)], [], BROKER)
        assert rlmm.reset_leader_epoch(tp, 5, why) == first
        with pytest.raises(FencedLeaderEpochError):
            add(rlmm, segment(tp, 0, 9, broker_leader_epoch=7))
        for other in (4, None):
            with pytest.raises(InvalidRequestError, match="request_id"):
                rlmm.reset_leader_epoch(tp, other, why)

    def test_a_reset_is_asked_for_rightly(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp, 9)
        with pytest.raises(InvalidRequestError, match="leader_epoch: must be 0"):
            rlmm.reset_leader_epoch(tp, -1)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            rlmm.reset_leader_epoch(TopicIdPartition(tp.topic_id, "payments", 0), 5)
        assert revision_of(rlmm, tp) == 1

    def test_segments_go_and_come_as_before_a_reset(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        known(rlmm, tp, 9)
        only = finished(rlmm, tp, 0, 9)
        with pytest.raises(FencedLeaderEpochError):
            move(rlmm, only, DELETE_STARTED, context=MutationContext(broker_leader_epoch=5))
        rlmm.reset_leader_epoch(tp, 5)
        move(rlmm, only, DELETE_STARTED, context=MutationContext(broker_leader_epoch=5))
        move(rlmm, only, DELETE_FINISHED)
        assert ids(rlmm, tp) == []
