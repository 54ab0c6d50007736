"""List a partition's segments and its audit trail: `sediment segments` and `sediment events`."""

from typing import Annotated

import typer

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent
from services.api.remote_log_metadata_manager import all_events, all_segments
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.connections import (
    Call,
    TopicPartition,
    command_group,
    find_partition,
    with_services,
)
from services.views.documents import Json, fields_as_json
from services.views.explanation import change_text
from services.views.partition_facts import event_as_json, segment_as_json
from services.views.texts import partition_text, time_text

app = command_group()


@app.command()
@with_services("rlmm")
def segments(call: Call, topic_partition: TopicPartition) -> None:
    """List a partition's segments in the tier.

    In every state: being copied, finished, being deleted.
    """
    with call.rlmm_client() as manager:
        tp = find_partition(manager, topic_partition)
        columns = ("offsets", "epochs", "bytes", "state", "latest record", "segment id")
        found, title = all_segments(manager, tp), partition_text(tp)
        call.show_each(found, _segment_as_json, title, columns, _segment_as_row)


def _segment_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    by = fields_as_json(segment, "broker_id", "broker_leader_epoch", "txn_idx_empty")
    return segment_as_json(segment) | by


def _segment_as_row(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    epochs = " ".join(f"{e.leader_epoch}:{e.start_offset}" for e in segment.segment_leader_epochs)
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        epochs,
        segment.segment_size_in_bytes,
        segment.state.value,
        time_text(segment.max_timestamp_ms),
        uuid_to_text(segment.remote_log_segment_id.id),
    )


@app.command()
@with_services("rlmm")
def events(
    call: Call,
    topic_partition: TopicPartition,
    segment: Annotated[
        str, typer.Option(metavar="ID", help="Only the events of this segment.")
    ] = "",
    plan: Annotated[str, typer.Option(metavar="ID", help="Only the events of this sweep.")] = "",
    after_revision: Annotated[
        int, typer.Option(min=0, help="Only events after this revision.")
    ] = 0,
) -> None:
    """Show who changed a partition, when and why.

    For a partition that was deleted, pass TOPIC_ID:orders-0.
    """
    segment_id = uuid_from_text(segment, "--segment") if segment else None
    with call.rlmm_client() as manager:
        tp = find_partition(manager, topic_partition)
        found = all_events(manager, EventQuery(tp, after_revision, segment_id, plan))
        columns = ("revision", "time", "change", "segment id", "by", "reason", "plan", "times")
        call.show_each(found, event_as_json, partition_text(tp), columns, _event_as_row)


def _event_as_row(event: PartitionEvent) -> tuple[object, ...]:
    return (
        event.revision,
        time_text(event.at_ms),
        change_text(event),
        "-" if event.segment_id is None else uuid_to_text(event.segment_id),
        event.actor if event.broker_id < 0 else f"{event.actor}, broker {event.broker_id}",
        " ".join(text for text in (event.reason, event.rule_detail) if text) or "-",
        event.plan_id or "-",
        event.repeat_count,
    )
