"""What retention does with a partition or a segment, in sentences for people."""

from datetime import UTC, datetime

from services.api.ids import uuid_to_text
from services.api.partition_events import PartitionEvent
from services.api.partitions import RemotePartitionDeleteState
from services.api.retention import DEFAULT_COPY_GRACE_MS, Deletion
from services.api.retention_explained import (
    Due,
    PartitionExplanation,
    SegmentExplanation,
    Standing,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import UNLIMITED, RetentionOwner
from services.cli.disabled_text import disabled_text
from services.cli.explain_facts import PartitionFacts, SegmentFacts
from services.cli.output import size_text
from spark_jobs.defaults import REMOVAL_GRACE_MS

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def time_text(timestamp_ms: int) -> str:
    """-1, as of a segment whose records bear no time: "-"."""
    if timestamp_ms < 0:
        return "-"
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms, after the year 9999"
    return at.isoformat(timespec="milliseconds")


def segment_text(segment: RemoteLogSegmentMetadata) -> str:
    id = uuid_to_text(segment.remote_log_segment_id.id)
    return f"{segment.start_offset}-{segment.end_offset} ({id})"


def rule_text(deletion: Deletion) -> str:
    return f"{deletion.reason.value}: {deletion.detail}"


def event_text(event: PartitionEvent) -> str:
    """When, by whom and why."""
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
    """Who deletes what is due, and when."""
    config = facts.topic.config
    if config.retention_owner is RetentionOwner.BROKER:
        return "the broker, by its own retention settings; RLMM only lets it"
    if config.retention_owner is not RetentionOwner.SWEEP:
        return "RLM of the leader's broker, with its next pass"
    if config.sweep_paused:
        return "nobody now: `sediment.sweep.paused`; else the next `sediment sweep retention`"
    return "the next `sediment sweep retention --apply`"


def removal_text(facts: PartitionFacts) -> str | None:
    """Why all of the partition goes; None: it does not."""
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


def next_text(facts: PartitionFacts, told: PartitionExplanation) -> str:
    """When time alone makes the next segment due."""
    if told.next is None:
        return "never as things stand: there is no segment that the rules may take next"
    return f"{segment_text(told.next.segment)}: {verdict_text(facts, told.next)}"


def size_rule_text(facts: PartitionFacts, told: PartitionExplanation) -> str:
    """What the size rule lacks for the next segment."""
    if facts.topic.config.retention_bytes == UNLIMITED:
        return "retention.bytes is not limited"
    if told.size_note or told.next is None:
        return told.size_note or "nothing to take"
    missing = told.next.bytes_missing
    if missing is None:
        return "no growth makes it due"
    return f"once the partition is {missing:,} bytes ({size_text(missing)}) larger"


def verdict_text(facts: PartitionFacts, told: SegmentExplanation) -> str:
    """Whether and when retention takes the segment, and by which rule."""
    standing, due, once_clear = told.standing, told.due, told.once_clear
    if standing is Standing.DUE and due is not None:
        return f"due now, {rule_text(due.deletion)}; {deleter_text(facts)}"
    if standing is Standing.LATER and due is not None:
        return f"due at {_due_text(due)}, if nothing else changes"
    if standing is Standing.OBSTRUCTED and once_clear is not None:
        when = "now" if once_clear.at_ms == facts.case.now_ms else f"at {_due_text(once_clear)}"
        return f"held up by {_obstacle_text(facts, told)}; without that due {when}"
    if standing is Standing.NOT_JUDGED:
        return "; ".join(facts.case.plan().notes)
    return f"kept: {_why_kept(facts, told)}"


def deleted_text(facts: SegmentFacts) -> str | None:
    """Why and by whom a segment was deleted; None: nobody has begun to."""
    marked, last = facts.deletion, facts.events[-1] if facts.events else None
    if marked is None or last is None:
        return None
    if last.to_state == _DELETED.value:
        end = f"its objects were gone at {time_text(last.at_ms)}"
    else:
        end = "its objects are going; whoever deletes next finishes it"
    return f"marked {event_text(marked)}; {end}"


def _due_text(due: Due) -> str:
    return f"{time_text(due.at_ms)}, {rule_text(due.deletion)}"


def _obstacle_text(facts: PartitionFacts, told: SegmentExplanation) -> str:
    if facts.topic.config.hold:
        return "the hold on the topic"
    copy = told.waits_for or told.segment
    what = "its own copy" if copy is told.segment else f"the copy of {segment_text(copy)}"
    if copy.copy_leased:
        return f"{what}, which is under way under a lease"
    until_ms = copy.event_timestamp_ms + DEFAULT_COPY_GRACE_MS
    return f"{what}, which counts as under way until it ends, or till {time_text(until_ms)}"


def _why_kept(facts: PartitionFacts, told: SegmentExplanation) -> str:
    config, segment = facts.topic.config, told.segment
    if told.divergence is not None:
        return (
            f"off the lineage, no rule takes it before the log start is above {segment.end_offset}"
        )
    if config.retention_ms == UNLIMITED and config.retention_bytes == UNLIMITED:
        return "neither retention.ms nor retention.bytes is limited"
    if told.bytes_missing is not None:
        return f"not due before the partition is {told.bytes_missing:,} bytes larger"
    if told.waits_for is not None:
        return f"the rules stop before it, at {segment_text(told.waits_for)}"
    return "retention.bytes alone is limited and cannot be applied now"
