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
    id_of,
)
from tests.harness.holds import hold


def summary_of(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> PartitionSummary:
    [found] = [
        each for each in all_partitions(rlmm, topic=tp.topic) if each.topic_id_partition == tp
    ]
    return found


class Undeletion(RlmmContractPart):
    def test_undelete_restores_all_segments_of_a_marked_partition(self) -> None:
        first = self.finished(0, 9)
        second = self.finished(10, 19, {1: 10})
        third = self.finished(20, 29, {1: 20}, txn_idx_empty=True)
        under_way, going = self.add(self.segment(30, 39, {1: 30})), self.finished(40, 49)
        record(self.rlmm, self.tp, 60, 69)
        self.rlmm.raise_log_start_offset(self.tp, 5)
        self.put_deletion(MARKED)
        self.move(under_way, FINISHED)
        self.move(going, DELETE_STARTED)
        before = self.revision()
        assert self.rlmm.undelete_partition(self.tp) == MutationOutcome(True, before + 1)
        found = [self.id_at(0, 9), *(self.id_at(1, at) for at in (10, 25, 39))]
        assert found == [id_of(first), id_of(second), id_of(third), id_of(under_way)]
        assert self.id_at(0, 45) is None
        highest = [self.rlmm.highest_offset_for_epoch(self.tp, epoch).value for epoch in (0, 1)]
        assert highest == [49, 39]
        assert self.rlmm.earliest_log_offset(self.tp).value == 5
        assert self.rlmm.partition_state(self.tp).value.log_start_offset == 5
        assert gaps(self.rlmm, self.tp) == [(60, 69)]
        assert len(self.ids()) == 5
        last = self.finished(50, 59, {1: 50})
        assert self.id_at(1, 50) == id_of(last)

    def test_a_search_for_a_transaction_index_is_right_after_it(self) -> None:
        for start in (0, 10, 20, 40):
            self.finished(start, start + 9, txn_idx_empty=True)
        under_way = self.add(self.segment(30, 39, txn_idx_empty=True))
        self.put_deletion(MARKED)
        self.move(under_way, FINISHED)
        self.rlmm.undelete_partition(self.tp)
        last = self.finished(50, 59, txn_idx_empty=False)
        answer = self.rlmm.next_segment_with_txn_index(self.tp, 0, 0).value
        assert answer is not None
        assert id_of(answer) == id_of(last)

    def test_it_is_listed_as_one_that_is_not_being_deleted_and_is_in_the_audit_trail(self) -> None:
        self.put_deletion(MARKED)
        marked = summary_of(self.rlmm, self.tp)
        assert (marked.delete_state, marked.marked_at_ms is None) == (MARKED, False)
        why = MutationContext(reason="a wrong name was deleted")
        outcome = self.rlmm.undelete_partition(self.tp, why)
        listed = summary_of(self.rlmm, self.tp)
        assert (listed.delete_state, listed.marked_at_ms) == (None, None)
        assert listed.revision == outcome.revision
        marks = all_partitions(self.rlmm, topic=self.tp.topic, delete_states=[MARKED])
        assert self.tp not in [each.topic_id_partition for each in marks]
        event = last_event(self.rlmm, self.tp)
        assert (event.revision, event.kind) == (outcome.revision, "PARTITION_DELETE")
        assert (event.from_state, event.to_state) == ("DELETE_PARTITION_MARKED", "")
        assert event.reason == "a wrong name was deleted"

    def test_a_partition_that_is_not_being_deleted_is_a_repeat(self) -> None:
        self.finished(0, 9)
        before = self.revision()
        wrong = MutationContext(expected_revision=before + 9)
        assert self.rlmm.undelete_partition(self.tp, wrong) == MutationOutcome(False, before)
        self.put_deletion(MARKED)
        taken_back = self.rlmm.undelete_partition(self.tp)
        assert self.rlmm.undelete_partition(self.tp) == MutationOutcome(False, taken_back.revision)
        assert self.revision() == taken_back.revision
        assert {event.repeat_count for event in all_events(self.rlmm, EventQuery(self.tp))} == {0}

    def test_it_can_be_marked_again_and_a_repeat_returns_the_latest_mark(self) -> None:
        self.put_deletion(MARKED)
        self.rlmm.undelete_partition(self.tp)
        with pytest.raises(InvalidStateTransitionError):
            self.put_deletion(PARTITION_STARTED)
        again = self.put_deletion(MARKED)
        assert again.applied
        assert self.put_deletion(MARKED) == MutationOutcome(False, again.revision)
        assert self.put_deletion(PARTITION_STARTED).applied
        assert self.put_deletion(MARKED) == MutationOutcome(False, again.revision)

    def test_undelete_is_refused_after_the_removal_has_begun(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            self.rlmm.undelete_partition(self.tp)
        self.put_deletion(MARKED, PARTITION_STARTED)
        before = self.revision()
        with pytest.raises(InvalidStateTransitionError, match="DELETE_PARTITION_STARTED"):
            self.rlmm.undelete_partition(self.tp)
        assert self.revision() == before
        self.put_deletion(PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            self.rlmm.undelete_partition(self.tp)

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_an_undeletion_may_expect_a_revision(self, wrong: MutationContext) -> None:
        self.put_deletion(MARKED)
        with pytest.raises(ConcurrentUpdateError):
            self.rlmm.undelete_partition(self.tp, wrong)
        assert summary_of(self.rlmm, self.tp).delete_state is MARKED
        right = MutationContext(expected_revision=1, expected_config_revision=0)
        assert self.rlmm.undelete_partition(self.tp, right).applied

    def test_neither_a_fence_nor_a_hold_stops_it(self) -> None:
        known(self.rlmm, self.tp, 7)
        self.put_deletion(MARKED)
        hold(self.rlmm, self.tp)
        assert self.rlmm.undelete_partition(self.tp, MutationContext(broker_leader_epoch=1)).applied

    def test_the_same_request_again_takes_no_later_mark_back(self) -> None:
        self.put_deletion(MARKED)
        why = MutationContext(request_id="one")
        first = self.rlmm.undelete_partition(self.tp, why)
        self.put_deletion(MARKED)
        assert self.rlmm.undelete_partition(self.tp, why) == first
        assert summary_of(self.rlmm, self.tp).delete_state is MARKED
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.undelete_partition(
                self.tp, MutationContext(request_id="one", reason="another")
            )
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.reset_leader_epoch(self.tp, 3, why)

    def test_an_undeletion_is_asked_for_rightly(self) -> None:
        self.put_deletion(MARKED)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            self.rlmm.undelete_partition(TopicIdPartition(self.tp.topic_id, "payments", 0))
        with pytest.raises(
            InvalidRequestError, match=r"^context\.request_id: must not contain NUL"
        ):
            self.rlmm.undelete_partition(self.tp, MutationContext(request_id="\0"))


class LeaderEpochResets(RlmmContractPart):
    @pytest.mark.parametrize(
        ("old", "new"),
        [(900, 5), (5, 900), (900, None), (None, 5), (900, 0), (5, INT32_MAX)],
    )
    def test_it_is_set_higher_or_lower_and_is_in_the_audit_trail(
        self, old: int | None, new: int | None
    ) -> None:
        known(self.rlmm, self.tp, old)
        why = MutationContext(reason="a wrong epoch", broker_leader_epoch=1)
        outcome = self.rlmm.reset_leader_epoch(self.tp, new, why)
        assert outcome == MutationOutcome(True, 2)
        event = last_event(self.rlmm, self.tp)
        assert (event.revision, event.kind) == (2, "LEADER_EPOCH_RESET")
        reported = ["" if epoch is None else str(epoch) for epoch in (old, new)]
        assert [event.from_state, event.to_state] == reported
        assert (event.broker_id, event.broker_leader_epoch) == (-1, new)
        assert event.reason == "a wrong epoch"
        if new:
            with pytest.raises(FencedLeaderEpochError):
                self.add(self.segment(0, 9, broker_leader_epoch=new - 1))
        self.add(self.segment(0, 9, broker_leader_epoch=new or 0))

    def test_the_epoch_that_it_has_is_a_repeat(self) -> None:
        known(self.rlmm, self.tp)
        assert self.rlmm.reset_leader_epoch(self.tp, None) == MutationOutcome(False, 1)
        known(self.rlmm, self.tp, 7)
        wrong = MutationContext(expected_revision=9)
        assert self.rlmm.reset_leader_epoch(self.tp, 7, wrong) == MutationOutcome(False, 2)
        assert self.revision() == 2

    def test_the_right_leader_reports_again_and_the_wrong_report_is_gone(self) -> None:
        history = lineage((0, 0), (3, 50))
        taken(self.rlmm, report_of(self.tp, 1))
        wrong = report_of(
            self.tp, 50, leader_epoch=900, lineage=lineage((0, 0), (900, 60)), high_watermark=99
        )
        taken(self.rlmm, wrong)
        with pytest.raises(FencedLeaderEpochError):
            taken(self.rlmm, report_of(self.tp, 2))
        self.rlmm.reset_leader_epoch(self.tp, 3)
        overruled = self.rlmm.partition_state(self.tp).value
        assert (overruled.report, overruled.reported_at_ms) == (None, None)
        assert overruled.lineage == wrong.lineage
        with pytest.raises(InvalidRangeError):
            self.rlmm.raise_log_start_offset(self.tp, 95)
        assert taken(self.rlmm, report_of(self.tp, 2)).report == report_of(self.tp, 2)
        found = self.rlmm.partition_state(self.tp).value
        assert (found.report, found.lineage) == (report_of(self.tp, 2), history)
        with pytest.raises(ConcurrentUpdateError, match=r"stored report 2\b"):
            taken(self.rlmm, report_of(self.tp, 1))

    @pytest.mark.parametrize("reset_to", [3, None])
    @pytest.mark.parametrize("rises_to", [900, 901])
    def test_an_overruled_report_stays_so_when_the_epoch_rises_again(
        self, reset_to: int | None, rises_to: int
    ) -> None:
        history = lineage((0, 0), (900, 60))
        taken(
            self.rlmm, report_of(self.tp, 50, leader_epoch=900, lineage=history, high_watermark=99)
        )
        self.rlmm.reset_leader_epoch(self.tp, reset_to)
        known(self.rlmm, self.tp, rises_to)
        found = self.rlmm.partition_state(self.tp).value
        assert (found.report, found.reported_at_ms) == (None, None)
        assert found.lineage == history
        with pytest.raises(InvalidRangeError):
            self.rlmm.raise_log_start_offset(self.tp, 95)
        first = report_of(self.tp, 1, leader_epoch=901, lineage=history)
        assert taken(self.rlmm, first).report == first
        assert self.rlmm.partition_state(self.tp).value.report == first

    def test_the_highest_epoch_is_returned(self) -> None:
        known(self.rlmm, self.tp)
        reported = [self.rlmm.partition_state(self.tp).value.highest_broker_leader_epoch]
        known(self.rlmm, self.tp, 9)
        reported.append(self.rlmm.partition_state(self.tp).value.highest_broker_leader_epoch)
        self.rlmm.reset_leader_epoch(self.tp, 3)
        reported.append(taken(self.rlmm, report_of(self.tp)).highest_broker_leader_epoch)
        reported.append(self.rlmm.partition_state(self.tp).value.highest_broker_leader_epoch)
        assert reported == [None, 9, 3, 3]

    def test_after_no_epoch_is_known_any_report_is_taken(self) -> None:
        taken(self.rlmm, report_of(self.tp, 50))
        self.rlmm.reset_leader_epoch(self.tp, None)
        assert self.rlmm.partition_state(self.tp).value.report is None
        first = report_of(self.tp, 0, leader_epoch=0, lineage=lineage((0, 0)))
        assert taken(self.rlmm, first).report == first

    def test_a_report_of_an_epoch_that_is_not_above_stays(self) -> None:
        taken(self.rlmm, report_of(self.tp, 5))
        self.rlmm.reset_leader_epoch(self.tp, 9)
        assert self.rlmm.partition_state(self.tp).value.report == report_of(self.tp, 5)
        self.rlmm.reset_leader_epoch(self.tp, 3)
        with pytest.raises(ConcurrentUpdateError, match=r"stored report 5\b"):
            taken(self.rlmm, report_of(self.tp, 4))

    def test_reset_of_the_epoch_keeps_copied_segments(self) -> None:
        only = self.finished(0, 9, broker_leader_epoch=900)
        self.rlmm.reset_leader_epoch(self.tp, 5)
        assert self.id_at(0, 5) == id_of(only)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 9

    def test_there_is_nothing_to_reset_if_nothing_is_known(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
            self.rlmm.reset_leader_epoch(self.tp, 5)
        known(self.rlmm, self.tp, 9)
        self.put_deletion(MARKED, PARTITION_STARTED)
        assert self.rlmm.reset_leader_epoch(self.tp, 5).applied
        self.put_deletion(PARTITION_FINISHED)
        for epoch in (5, 6):
            with pytest.raises(RemoteResourceNotFoundError, match="orders-0"):
                self.rlmm.reset_leader_epoch(self.tp, epoch)

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_a_reset_may_expect_a_revision(self, wrong: MutationContext) -> None:
        known(self.rlmm, self.tp, 9)
        with pytest.raises(ConcurrentUpdateError):
            self.rlmm.reset_leader_epoch(self.tp, 5, wrong)
        with pytest.raises(FencedLeaderEpochError):
            self.add(self.segment(0, 9, broker_leader_epoch=8))
        right = MutationContext(expected_revision=1, expected_config_revision=0)
        assert self.rlmm.reset_leader_epoch(self.tp, 5, right).applied

    def test_the_same_request_again_resets_nothing_twice(self) -> None:
        known(self.rlmm, self.tp, 9)
        why = MutationContext(request_id="one")
        first = self.rlmm.reset_leader_epoch(self.tp, 5, why)
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 8)], [], BROKER)
        assert self.rlmm.reset_leader_epoch(self.tp, 5, why) == first
        with pytest.raises(FencedLeaderEpochError):
            self.add(self.segment(0, 9, broker_leader_epoch=7))
        for other in (4, None):
            with pytest.raises(InvalidRequestError, match="request_id"):
                self.rlmm.reset_leader_epoch(self.tp, other, why)

    def test_a_reset_is_asked_for_rightly(self) -> None:
        known(self.rlmm, self.tp, 9)
        with pytest.raises(InvalidRequestError, match="leader_epoch: must be 0"):
            self.rlmm.reset_leader_epoch(self.tp, -1)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            self.rlmm.reset_leader_epoch(TopicIdPartition(self.tp.topic_id, "payments", 0), 5)
        assert self.revision() == 1

    def test_segments_go_and_come_as_before_a_reset(self) -> None:
        known(self.rlmm, self.tp, 9)
        only = self.finished(0, 9)
        with pytest.raises(FencedLeaderEpochError):
            self.move(only, DELETE_STARTED, context=MutationContext(broker_leader_epoch=5))
        self.rlmm.reset_leader_epoch(self.tp, 5)
        self.move(only, DELETE_STARTED, context=MutationContext(broker_leader_epoch=5))
        self.move(only, DELETE_FINISHED)
        assert self.ids() == []
