"""Read from RLMM the facts behind `sediment explain`, and build its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from uuid import UUID

from services.api.errors import PermissionDeniedError, RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import AnomalyQuery, RecordedAnomaly
from services.api.partitions import EventQuery, PartitionEvent, PartitionState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_anomalies,
    all_events,
    all_partitions,
    latest_event,
    segments_by_id,
)
from services.api.retention_explained import (
    KafkasPart,
    PartitionExplanation,
    RetentionCase,
    SegmentExplanation,
    kafkas_part,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import StoredTopicConfig
from services.common.retry import replan
from services.rlm.retention.snapshot import read_snapshot
from services.views.documents import Json, as_json, fields_as_json

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.value
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED.value


@dataclass(frozen=True, slots=True)
class PartitionCase:
    """A known partition at one revision, as the rules of retention see it."""

    name: TopicIdPartition
    topic: StoredTopicConfig
    revision: int
    case: RetentionCase

    @property
    def kafka(self) -> KafkasPart | None:
        """Return what Kafka does, if a broker tiers the partition by itself."""
        return kafkas_part(self.case.segments, self.case.state)


@dataclass(frozen=True, slots=True)
class PartitionFacts(PartitionCase):
    """A known partition with its place in the tier's list and its audit trail.

    Attributes:
        log_start_raised: the last event that raised the log start; None if no such event is kept.
    """

    summary: PartitionSummary
    log_start_raised: PartitionEvent | None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment that RLMM knows or has known.

    Attributes:
        metadata: None if it was purged and only its events are left.
        events: the events that are kept, ascending by revision.
    """

    id: UUID
    metadata: RemoteLogSegmentMetadata | None
    events: tuple[PartitionEvent, ...]

    @property
    def deletion(self) -> PartitionEvent | None:
        """Return the event that decided the deletion: the first mark."""
        return next((e for e in self.events if e.to_state == _DELETING), None)

    @property
    def since(self) -> PartitionEvent | None:
        """Return the event that led to the current state."""
        state = None if self.metadata is None else self.metadata.state.value
        return next((e for e in self.events if e.to_state == state), None)


