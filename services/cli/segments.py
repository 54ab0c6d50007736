"""List a partition's segments and its audit trail: `sediment segments` and `sediment events`."""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import partial

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_events,
    all_kept_segments,
    all_segments,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import is_tail
from services.cli.command import option, toggle
from services.cli.connections import Call, TopicPartition, command_group, with_services
from services.cli.names import find_partition
from services.cli.output import Cells, CommandError
from services.cli.tables import Wide
from services.views.documents import Json, event_as_json, fields_as_json, segment_as_json
from services.views.explanation import actor_text, change_text, end_offset_of
from services.views.texts import epochs_text, partition_text, size_text, state_text, time_text

app = command_group()


class State(StrEnum):
    """The state of a listed segment, as it is shown."""

    COPY_STARTED = "COPY_STARTED"
    FINISHED = "FINISHED"
    DELETE_STARTED = "DELETE_STARTED"


@app.command()
@with_services("rlmm", limit="--limit")
def segments(
    call: Call,
    topic_partition: TopicPartition,
    state: list[State] | None = option("Only those in this state; may be repeated."),
    offset: int | None = option("Only those that hold this offset.", min=0),
    kept: bool = toggle(
        "--kept",
        "Only those that a broker deleted and whose objects are still in the store, also "
        "of a topic that was deleted, whose name is enough.",
    ),
) -> None:
    """List a partition's segments in the tier, by offset.

    In every state: being copied, finished, being deleted. A tail is a copy of records whose local
    segment had not rolled; it is deleted once that segment is in the tier.
    """
    if kept and (state or offset is not None):
        raise CommandError("--kept: give neither --state nor --offset with it")
    with call.rlmm_client() as manager:
        if kept:
            found = kept_segments(manager, topic_partition)
            call.show_each(found, _kept_as_json, "kept segments", _kept_as_row)
            return
        tp = find_partition(manager, topic_partition)
        states = [each for each in RemoteLogSegmentState if state_text(each.value) in (state or ())]
        listed = all_segments(manager, tp, states=states, min_offset=offset)
        if offset is not None:
            listed = (each for each in listed if each.start_offset <= offset)
        as_object = partial(_segment_as_json, fields_as_json(tp))
        call.show_each(listed, as_object, "segments", _segment_as_row)


def _segment_as_json(partition: Json, segment: RemoteLogSegmentMetadata) -> Json:
    by = fields_as_json(segment, "broker_id", "broker_leader_epoch", "txn_idx_empty")
    return partition | segment_as_json(segment) | by


def kept_segments(
    manager: RemoteLogMetadataManager, name: str
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield the kept segments of a topic, or of a partition, which RLMM need not know any more."""
    yield from all_kept_segments(manager, topic=name)
    if topic := name.rpartition("-")[0]:
        of_topic = all_kept_segments(manager, topic=topic)
        yield from (each for each in of_topic if partition_text(each.topic_id_partition) == name)


def _kept_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    partition = fields_as_json(segment.topic_id_partition)
    return _segment_as_json(partition, segment) | fields_as_json(segment, "kept_until_ms")


def _kept_as_row(segment: RemoteLogSegmentMetadata) -> Cells:
    return {
        "partition": partition_text(segment.topic_id_partition),
        "offsets": f"{segment.start_offset}-{segment.end_offset}",
        "size": size_text(max(segment.segment_size_in_bytes, 0)),
        "kept until": time_text(segment.kept_until_ms or 0),
        Wide("segment id"): uuid_to_text(segment.remote_log_segment_id.id),
    }


def _segment_as_row(segment: RemoteLogSegmentMetadata) -> Cells:
    return {
        "offsets": f"{segment.start_offset}-{segment.end_offset}",
        "size": size_text(max(segment.segment_size_in_bytes, 0)),
        "state": state_text(segment.state.value) + (", tail" if is_tail(segment) else ""),
        "latest record": time_text(segment.max_timestamp_ms),
        Wide("epochs"): epochs_text(segment.segment_leader_epochs),
        Wide("segment id"): uuid_to_text(segment.remote_log_segment_id.id),
    }


@app.command()
@with_services("rlmm", limit="--last")
def events(
    call: Call,
    topic_partition: TopicPartition,
    segment: str = option("Only the events of this segment.", default="", metavar="ID"),
    plan: str = option("Only the events of this sweep.", default="", metavar="ID"),
    after_revision: int = option("Only events after this revision.", default=0, min=0),
) -> None:
    """Show who changed a partition, when and why, the latest last.

    For a partition that was deleted, pass TOPIC_ID:orders-0.
    """
    segment_id = uuid_from_text(segment, "--segment") if segment else None
    with call.rlmm_client() as manager:
        tp = find_partition(manager, topic_partition)
        listed = all_events(manager, EventQuery(tp, after_revision, segment_id, plan))
        partition = fields_as_json(tp)

        def as_object(event: PartitionEvent) -> Json:
            return partition | event_as_json(event)

        call.show_each(listed, as_object, "events", _event_as_row)


def _event_as_row(event: PartitionEvent) -> Cells:
    why = "; ".join(text for text in (event.reason, event.rule_detail) if text)
    to_state = event.to_state or ("none" if event.from_state else "")
    return {
        "time": time_text(event.at_ms),
        "change": change_text(replace(event, from_state="", to_state=to_state)),
        "end offset": end_offset_of(event) or "-",
        Wide("from"): state_text(event.from_state) or "-",
        Wide("revision"): event.revision,
        Wide("segment id"): "-" if event.segment_id is None else uuid_to_text(event.segment_id),
        Wide("plan"): event.plan_id or "-",
        Wide("repeats"): event.repeat_count,
        "by and why": f"{actor_text(event)}: {why or '-'}",
    }
