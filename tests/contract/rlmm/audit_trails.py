"""Test the audit trail: the changes of a partition, with their actors, times and reasons."""

from typing import Any
from uuid import uuid4

import pytest

from services.api.calls import MutationContext
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_events,
)
from services.api.segment_batches import SegmentAddition
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
    segment,
    update_to,
)

CONTEXT = MutationContext(
    request_id="one",
    reason="retention.ms",
    rule_detail="1 < 2",
    plan_id="plan-1",
    broker_leader_epoch=7,
)


def revisions(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, **query: Any) -> list[int]:
    return [event.revision for event in all_events(rlmm, EventQuery(tp, **query))]


class AuditTrails(RlmmContractPart):
    def test_event_has_the_change_its_actor_and_its_reason(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, 7)], [], BROKER)
        made = self.add(self.segment(0, 9, broker_leader_epoch=7), FINISHED)
        self.move(made, DELETE_STARTED, context=CONTEXT)
        self.move(made, DELETE_STARTED, context=CONTEXT)
        page = self.rlmm.list_events(EventQuery(self.tp))
        assert (page.revision, page.next_page_token) == (4, "")
        assert [event.kind for event in page.events] == ["LEADERSHIP", *["SEGMENT"] * 3]
        first, _, _, last = page.events
        assert (first.segment_id, first.from_state, first.to_state, first.key) == (None, "", "", "")
        assert (first.broker_id, first.broker_leader_epoch) == (BROKER, 7)
        assert (last.from_state, last.to_state) == (
            "COPY_SEGMENT_FINISHED",
            "DELETE_SEGMENT_STARTED",
        )
        assert last.segment_id == id_of(made)
        assert last.key == f"{uuid_to_text(self.tp.topic_id)}:0:9:7"
        why = (last.request_id, last.reason, last.rule_detail, last.plan_id)
        assert why == ("one", "retention.ms", "1 < 2", "plan-1")
        assert (last.broker_id, last.broker_leader_epoch) == (BROKER, 7)
        assert [event.repeat_count for event in page.events] == [0, 0, 0, 1]
        assert last.actor
        assert last.call_id
        assert 0 < first.at_ms <= last.at_ms

    def test_batches_write_the_events_that_single_calls_do(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        singly, together = self.segment(0, 9), segment(other, 0, 9)
        self.rlmm.add_remote_log_segment_metadata(singly, CONTEXT)
        self.rlmm.add_remote_log_segment_metadata_batch([SegmentAddition(together, CONTEXT)])
        for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
            why = MutationContext(request_id=state.value, plan_id="plan-1")
            self.move(singly, state, context=why)
            update = SegmentUpdate(update_to(together, state), why)
            self.rlmm.update_remote_log_segment_metadata_batch([update])
        reported = [
            [
                (e.revision, e.kind, e.from_state, e.to_state, e.request_id, e.plan_id, e.broker_id)
                for e in all_events(self.rlmm, EventQuery(partition))
            ]
            for partition in (self.tp, other)
        ]
        assert reported[0] == reported[1]
        assert len(reported[0]) == 4

    def test_events_come_in_pages_without_gaps(self) -> None:
        for start in range(3):
            self.finished(start, start)
        token, seen = "", []
        while True:
            page = self.rlmm.list_events(EventQuery(self.tp), page_size=4, page_token=token)
            seen.append([event.revision for event in page.events])
            token = page.next_page_token
            if not token:
                break
        assert seen == [[1, 2, 3, 4], [5, 6]]
        assert revisions(self.rlmm, self.tp, after_revision=4) == [5, 6]
        assert revisions(self.rlmm, self.tp, after_revision=6) == []
        assert len(self.rlmm.list_events(EventQuery(self.tp), page_size=6).events) == 6
        assert self.rlmm.list_events(EventQuery(self.tp), page_size=6).next_page_token == ""

    def test_events_of_one_segment_or_sweep(self) -> None:
        first, second = self.finished(0, 0), self.finished(1, 1)
        self.move(first, DELETE_STARTED, context=MutationContext(plan_id="plan-1"))
        self.move(second, DELETE_STARTED, context=MutationContext(plan_id="plan-2"))
        assert revisions(self.rlmm, self.tp, segment_id=id_of(first)) == [1, 2, 5]
        assert revisions(self.rlmm, self.tp, plan_id="plan-2") == [6]
        assert revisions(self.rlmm, self.tp, plan_id="plan-2", segment_id=id_of(first)) == []
        assert revisions(self.rlmm, self.tp, segment_id=id_of(second), after_revision=4) == [6]
        page = self.rlmm.list_events(EventQuery(self.tp, segment_id=id_of(first)), page_size=2)
        assert [event.revision for event in page.events] == [1, 2]
        assert page.next_page_token

    def test_the_events_of_a_deleted_partition_are_kept(self) -> None:
        self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        page = self.rlmm.list_events(EventQuery(self.tp))
        assert [event.to_state for event in page.events] == [
            "DELETE_PARTITION_MARKED",
            "DELETE_PARTITION_STARTED",
            "DELETE_PARTITION_FINISHED",
        ]
        assert page.revision == 3

    def test_events_of_an_unknown_partition_are_not_found(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_events(EventQuery(self.tp))

    def test_a_page_of_events_is_asked_for_rightly(self) -> None:
        self.finished(0, 9)
        with pytest.raises(InvalidRequestError, match="page_size: must not be negative"):
            self.rlmm.list_events(EventQuery(self.tp), page_size=-1)
        with pytest.raises(InvalidRequestError, match="page_token: not a page token"):
            self.rlmm.list_events(EventQuery(self.tp), page_token="nonsense")
        with pytest.raises(InvalidRequestError, match="plan_id: must not contain NUL"):
            self.rlmm.list_events(EventQuery(self.tp, plan_id="a\0b"))
        token = self.rlmm.list_events(EventQuery(self.tp), page_size=1).next_page_token
        with pytest.raises(InvalidRequestError, match="page_token: is of another query"):
            self.rlmm.list_events(EventQuery(self.tp, segment_id=uuid4()), page_token=token)
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with pytest.raises(InvalidRequestError, match="topic: topic id"):
            self.rlmm.list_events(EventQuery(renamed))
