"""Test the tier's log start: it rises within bounds, and decides who may delete."""

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.partition_states import report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    put_deletion,
    revision_of,
)
from tests.harness.holds import hold


class LogStarts(RlmmContractPart):
    def test_it_rises_and_every_read_of_it_agrees(self) -> None:
        self.finished(0, 99)
        assert self.rlmm.list_remote_log_segments(self.tp).log_start_offset == 0
        before = self.revision()
        outcome = self.rlmm.raise_log_start_offset(self.tp, 40)
        assert outcome == MutationOutcome(True, before + 1)
        page = self.rlmm.list_remote_log_segments(self.tp)
        same = self.rlmm.list_remote_log_segments(self.tp, if_revision_not=page.revision)
        assert (page.log_start_offset, page.revision, len(page.segments)) == (40, before + 1, 1)
        assert (same.log_start_offset, same.not_modified) == (40, True)
        state = self.rlmm.partition_state(self.tp)
        assert (state.value.log_start_offset, state.revision) == (40, before + 1)

    def test_a_partition_without_segments_lists_its_log_start(self) -> None:
        only = self.finished(0, 99)
        self.rlmm.raise_log_start_offset(self.tp, 100)
        self.move(only, DELETE_STARTED, DELETE_FINISHED)
        page = self.rlmm.list_remote_log_segments(self.tp)
        assert (page.segments, page.log_start_offset) == ((), 100)

    @pytest.mark.parametrize("offset", [0, 39, 40])
    def test_it_never_falls(self, offset: int) -> None:
        self.finished(0, 99)
        raised = self.rlmm.raise_log_start_offset(self.tp, 40)
        assert self.rlmm.raise_log_start_offset(self.tp, offset) == MutationOutcome(
            False, raised.revision
        )
        assert self.rlmm.partition_state(self.tp).value.log_start_offset == 40
        assert self.revision() == raised.revision

    def test_a_repeat_is_judged_before_all_that_may_refuse(self) -> None:
        self.finished(0, 99, broker_leader_epoch=3)
        raised = self.rlmm.raise_log_start_offset(self.tp, 40)
        hold(self.rlmm, self.tp)
        why = MutationContext(broker_leader_epoch=2, expected_revision=0)
        assert self.rlmm.raise_log_start_offset(self.tp, 40, why) == MutationOutcome(
            False, raised.revision
        )

    def test_a_request_again_is_answered_with_its_outcome(self) -> None:
        self.finished(0, 99)
        why = MutationContext(request_id="one")
        first = self.rlmm.raise_log_start_offset(self.tp, 40, why)
        self.rlmm.raise_log_start_offset(self.tp, 50)
        assert self.rlmm.raise_log_start_offset(self.tp, 40, why) == first
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.raise_log_start_offset(self.tp, 60, why)


class LogStartBounds(RlmmContractPart):
    def test_nothing_known_is_not_passed(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp)], [], BROKER)
        with pytest.raises(InvalidRangeError, match=r"^log_start_offset: 1 is above 0"):
            self.rlmm.raise_log_start_offset(self.tp, 1)

    def test_log_start_rises_no_further_than_the_finished_segments(self) -> None:
        self.finished(0, 49, {0: 0})
        only = self.finished(50, 99, {1: 50, 2: 60})
        self.move(only, DELETE_STARTED, DELETE_FINISHED)
        before = self.revision()
        with pytest.raises(InvalidRangeError, match="101 is above 100"):
            self.rlmm.raise_log_start_offset(self.tp, 101)
        assert self.revision() == before
        assert self.rlmm.raise_log_start_offset(self.tp, 100).applied

    def test_the_reported_high_watermark_is_reached_and_not_passed(self) -> None:
        self.finished(0, 49)
        taken(self.rlmm, report_of(self.tp))
        with pytest.raises(InvalidRangeError, match="91 is above 90"):
            self.rlmm.raise_log_start_offset(self.tp, 91)
        assert self.rlmm.raise_log_start_offset(self.tp, 90).applied

    def test_finished_segments_count_if_the_report_is_behind(self) -> None:
        self.finished(0, 199, {0: 0, 3: 50})
        taken(self.rlmm, report_of(self.tp))
        assert self.rlmm.raise_log_start_offset(self.tp, 200).applied

    def test_segment_of_an_overruled_leader_does_not_extend_the_log_end(self) -> None:
        self.finished(0, 199)
        taken(self.rlmm, report_of(self.tp))
        with pytest.raises(InvalidRangeError, match="200 is above 90"):
            self.rlmm.raise_log_start_offset(self.tp, 200)

    def test_a_negative_offset_is_refused(self) -> None:
        self.finished(0, 99)
        with pytest.raises(InvalidRequestError, match=r"^log_start_offset"):
            self.rlmm.raise_log_start_offset(self.tp, -1)

    def test_a_partition_that_is_not_known_is_not_found(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.raise_log_start_offset(self.tp, 1)
        self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.raise_log_start_offset(self.tp, 1)


class LogStartGuards(RlmmContractPart):
    @pytest.fixture
    def copied(self) -> TopicIdPartition:
        self.finished(0, 99, broker_leader_epoch=3)
        return self.tp

    def test_an_older_leader_may_not_raise_it(self, copied: TopicIdPartition) -> None:
        with pytest.raises(FencedLeaderEpochError):
            self.rlmm.raise_log_start_offset(copied, 40, MutationContext(broker_leader_epoch=2))
        same = MutationContext(broker_leader_epoch=3)
        assert self.rlmm.raise_log_start_offset(copied, 40, same).applied

    @pytest.mark.parametrize("deleting", [False, True])
    def test_a_hold_holds_it(self, copied: TopicIdPartition, deleting: bool) -> None:
        hold(self.rlmm, copied)
        if deleting:
            put_deletion(self.rlmm, copied, MARKED)
        with pytest.raises(DeletionRefusedError, match="orders, partition 0: hold audit"):
            self.rlmm.raise_log_start_offset(copied, 40)

    def test_it_is_the_retention_owners(self, copied: TopicIdPartition) -> None:
        self.rlmm.put_topic_config(copied.topic_id, {"sediment.retention.owner": "rlm"})
        with pytest.raises(DeletionRefusedError, match="owner is rlm, not broker"):
            self.rlmm.raise_log_start_offset(copied, 40)
        owner = MutationContext(retention_owner=RetentionOwner.RLM)
        assert self.rlmm.raise_log_start_offset(copied, 40, owner).applied

    def test_refused_rise_changes_nothing(self, copied: TopicIdPartition) -> None:
        before = revision_of(self.rlmm, copied)
        with pytest.raises(ConcurrentUpdateError):
            self.rlmm.raise_log_start_offset(
                copied, 40, MutationContext(expected_revision=before - 1)
            )
        state = self.rlmm.partition_state(copied)
        assert (state.value.log_start_offset, state.revision) == (0, before)
