"""Put into words why a segment is kept, due or deleted."""

from uuid import UUID

from services.api.errors import RemoteResourceNotFoundError
from services.api.holds import Mark, keeping_hold
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import PartitionEvent, PolledLog, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import (
    DEFAULT_COPY_GRACE_MS,
    REMOVAL_GRACE_MS,
    Deletion,
    RetentionPlan,
)
from services.api.retention_explained import (
    Due,
    KafkasPart,
    PartitionExplanation,
    SegmentExplanation,
    Standing,
    explain_segment,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, RetentionOwner, StoredTopicConfig, reason_to_retain
from services.views.partition_facts import (
    PartitionCase,
    PartitionFacts,
    SegmentFacts,
    partition_facts,
)
from services.views.texts import age_text, epochs_text, size_text, sized, state_text, time_text

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.value
Facts = list[tuple[str, str]]
MAX_SHOWN_EPOCHS = 20
_NAMED_STATES = ("SEGMENT", "PARTITION_DELETE")


def segment_text(segment: RemoteLogSegmentMetadata) -> str:
    id = uuid_to_text(segment.remote_log_segment_id.id)
    return f"{segment.start_offset}-{segment.end_offset} ({id})"


def rule_text(deletion: Deletion) -> str:
    return f"{deletion.reason.value}: {deletion.detail}"


def actor_text(event: PartitionEvent) -> str:
    return event.actor if event.broker_id < 0 else f"{event.actor}, broker {event.broker_id}"


def event_text(event: PartitionEvent) -> str:
    """Format the time, the actor and the reason of an event."""
    words = (
        event.reason,
        event.rule_detail,
        event.plan_id and f"plan {event.plan_id}",
        event.request_id and f"request {event.request_id}",
    )
    why = "; ".join(word for word in words if word)
    return f"at {time_text(event.at_ms)} by {actor_text(event)}: {why or 'no reason given'}"


def deleter_text(facts: PartitionFacts) -> str:
    """Describe which party deletes due segments, and when."""
    config = facts.topic.config
    if config.retention_owner is RetentionOwner.BROKER:
        return "the broker, by its own retention settings"
    if facts.kafka is not None:
        return "Kafka, by its own retention settings: a broker tiers the topic by itself"
    if config.retention_owner is not RetentionOwner.SWEEP:
        return "RLM of the leader's broker, with its next pass"
    return "the next `sediment sweep retention --apply`"


def removal_text(facts: PartitionFacts) -> str | None:
    """Explain why the whole partition is removed; None if it is not."""
    state, marked_at_ms = facts.summary.delete_state, facts.summary.marked_at_ms
    if state is None:
        return disabled_text(facts.topic)
    since = "" if marked_at_ms is None else f", marked at {time_text(marked_at_ms)}"
    held = "; not while it is on hold" if facts.summary.is_on_hold else ""
    when, undo = "", "; only `sediment holds set` keeps what is left of it"
    if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
        undo = (
            "; before that `sediment partitions undelete` removes the mark, `sediment holds set` "
            "keeps it"
        )
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
        return "never in the current state: no further segment can expire"
    return f"{segment_text(explanation.next.segment)}: {verdict_text(facts, explanation.next)}"


def size_rule_text(facts: PartitionFacts, explanation: PartitionExplanation) -> str:
    """Format the bytes that the size rule lacks for the next segment."""
    if facts.topic.config.retention_bytes == UNLIMITED:
        return "retention.bytes is not limited"
    if explanation.size_note or explanation.next is None:
        return explanation.size_note or "no segment can expire"
    missing = explanation.next.bytes_missing
    if missing is None:
        return "never, however large the partition grows"
    return f"once the partition is {missing:,} bytes ({size_text(missing)}) larger"


def verdict_text(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    """Describe whether and when retention deletes the segment, and by which rule."""
    standing, due, once_clear = explanation.standing, explanation.due, explanation.once_clear
    if standing is Standing.DUE and due is not None:
        return f"due now, {rule_text(due.deletion)}; {deleter_text(facts)}"
    if standing is Standing.LATER and due is not None:
        waits = facts.topic.waits_until_ms == due.at_ms
        why = ", by settings that changed and wait until then" if waits else ""
        return f"due at {_due_text(due)}{why}, if nothing else changes"
    if standing is Standing.OBSTRUCTED and once_clear is not None:
        when = "now" if once_clear.at_ms == facts.case.now_ms else f"at {_due_text(once_clear)}"
        return f"blocked by {_obstacle_text(facts, explanation)}; otherwise due {when}"
    if standing is Standing.NOT_JUDGED and facts.kafka is not None:
        return _kafkas_verdict(facts.kafka, explanation.segment)
    if standing is Standing.NOT_JUDGED:
        return "; ".join(facts.case.plan().notes)
    return f"kept: {_why_kept(facts, explanation)}"


def _kafkas_verdict(kafka: KafkasPart, segment: RemoteLogSegmentMetadata) -> str:
    start = kafka.log.log_start_offset
    if segment.end_offset < start:
        return f"Kafka is expected to delete it: its log start is {start}, above the segment"
    return f"kept until Kafka, its retention owner, deletes it; Kafka's log start is {start}"


def deleted_text(facts: SegmentFacts) -> str | None:
    """Describe why and by which party a segment was deleted; None if no deletion has begun."""
    marked, last = facts.deletion, facts.events[-1] if facts.events else None
    if marked is None or last is None:
        return None
    kept_until_ms = facts.metadata.kept_until_ms if facts.metadata else None
    if kept_until_ms is not None:
        end = f"its objects are kept until {time_text(kept_until_ms)}"
    elif last.to_state == _DELETED:
        end = f"its objects were deleted at {time_text(last.at_ms)}"
    else:
        end = "its objects are being deleted; the next deletion pass finishes it"
    return f"marked {event_text(marked)}; {end}"


def _due_text(due: Due) -> str:
    return f"{time_text(due.at_ms)}, {rule_text(due.deletion)}"


def _obstacle_text(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    state, segment = facts.case.state, explanation.segment
    first_offset = min(segment.start_offset, state.log_start_offset)
    hold = keeping_hold(state.holds, Mark.SEGMENT, first_offset, segment.end_offset)
    if hold is not None:
        return str(hold)
    copy = explanation.waits_for or explanation.segment
    what = "its own copy" if copy is explanation.segment else f"the copy of {segment_text(copy)}"
    if copy.copy_leased:
        return f"{what}, which is in progress under a lease"
    until_ms = copy.event_timestamp_ms + DEFAULT_COPY_GRACE_MS
    return f"{what}, which counts as in progress until it ends, or until {time_text(until_ms)}"


def _why_kept(facts: PartitionFacts, explanation: SegmentExplanation) -> str:
    config, segment = facts.topic.config, explanation.segment
    if explanation.divergence is not None:
        return f"off the lineage; deleted once the log start offset is above {segment.end_offset}"
    if config.retention_ms == UNLIMITED and config.retention_bytes == UNLIMITED:
        return "neither retention.ms nor retention.bytes is limited"
    if explanation.bytes_missing is not None:
        return f"not due before the partition is {explanation.bytes_missing:,} bytes larger"
    if explanation.waits_for is not None:
        return f"retention stops before it, at {segment_text(explanation.waits_for)}"
    return "only retention.bytes is limited, and it cannot be applied now"


def facts_or_none(
    manager: RemoteLogMetadataManager, name: TopicIdPartition
) -> PartitionFacts | None:
    """Read a partition; None if it was removed or never existed."""
    try:
        return partition_facts(manager, name)
    except RemoteResourceNotFoundError:
        return None


def explained(facts: PartitionFacts | None, id: UUID) -> SegmentExplanation | None:
    """Explain a segment; None if retention does not consider it."""
    segments = () if facts is None else facts.case.segments
    segment = next((s for s in segments if s.remote_log_segment_id.id == id), None)
    return None if facts is None or segment is None else explain_segment(facts.case, segment)


def verdict_of(
    facts: PartitionFacts | None, segment: SegmentFacts, explanation: SegmentExplanation | None
) -> str:
    deleted = deleted_text(segment)
    if deleted is not None:
        return f"deleted: {deleted}"
    if facts is None or explanation is None:
        return "gone: RLMM no longer has it, and the audit trail does not show who deleted it"
    removal = removal_text(facts)
    if removal is not None and explanation.standing is not Standing.DUE:
        return f"goes with its partition: {removal}"
    return verdict_text(facts, explanation)


def kafkas_text(kafka: KafkasPart) -> str:
    """Describe the log of a partition that a broker tiers, and what Kafka will delete of it."""
    log = kafka.log
    return (
        f"polled {age_text(kafka.age_ms)} ago, leader broker {log.broker_id} in epoch "
        f"{log.leader_epoch}, log start {log.log_start_offset}, high watermark "
        f"{log.high_watermark}; Kafka is expected to delete "
        f"{sized(len(kafka.expected), kafka.expected_bytes)} below its log start"
    )


def lineage_text(log: PolledLog) -> str:
    epochs = log.lineage.entries
    shown = epochs_text(epochs[-MAX_SHOWN_EPOCHS:])
    more = len(epochs) - MAX_SHOWN_EPOCHS
    return f"{more} earlier, {shown}" if more > 0 else shown or "none, nothing is in the tier"


def disabled_text(topic: StoredTopicConfig) -> str | None:
    """Explain why all of a topic is deleted if tiering is disabled; None if it is not."""
    if topic.config.remote_storage_enable is not False:
        return None
    if topic.disabling_waits:
        return f"tiering is disabled: {reason_to_retain(topic)}"
    if reason_to_retain(topic):
        return None
    return (
        "remote.storage.enable=false, remote.log.delete.on.disable=true: its leader's RLM "
        "deletes all of it, on these settings or when StopPartitions asks for it "
        "(docs/understand/retention.md), whatever retention would keep; until then "
        "remote.storage.enable=true undoes it and a hold prevents it"
    )


def waiting_text(read: PartitionCase, plan: RetentionPlan) -> str | None:
    """Describe what only changed settings delete, and until when it waits; None if nothing."""
    if not plan.waiting or read.topic.waits_until_ms is None:
        return None
    return (
        f"waiting: {sized(len(plan.waiting), plan.waiting_size_bytes)} that only the changed "
        f"settings delete, until {time_text(read.topic.waits_until_ms)}; until then setting them "
        "back keeps all of it"
    )


def end_offset_of(event: PartitionEvent) -> str:
    """Return the last offset of an event's segment; "" if it has none."""
    return event.key.split(":")[2] if event.segment_id is not None and event.key else ""


def change_text(event: PartitionEvent) -> str:
    """Name the change by its states, and also by its kind if the states are values without
    names.
    """
    if not event.from_state and not event.to_state:
        # The key of a segment is of no use to people; that of a deleted object is the change.
        return f"{event.kind} {event.key}" if event.kind == "OBJECT_DELETION" else event.kind
    change = state_text(event.to_state)
    if event.from_state:
        change = f"{state_text(event.from_state)} to {change or 'none'}"
    return change if event.kind in _NAMED_STATES else f"{event.kind} {change}"
