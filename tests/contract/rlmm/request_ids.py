"""Test request ids, with which a client retries after a lost response."""

from dataclasses import replace

import pytest

from services.api.calls import MutationContext
from services.api.errors import InvalidRequestError, InvalidStateTransitionError
from services.api.ids import TopicIdPartition
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_STARTED,
    RlmmContractPart,
    segment,
)

ONE = MutationContext(request_id="one", reason="copy")


class RequestIds(RlmmContractPart):
    def test_an_add_again_answers_its_outcome_even_in_a_later_state(self) -> None:
        only = self.segment(0, 9)
        first = self.rlmm.add_remote_log_segment_metadata(only, ONE)
        self.move(only, FINISHED)
        before = self.revision()
        assert self.rlmm.add_remote_log_segment_metadata(only, ONE) == first
        assert first.applied
        assert self.revision() == before

    def test_an_update_again_answers_its_outcome_even_in_a_later_state(self) -> None:
        only = self.add(self.segment(0, 9))
        first = self.move(only, FINISHED, context=ONE)
        self.move(only, DELETE_STARTED)
        assert self.move(only, FINISHED, context=ONE) == first

    def test_a_deletion_again_answers_its_outcome(self) -> None:
        first = self.put_deletion(MARKED, context=ONE)
        self.put_deletion(PARTITION_STARTED)
        assert self.put_deletion(MARKED, context=ONE) == first
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
    def test_the_same_id_for_another_reason_is_refused(self, other: MutationContext) -> None:
        only = self.segment(0, 9)
        self.rlmm.add_remote_log_segment_metadata(only, ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.add_remote_log_segment_metadata(only, other)

    def test_the_same_id_for_another_change_is_refused(self) -> None:
        only = self.segment(0, 9)
        self.rlmm.add_remote_log_segment_metadata(only, ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.move(only, FINISHED, context=ONE)
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.put_deletion(MARKED, context=ONE)

    def test_another_partition_may_use_the_same_id(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        self.rlmm.add_remote_log_segment_metadata(self.segment(0, 9), ONE)
        assert self.rlmm.add_remote_log_segment_metadata(segment(other, 0, 9), ONE).applied

    def test_a_refused_call_is_not_remembered(self) -> None:
        only = self.add(self.segment(0, 9))
        other = self.add(self.segment(10, 19), DELETE_STARTED)
        with pytest.raises(InvalidStateTransitionError):
            self.move(other, FINISHED, context=ONE)
        assert self.move(only, FINISHED, context=ONE).applied

    def test_without_an_id_the_state_alone_decides(self) -> None:
        only = self.segment(0, 9)
        self.rlmm.add_remote_log_segment_metadata(only)
        assert self.rlmm.add_remote_log_segment_metadata(only).applied is False
        self.move(only, FINISHED)
        with pytest.raises(InvalidStateTransitionError):
            self.rlmm.add_remote_log_segment_metadata(only)
