"""Read from RLMM the facts that `sediment explain` shows, and format its verdicts."""

from dataclasses import dataclass
from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_events,
    all_partitions,
    latest_event,
    segments_by_id,
)
from services.api.retention import DEFAULT_COPY_GRACE_MS, Deletion
from services.api.retention_explained import (
    Due,
    PartitionExplanation,
    RetentionCase,
    SegmentExplanation,
    Standing,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, RetentionOwner, StoredTopicConfig
from services.cli.output import size_text, time_text
from services.cli.retention import disabled_text, read_partition
from spark_jobs.options import REMOVAL_GRACE_MS

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


_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def segment_text(segment: RemoteLogSegmentMetadata) -> str:
    id = uuid_to_text(segment.remote_log_segment_id.id)
    return f"{segment.start_offset}-{segment.end_offset} ({id})"


def rule_text(deletion: Deletion) -> str:
    return f"{deletion.reason.value}: {deletion.detail}"


def event_text(event: PartitionEvent) -> str:
    """Format the time, the actor and the reason of an event."""
    who = event.actor if event.broker_id < 0 else f"{event.actor}, broker {event.broker_id}"
    words = (
        event.reason,
        event.rule_detail,
        event.plan_id and f"plan {event.plan_id}",
        event.request_id and f"request {event.request_id}",
    )
    why = "; ".join(word for word in words if word)
    return f"at {time_text(event.at_ms)} by {who}: {why or 'no reason given'}"


def deleter_text(facts: PartitionFacts) -> str:
    """Describe which party deletes due segments, and when."""
    config = facts.topic.config
    if config.retention_owner is RetentionOwner.BROKER:
        return "the broker, by its own retention settings; RLMM only lets it"
    if config.retention_owner is not RetentionOwner.SWEEP:
        return "RLM of the leader's broker, with its next pass"
    if config.sweep_paused:
        return "no sweep while `sediment.sweep.paused` is set, then the next one"
    return "the next `sediment sweep retention --apply`"


def removal_text(facts: PartitionFacts) -> str | None:
    """Explain why the whole partition is removed; None if it is not."""
    state, marked_at_ms = facts.summary.delete_state, facts.summary.marked_at_ms
    if state is None:
        return disabled_text(facts.topic.config)
    since = "" if marked_at_ms is None else f", marked at {time_text(marked_at_ms)}"
    held = "; not while the topic is on hold" if facts.topic.config.hold else ""
    when, undo = "", "; only sediment.hold keeps what is left of it"
    if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
        undo = "; before that `sediment partitions undelete` takes it back, sediment.hold keeps it"
        if marked_at_ms is not None:
            earliest = time_text(marked_at_ms + REMOVAL_GRACE_MS)
            when = f", not before {earliest} (RLM_DELETION_GRACE_MS, by default)"
    return (
        f"{state.value}{since}: any RLM removes all of it, or `sediment sweep removal --apply`"
        f"{when}, whatever retention says{undo}{held}"
    )


def next_text(facts: PartitionFacts, explanation: PartitionExplanation) -> str:
    """Format the time at which the next segment is due by time alone."""
    if explanation.next is None:
        return "never as things stand: there is no segment that the rules may take next"
    return f"{segment_text(explanation.next.segment)}: {verdict_text(facts, explanation.next)}"


def size_rule_text(facts: PartitionFacts, explanation: PartitionExplanation) -> str:
    """Format the bytes that the size rule lacks for the next segment."""
    if facts.topic.config.retention_bytes == UNLIMITED:
        return "retention.bytes is not limited"
    if explanation.size_note or explanation.next is None:
        return explanation.size_note or "nothing to take"
    missing = explanation.next.bytes_missing
    if missing is None:
        return "no growth makes it due"
    return f"once the partition is {missing:,} bytes ({size_text(missing)}) larger"


def verdict_text(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    """Describe whether and when retention deletes the segment, and by which rule."""
    standing, due, once_clear = explanation.standing, explanation.due, explanation.once_clear
    if standing is Standing.DUE and due is not None:
        return f"due now, {rule_text(due.deletion)}; {deleter_text(facts)}"
    if standing is Standing.LATER and due is not None:
        return f"due at {_due_text(due)}, if nothing else changes"
    if standing is Standing.OBSTRUCTED and once_clear is not None:
        when = "now" if once_clear.at_ms == facts.case.now_ms else f"at {_due_text(once_clear)}"
        return f"held up by {_obstacle_text(facts, explanation)}; without that due {when}"
    if standing is Standing.NOT_JUDGED:
        return "; ".join(facts.case.plan().notes)
    return f"kept: {_why_kept(facts, explanation)}"


def deleted_text(facts: SegmentFacts) -> str | None:
    """Describe why and by which party a segment was deleted; None if no deletion has begun."""
    marked, last = facts.deletion, facts.events[-1] if facts.events else None
    if marked is None or last is None:
        return None
    if last.to_state == _DELETED.value:
        end = f"its objects were gone at {time_text(last.at_ms)}"
    else:
        end = "its objects are being deleted; the next deletion pass finishes it"
    return f"marked {event_text(marked)}; {end}"


def _due_text(due: Due) -> str:
    return f"{time_text(due.at_ms)}, {rule_text(due.deletion)}"


def _obstacle_text(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    if facts.topic.config.hold:
        return "the hold on the topic"
    copy = explanation.waits_for or explanation.segment
    what = "its own copy" if copy is explanation.segment else f"the copy of {segment_text(copy)}"
    if copy.copy_leased:
        return f"{what}, which is under way under a lease"
    until_ms = copy.event_timestamp_ms + DEFAULT_COPY_GRACE_MS
    return f"{what}, which counts as under way until it ends, or till {time_text(until_ms)}"


def _why_kept(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    config, segment = facts.topic.config, explanation.segment
    if explanation.divergence is not None:
        return (
            f"off the lineage, no rule takes it before the log start is above {segment.end_offset}"
        )
    if config.retention_ms == UNLIMITED and config.retention_bytes == UNLIMITED:
        return "neither retention.ms nor retention.bytes is limited"
    if explanation.bytes_missing is not None:
        return f"not due before the partition is {explanation.bytes_missing:,} bytes larger"
    if explanation.waits_for is not None:
        return f"the rules stop before it, at {segment_text(explanation.waits_for)}"
    return "retention.bytes alone is limited and cannot be applied now"
