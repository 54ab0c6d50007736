"""Turn values of the API into JSON: ids as text, enums by value, some in forms of their own."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import singledispatch
from uuid import UUID

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import RecordedAnomaly, RecordedRun
from services.api.partitions import PartitionEvent
from services.api.retention import Deletion
from services.api.retention_explained import Due, KafkasPart, SegmentExplanation
from services.api.segments import RemoteLogSegmentMetadata, SegmentLeaderEpoch
from services.api.superseded import is_tail

Json = dict[str, object]


@singledispatch
def as_json(value: object) -> object:
    """Return a value as JSON: a dataclass by its fields, unless it has its own form below."""
    if is_dataclass(value):
        return fields_as_json(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [as_json(each) for each in value]
    return value


as_json.register(UUID, uuid_to_text)


@as_json.register
def _enum_as_json(value: Enum) -> object:
    return value.value


@as_json.register
def _epoch_as_json(epoch: SegmentLeaderEpoch) -> object:
    return [epoch.leader_epoch, epoch.start_offset]


def fields_as_json(item: object, *names: str) -> Json:
    """Return the fields of a dataclass, or only these attributes; a TopicIdPartition as its own.

    No names: all fields.
    """
    document: Json = {}
    for name in names or [each.name for each in fields(item)]:  # type: ignore[arg-type]  # checked
        value = getattr(item, name)
        is_name = isinstance(value, TopicIdPartition)
        document |= fields_as_json(value) if is_name else {name: as_json(value)}
    return document


@as_json.register
def _explanation_as_json(explanation: SegmentExplanation) -> Json:
    return {**fields_as_json(explanation), "standing": explanation.standing.name}


@as_json.register
def segment_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    offsets = ("start_offset", "end_offset", "segment_leader_epochs")
    others = ("max_timestamp_ms", "segment_size_in_bytes", "state", "copy_leased")
    id = uuid_to_text(segment.remote_log_segment_id.id)
    fields = fields_as_json(segment, *offsets, *others)
    return {"segment_id": id, **fields, "tail": is_tail(segment)}


@as_json.register
def _due_as_json(due: Due) -> Json:
    return {"at_ms": due.at_ms, **fields_as_json(due.deletion, "reason", "detail")}


@as_json.register
def _deletion_as_json(deletion: Deletion) -> Json:
    return segment_as_json(deletion.segment) | fields_as_json(deletion, "reason", "detail")


@as_json.register
def _kafka_as_json(kafka: KafkasPart) -> Json:
    names = ("broker_id", "leader_epoch", "log_start_offset", "high_watermark")
    return {
        **fields_as_json(kafka, "age_ms", "expected_bytes"),
        **fields_as_json(kafka.log, *names),
        "leader_epochs": as_json(kafka.log.lineage.entries),
        "expected_deletions": [uuid_to_text(s.remote_log_segment_id.id) for s in kafka.expected],
    }


@as_json.register
def event_as_json(event: PartitionEvent) -> Json:
    return {**fields_as_json(event), "segment_id": as_json(event.segment_id) or ""}


@as_json.register
def anomaly_as_json(recorded: RecordedAnomaly) -> Json:
    when = fields_as_json(recorded, "first_seen_ms", "last_seen_ms", "times_seen", "run_id")
    return fields_as_json(recorded.anomaly) | when


@as_json.register
def _run_as_json(run: RecordedRun) -> Json:
    described = fields_as_json(run) | fields_as_json(run.counts)
    del described["counts"]
    return described
