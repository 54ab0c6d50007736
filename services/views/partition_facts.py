"""Read from RLMM the facts behind `sediment explain`, and build its JSON."""

from dataclasses import asdict, dataclass
from functools import partial
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent, PartitionReport
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_events,
    all_partitions,
    latest_event,
    segments_by_id,
)
from services.api.retention import Deletion
from services.api.retention_explained import (
    Due,
    KafkasPart,
    PartitionExplanation,
    RetentionCase,
    SegmentExplanation,
    kafkas_part,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import StoredTopicConfig
from services.common.retry import replan
from services.rlm.retention.snapshot import Snapshot, read_snapshot
from services.views.documents import Json, fields_as_json

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.value
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED.value


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A known partition at one revision.

    Attributes:
        log_start_raised: the last event that raised the log start; None if no such event is kept.
    """

    name: TopicIdPartition
    topic: StoredTopicConfig
    summary: PartitionSummary
    revision: int
    case: RetentionCase
    log_start_raised: PartitionEvent | None

    @property
    def kafka(self) -> KafkasPart | None:
        """Return what Kafka does, if a broker tiers the partition by itself."""
        return kafkas_part(self.case.segments, self.case.state)


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


def partition_facts(manager: RemoteLogMetadataManager, name: TopicIdPartition) -> PartitionFacts:
    """Read a partition at one revision.

    Raises:
        RemoteResourceNotFoundError: the partition is unknown or was removed.
        ConcurrentUpdateError: the partition changes faster than it can be read.
    """
    topic, snapshot = read_partition(manager, name)
    known = (s for s in all_partitions(manager, topic=name.topic) if s.topic_id_partition == name)
    summary = next(known, None)
    case = RetentionCase(
        segments=snapshot.segments,
        state=snapshot.state,
        config=topic.config,
        now_ms=snapshot.state.read_at_ms,
        being_copied=frozenset(s.remote_log_segment_id.id for s in snapshot.young_copies()),
    )
    return PartitionFacts(
        name=name,
        topic=topic,
        summary=summary or PartitionSummary(name, None, snapshot.revision),
        revision=snapshot.revision,
        case=case,
        log_start_raised=latest_event(
            manager, EventQuery(name), snapshot.revision, lambda event: event.kind == "LOG_START"
        ),
    )


def segment_facts(
    manager: RemoteLogMetadataManager, name: TopicIdPartition, id: UUID
) -> SegmentFacts | None:
    """Read a segment, even if it or its partition is gone; None if RLMM has no trace of it.

    Raises:
        RemoteResourceNotFoundError: no such partition ever existed.
    """
    events = tuple(all_events(manager, EventQuery(name, segment_id=id)))
    try:
        metadata = next(segments_by_id(manager, name, [id]), None)
    except RemoteResourceNotFoundError:
        metadata = None
    return SegmentFacts(id, metadata, events) if metadata is not None or events else None


def deletions_of_partition(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> list[PartitionEvent]:
    """List the events of a partition's own deletion.

    Raises:
        RemoteResourceNotFoundError: no such partition ever existed.
    """
    found = all_events(manager, EventQuery(name))
    return [event for event in found if event.kind == "PARTITION_DELETE"]


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
    state, delete_state = facts.case.state, facts.summary.delete_state
    return {
        **fields_as_json(facts.name),
        "revision": facts.revision,
        "config_revision": facts.topic.revision,
        "read_at_ms": facts.case.now_ms,
        "settings": {
            name: {"value": value, "is_set": is_set}
            for name, value, is_set in settings_that_count(facts)
        },
        "delete_state": None if delete_state is None else delete_state.value,
        "marked_at_ms": facts.summary.marked_at_ms,
        "log_start_offset": state.log_start_offset,
        "log_start_raised": _event_or_none(facts.log_start_raised),
        "report": None if state.report is None else _report(state.report, state.report_age_ms),
        "polled_log": kafka_as_json(facts.kafka),
        "size_note": explanation.size_note,
        "oldest": None if explanation.oldest is None else segment_as_json(explanation.oldest),
        "due": [*map(deletion_as_json, explanation.plan.deletions)],
        "due_bytes": explanation.plan.deleted_size_bytes,
        "on_hold": [*map(deletion_as_json, explanation.on_hold)],
        "next": None if explanation.next is None else explanation_as_json(explanation.next),
        "gaps": [asdict(gap) for gap in state.gaps],
        "export_positions": [asdict(export) for export in state.export_positions],
        "notes": list(explanation.plan.notes),
    }


def settings_that_count(facts: PartitionFacts) -> list[tuple[str, str, bool]]:
    """List the settings that decide, each with its value as text and whether it is set."""
    config, entries = facts.topic.config, facts.topic.entries
    owner = config.retention_owner
    values = {
        "retention.ms": str(config.retention_ms),
        "retention.bytes": str(config.retention_bytes),
        "sediment.retention.owner": "rlm" if owner is None else owner.value,
        "sediment.hold": str(config.hold).lower(),
        "sediment.sweep.paused": str(config.sweep_paused).lower(),
    }
    return [(name, value, name in entries) for name, value in values.items()]


def segment_facts_as_json(
    name: TopicIdPartition,
    facts: SegmentFacts,
    explanation: SegmentExplanation | None,
    verdict: str,
) -> Json:
    """Describe a segment; `explanation` is None if retention does not consider it."""
    metadata = facts.metadata
    return {
        **fields_as_json(name),
        "segment_id": uuid_to_text(facts.id),
        "segment": None if metadata is None else segment_as_json(metadata),
        "since": _event_or_none(facts.since),
        "verdict": verdict,
        "retention": None if explanation is None else explanation_as_json(explanation),
        "deletion": _event_or_none(facts.deletion),
        "events": [event_as_json(event) for event in facts.events],
    }


def explanation_as_json(explanation: SegmentExplanation) -> Json:
    return {
        "segment": segment_as_json(explanation.segment),
        "standing": explanation.standing.name,
        "due": _due(explanation.due),
        "once_clear": _due(explanation.once_clear),
        "bytes_missing": explanation.bytes_missing,
        "waits_for": None
        if explanation.waits_for is None
        else segment_as_json(explanation.waits_for),
        "divergence": None if explanation.divergence is None else asdict(explanation.divergence),
    }


def segment_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    shown = fields_as_json(
        segment,
        "start_offset",
        "end_offset",
        "max_timestamp_ms",
        "segment_size_in_bytes",
        "state",
        "copy_leased",
        "segment_leader_epochs",
    )
    return {"segment_id": uuid_to_text(segment.remote_log_segment_id.id), **shown}


def _event_or_none(event: PartitionEvent | None) -> Json | None:
    return None if event is None else event_as_json(event)


def _due(due: Due | None) -> Json | None:
    return None if due is None else {"at_ms": due.at_ms, **_rule(due.deletion)}


def deletion_as_json(deletion: Deletion) -> Json:
    return {**segment_as_json(deletion.segment), **_rule(deletion)}


def _rule(deletion: Deletion) -> Json:
    return {"reason": deletion.reason.value, "detail": deletion.detail}


def _report(report: PartitionReport, age_ms: int | None) -> Json:
    names = ("log_end_offset", "only_local_bytes", "copied_through_offset")
    return {"age_ms": age_ms, **fields_as_json(report, "broker_id", "leader_epoch", *names)}


def read_partition(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> tuple[StoredTopicConfig, Snapshot]:
    """Read everything that retention needs of a partition, at one revision.

    Raises:
        ConcurrentUpdateError: the partition changes faster than it can be read.
    """
    topic = manager.topic_config(name.topic_id)
    state = partial(manager.partition_state, name)
    return topic, replan(partial(read_snapshot, manager, name), state)


def kafka_as_json(kafka: KafkasPart | None) -> Json | None:
    if kafka is None:
        return None
    names = ("broker_id", "leader_epoch", "log_start_offset", "high_watermark")
    return {
        "age_ms": kafka.age_ms,
        **fields_as_json(kafka.log, *names),
        "leader_epochs": fields_as_json(kafka.log.lineage, "entries")["entries"],
        "expected_deletions": [uuid_to_text(s.remote_log_segment_id.id) for s in kafka.expected],
        "expected_bytes": kafka.expected_bytes,
    }


def event_as_json(event: PartitionEvent) -> Json:
    segment_id = "" if event.segment_id is None else uuid_to_text(event.segment_id)
    return {**fields_as_json(event), "segment_id": segment_id}
