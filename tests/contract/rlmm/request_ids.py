"""Test request ids, with which a client retries after a lost response."""

from dataclasses import replace

import pytest

from services.api.calls import MutationContext
from services.api.errors import InvalidRequestError, InvalidStateTransitionError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_STARTED,
    RlmmContractPart,
    add,
    move,
    put_deletion,
    revision_of,
    segment,
)

ONE = MutationContext(request_id="one", reason="copy")


class RequestIds(RlmmContractPart):
    def test_an_add_again_answers_its_outcome_even_in_a_later_state(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = segment(tp, 0, 9)
        first = rlmm.add_remote_log_segment_metadata(only, ONE)
        move(rlmm, only, FINISHED)
        before = revision_of(rlmm, tp)
        assert rlmm.add_remote_log_segment_metadata(only, ONE) == first
        assert first.applied
        assert revision_of(rlmm, tp) == before

    def test_an_update_again_answers_its_outcome_even_in_a_later_state(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        first = move(rlmm, only, FINISHED, context=ONE)
        move(rlmm, only, DELETE_STARTED)
        assert move(rlmm, only, FINISHED, context=ONE) == first

    def test_a_deletion_again_answers_its_outcome(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first = put_deletion(rlmm, tp, MARKED, context=ONE)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        assert put_deletion(rlmm, tp, MARKED, context=ONE) == first
        assert first.applied

    @pytest.mark.parametrize(
        "other",
        [
            replace(ONE, reason="another"),
            replace(ONE, plan_id="p"),
            replace(ONE, rule_detail="d"),
            replace(ONE, broker_leader_epoch=3),
            replace(ONE, retention_owner=RetentionOwner.RLM),
        ],
        ids=["reason", "plan_id", "rule_detail", "broker_leader_epoch", "retention_owner"],
    )
    def test_the_same_id_for_another_reason_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, other: MutationContext
    ) -> None:
        only = segment(tp, 0, 9)
        rlmm.add_remote_log_segment_metadata(only, ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            rlmm.add_remote_log_segment_metadata(only, other)

    def test_the_same_id_for_another_change_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = segment(tp, 0, 9)
        rlmm.add_remote_log_segment_metadata(only, ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            move(rlmm, only, FINISHED, context=ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            put_deletion(rlmm, tp, MARKED, context=ONE)

    def test_another_partition_may_use_the_same_id(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        other = TopicIdPartition(tp.topic_id, tp.topic, 1)
        rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), ONE)
        assert rlmm.add_remote_log_segment_metadata(segment(other, 0, 9), ONE).applied

    def test_a_refused_call_is_not_remembered(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        other = add(rlmm, segment(tp, 10, 19), DELETE_STARTED)
        with pytest.raises(InvalidStateTransitionError):
            move(rlmm, other, FINISHED, context=ONE)
        assert move(rlmm, only, FINISHED, context=ONE).applied

    def test_without_an_id_the_state_alone_decides(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = segment(tp, 0, 9)
        rlmm.add_remote_log_segment_metadata(only)
        assert rlmm.add_remote_log_segment_metadata(only).applied is False
        move(rlmm, only, FINISHED)
        with pytest.raises(InvalidStateTransitionError):
            rlmm.add_remote_log_segment_metadata(only)
