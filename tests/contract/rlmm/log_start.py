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
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
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
    finished,
    move,
    put_deletion,
    revision_of,
)


class LogStarts(RlmmContractPart):
    def test_it_rises_and_every_read_of_it_agrees(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        assert rlmm.list_remote_log_segments(tp).log_start_offset == 0
        before = revision_of(rlmm, tp)
        outcome = rlmm.raise_log_start_offset(tp, 40)
        assert outcome == MutationOutcome(True, before + 1)
        page = rlmm.list_remote_log_segments(tp)
        same = rlmm.list_remote_log_segments(tp, if_revision_not=page.revision)
        assert (page.log_start_offset, page.revision, len(page.segments)) == (40, before + 1, 1)
        assert (same.log_start_offset, same.not_modified) == (40, True)
        state = rlmm.partition_state(tp)
        assert (state.value.log_start_offset, state.revision) == (40, before + 1)

    def test_a_partition_without_segments_lists_its_log_start(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 99)
        rlmm.raise_log_start_offset(tp, 100)
        move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
        page = rlmm.list_remote_log_segments(tp)
        assert (page.segments, page.log_start_offset) == ((), 100)

    @pytest.mark.parametrize("offset", [0, 39, 40])
    def test_it_never_falls(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, offset: int
    ) -> None:
        finished(rlmm, tp, 0, 99)
        raised = rlmm.raise_log_start_offset(tp, 40)
        assert rlmm.raise_log_start_offset(tp, offset) == MutationOutcome(False, raised.revision)
        assert rlmm.partition_state(tp).value.log_start_offset == 40
        assert revision_of(rlmm, tp) == raised.revision

    def test_a_repeat_is_judged_before_all_that_may_refuse(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99, broker_leader_epoch=3)
        raised = rlmm.raise_log_start_offset(tp, 40)
        rlmm.put_topic_config(tp.topic_id, {"sediment.hold": "true"})
        why = MutationContext(broker_leader_epoch=2, expected_revision=0)
        assert rlmm.raise_log_start_offset(tp, 40, why) == MutationOutcome(False, raised.revision)

    def test_a_request_again_is_answered_with_its_outcome(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        why = MutationContext(request_id="one")
        first = rlmm.raise_log_start_offset(tp, 40, why)
        rlmm.raise_log_start_offset(tp, 50)
        assert rlmm.raise_log_start_offset(tp, 40, why) == first
        with pytest.raises(InvalidRequestError, match="request_id"):
            rlmm.raise_log_start_offset(tp, 60, why)


class LogStartBounds(RlmmContractPart):
    def test_nothing_known_is_not_passed(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp)], [], BROKER)
        with pytest.raises(InvalidRangeError, match=r"^log_start_offset: 1 is above 0"):
            rlmm.raise_log_start_offset(tp, 1)

    def test_log_start_rises_no_further_than_the_finished_segments(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 49, {0: 0})
        only = finished(rlmm, tp, 50, 99, {1: 50, 2: 60})
        move(rlmm, only, DELETE_STARTED, DELETE_FINISHED)
        before = revision_of(rlmm, tp)
        with pytest.raises(InvalidRangeError, match="101 is above 100"):
            rlmm.raise_log_start_offset(tp, 101)
        assert revision_of(rlmm, tp) == before
        assert rlmm.raise_log_start_offset(tp, 100).applied

    def test_the_reported_high_watermark_is_reached_and_not_passed(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 49)
        taken(rlmm, report_of(tp))
        with pytest.raises(InvalidRangeError, match="91 is above 90"):
            rlmm.raise_log_start_offset(tp, 91)
        assert rlmm.raise_log_start_offset(tp, 90).applied

    def test_finished_segments_count_if_the_report_is_behind(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 199, {0: 0, 3: 50})
        taken(rlmm, report_of(tp))
        assert rlmm.raise_log_start_offset(tp, 200).applied

    def test_segment_of_an_overruled_leader_does_not_extend_the_log_end(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 199)
        taken(rlmm, report_of(tp))
        with pytest.raises(InvalidRangeError, match="200 is above 90"):
            rlmm.raise_log_start_offset(tp, 200)

    def test_a_negative_offset_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 99)
        with pytest.raises(InvalidRequestError, match=r"^log_start_offset"):
            rlmm.raise_log_start_offset(tp, -1)

    def test_a_partition_that_is_not_known_is_not_found(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.raise_log_start_offset(tp, 1)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.raise_log_start_offset(tp, 1)


class LogStartGuards(RlmmContractPart):
    @pytest.fixture
    def copied(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> TopicIdPartition:
        finished(rlmm, tp, 0, 99, broker_leader_epoch=3)
        return tp

    def test_an_older_leader_may_not_raise_it(
        self, rlmm: RemoteLogMetadataManager, copied: TopicIdPartition
    ) -> None:
        with pytest.raises(FencedLeaderEpochError):
            rlmm.raise_log_start_offset(copied, 40, MutationContext(broker_leader_epoch=2))
        same = MutationContext(broker_leader_epoch=3)
        assert rlmm.raise_log_start_offset(copied, 40, same).applied

    @pytest.mark.parametrize("deleting", [False, True])
    def test_a_hold_holds_it(
        self, rlmm: RemoteLogMetadataManager, copied: TopicIdPartition, deleting: bool
    ) -> None:
        rlmm.put_topic_config(copied.topic_id, {"sediment.hold": "true"})
        if deleting:
            put_deletion(rlmm, copied, MARKED)
        with pytest.raises(DeletionRefusedError, match=r"orders: sediment\.hold is set"):
            rlmm.raise_log_start_offset(copied, 40)

    def test_it_is_the_retention_owners(
        self, rlmm: RemoteLogMetadataManager, copied: TopicIdPartition
    ) -> None:
        rlmm.put_topic_config(copied.topic_id, {"sediment.retention.owner": "rlm"})
        with pytest.raises(DeletionRefusedError, match="owner is rlm, not broker"):
            rlmm.raise_log_start_offset(copied, 40)
        owner = MutationContext(retention_owner=RetentionOwner.RLM)
        assert rlmm.raise_log_start_offset(copied, 40, owner).applied

    def test_a_paused_sweep_may_not(
        self, rlmm: RemoteLogMetadataManager, copied: TopicIdPartition
    ) -> None:
        rlmm.put_topic_config(copied.topic_id, {"sediment.sweep.paused": "true"})
        sweep = MutationContext(retention_owner=RetentionOwner.SWEEP)
        with pytest.raises(DeletionRefusedError, match=r"sediment\.sweep\.paused"):
            rlmm.raise_log_start_offset(copied, 40, sweep)
        assert rlmm.raise_log_start_offset(copied, 40).applied

    def test_refused_rise_changes_nothing(
        self, rlmm: RemoteLogMetadataManager, copied: TopicIdPartition
    ) -> None:
        before = revision_of(rlmm, copied)
        with pytest.raises(ConcurrentUpdateError):
            rlmm.raise_log_start_offset(copied, 40, MutationContext(expected_revision=before - 1))
        state = rlmm.partition_state(copied)
        assert (state.value.log_start_offset, state.revision) == (0, before)
