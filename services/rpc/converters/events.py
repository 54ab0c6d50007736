"""The audit trail, remote_log_metadata_manager.proto."""

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partition_events import EventPage, EventQuery, PartitionEvent
from services.api.validation import within
from services.rpc.converters.shared import (
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def event_query_to_proto(
    query: EventQuery, page_size: int, page_token: str
) -> pb.ListEventsRequest:
    return pb.ListEventsRequest(
        topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
        after_revision=query.after_revision,
        segment_id="" if query.segment_id is None else uuid_to_text(query.segment_id),
        plan_id=query.plan_id,
        page_size=page_size,
        page_token=page_token,
    )


def event_query_from_proto(message: pb.ListEventsRequest) -> EventQuery:
    with within("topic_id_partition"):
        tp = topic_id_partition_from_proto(message.topic_id_partition)
    segment_id = message.segment_id
    return EventQuery(
        tp,
        after_revision=message.after_revision,
        segment_id=uuid_from_text(segment_id, "segment_id") if segment_id else None,
        plan_id=message.plan_id,
    )


def event_page_to_proto(page: EventPage) -> pb.ListEventsResponse:
    return pb.ListEventsResponse(
        events=[_event_to_proto(event) for event in page.events],
        next_page_token=page.next_page_token,
        revision=page.revision,
    )


def event_page_from_proto(message: pb.ListEventsResponse) -> EventPage:
    return EventPage(
        events=tuple(_event_from_proto(event) for event in message.events),
        next_page_token=message.next_page_token,
        revision=message.revision,
    )


def _event_to_proto(event: PartitionEvent) -> pb.PartitionEvent:
    return pb.PartitionEvent(
        revision=event.revision,
        at_ms=event.at_ms,
        kind=event.kind,
        from_state=event.from_state,
        to_state=event.to_state,
        segment_id="" if event.segment_id is None else uuid_to_text(event.segment_id),
        key=event.key,
        actor=event.actor,
        call_id=event.call_id,
        request_id=event.request_id,
        reason=event.reason,
        rule_detail=event.rule_detail,
        plan_id=event.plan_id,
        broker_id=event.broker_id,
        broker_leader_epoch=event.broker_leader_epoch,
        repeat_count=event.repeat_count,
    )


def _event_from_proto(message: pb.PartitionEvent) -> PartitionEvent:
    segment_id = message.segment_id
    has_epoch = message.HasField("broker_leader_epoch")
    return PartitionEvent(
        revision=message.revision,
        at_ms=message.at_ms,
        kind=message.kind,
        from_state=message.from_state,
        to_state=message.to_state,
        segment_id=uuid_from_text(segment_id, "segment_id") if segment_id else None,
        key=message.key,
        actor=message.actor,
        call_id=message.call_id,
        request_id=message.request_id,
        reason=message.reason,
        rule_detail=message.rule_detail,
        plan_id=message.plan_id,
        broker_id=message.broker_id,
        broker_leader_epoch=message.broker_leader_epoch if has_epoch else None,
        repeat_count=message.repeat_count,
    )