def partition_case(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> PartitionCase:
    """Read everything that retention needs of a partition, at one revision.

    Raises:
        RemoteResourceNotFoundError: the partition is unknown or was removed.
        ConcurrentUpdateError: the partition changes faster than it can be read.
    """
    topic = manager.topic_config(name.topic_id)
    state = partial(manager.partition_state, name)
    snapshot = replan(partial(read_snapshot, manager, name), state)
    case = RetentionCase(
        segments=snapshot.segments,
        state=snapshot.state,
        config=topic.config,
        earlier=topic.earlier_config,
        waits_until_ms=topic.waits_until_ms,
        now_ms=snapshot.state.read_at_ms,
        being_copied=frozenset(s.remote_log_segment_id.id for s in snapshot.young_copies()),
    )
    return PartitionCase(name, topic, snapshot.revision, case)


def partition_facts(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> PartitionFacts:
    """Read a partition, its summary, and the event that raised its log start.

    Raises as partition_case.
    """
    read = partition_case(manager, name)
    known = (s for s in all_partitions(manager, topic=name.topic) if s.topic_id_partition == name)
    summary = next(known, None) or PartitionSummary(name, None, read.revision)
    raised = latest_event(
        manager, EventQuery(name), read.revision, lambda event: event.kind == "LOG_START"
    )
    return PartitionFacts(name, read.topic, read.revision, read.case, summary, raised)


def segment_facts(
    manager: RemoteLogMetadataManager,
    name: TopicIdPartition,
    id: UUID,
    max_events: int | None = None,
) -> SegmentFacts | None:
    """Read a segment, even if it or its partition is gone; None if RLMM has no trace of it.

    Args:
        max_events: the most events to read; None for all.

    Raises:
        RemoteResourceNotFoundError: no such partition ever existed.
    """
    events = tuple(islice(all_events(manager, EventQuery(name, segment_id=id)), max_events))
    try:
        metadata = next(segments_by_id(manager, name, [id]), None)
    except RemoteResourceNotFoundError:
        metadata = None
    return SegmentFacts(id, metadata, events) if metadata is not None or events else None


def segment_anomalies(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, id: UUID
) -> list[RecordedAnomaly] | None:
    """List what checks found wrong with a segment; None if the caller may not see it."""
    try:
        listed = all_anomalies(manager, AnomalyQuery(topic_id=name.topic_id))
        return [each for each in listed if each.anomaly.segment_id == id]
    except PermissionDeniedError:
        return None


def deletions_of_partition(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> list[PartitionEvent]:
    """List the events of a partition's own deletion.

    Raises:
        RemoteResourceNotFoundError: no such partition ever existed.
    """
    events = all_events(manager, EventQuery(name))
    return [event for event in events if event.kind == "PARTITION_DELETE"]


def deleted_segment_at(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, offset: int
) -> UUID | None:
    """Find the deleted segment with the lowest end offset at or above `offset`.

    If there are several, returns the last to be deleted. Reads the whole audit trail.
    """
    best: tuple[int, UUID] | None = None
    for event in all_events(manager, EventQuery(name)):
        if event.segment_id is None or (event.from_state, event.to_state) != (_FINISHED, _DELETING):
            continue
        end_offset = int(event.key.split(":")[2])
        if end_offset >= offset and (best is None or end_offset <= best[0]):
            best = end_offset, event.segment_id
    return None if best is None else best[1]


def partition_as_json(facts: PartitionFacts, explanation: PartitionExplanation) -> Json:
    state, plan = facts.case.state, explanation.plan
    return {
        **fields_as_json(facts.name),
        "revision": facts.revision,
        "config_revision": facts.topic.revision,
        "read_at_ms": facts.case.now_ms,
        "settings": {
            name: {"value": value, "is_set": is_set}
            for name, value, is_set in settings_that_count(facts)
        },
        **fields_as_json(facts.summary, "delete_state", "marked_at_ms"),
        **fields_as_json(state, "log_start_offset", "gaps", "holds"),
        "log_start_raised": as_json(facts.log_start_raised),
        "report": report_as_json(state),
        "polled_log": as_json(facts.kafka),
        **fields_as_json(explanation, "size_note", "oldest", "on_hold", "next"),
        "due": as_json(plan.deletions),
        "due_bytes": plan.deleted_size_bytes,
        "notes": list(plan.notes),
    }


def settings_that_count(facts: PartitionFacts) -> list[tuple[str, str, bool]]:
    """List the settings that decide, each with its value as text and whether it is set."""
    config, entries = facts.topic.config, facts.topic.entries
    owner = config.retention_owner
    values = {
        "retention.ms": str(config.retention_ms),
        "retention.bytes": str(config.retention_bytes),
        "sediment.retention.owner": "rlm" if owner is None else owner.value,
    }
    return [(name, value, name in entries) for name, value in values.items()]


def segment_facts_as_json(
    name: TopicIdPartition,
    facts: SegmentFacts,
    explanation: SegmentExplanation | None,
    verdict: str,
    anomalies: Sequence[RecordedAnomaly] | None,
) -> Json:
    """Describe a segment.

    Args:
        explanation: None if retention does not consider it.
        anomalies: None if they could not be read.
    """
    return {
        **fields_as_json(name),
        "segment_id": uuid_to_text(facts.id),
        "segment": as_json(facts.metadata),
        "verdict": verdict,
        "retention": as_json(explanation),
        "anomalies": as_json(anomalies),
        **fields_as_json(facts, "since", "deletion", "events"),
    }


def report_as_json(state: PartitionState) -> Json | None:
    """Describe the latest report of the leader; None if there is none."""
    if state.report is None:
        return None
    names = ("log_end_offset", "lag_bytes", "only_local_bytes", "copied_through_offset")
    described = fields_as_json(state.report, "broker_id", "leader_epoch", *names)
    return {"age_ms": state.report_age_ms, **described}
