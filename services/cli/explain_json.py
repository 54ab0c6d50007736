"""What `sediment explain` prints for scripts."""

from dataclasses import asdict

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partition_events import PartitionEvent
from services.api.partition_state import PartitionReport
from services.api.retention import Deletion
from services.api.retention_explained import Due, PartitionExplanation, SegmentExplanation
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.explain_facts import PartitionFacts, SegmentFacts

Json = dict[str, object]


def name_as_json(name: TopicIdPartition) -> Json:
    return {
        "topic_id": uuid_to_text(name.topic_id),
        "topic": name.topic,
        "partition": name.partition,
    }


def partition_as_json(facts: PartitionFacts, told: PartitionExplanation) -> Json:
    state, delete_state = facts.case.state, facts.summary.delete_state
    return {
        **name_as_json(facts.name),
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
        "size_note": told.size_note,
        "oldest": None if told.oldest is None else segment_as_json(told.oldest),
        "due": [_deletion(deletion) for deletion in told.plan.deletions],
        "due_bytes": told.plan.deleted_size_bytes,
        "on_hold": [_deletion(deletion) for deletion in told.on_hold],
        "next": None if told.next is None else explanation_as_json(told.next),
        "gaps": [asdict(gap) for gap in state.gaps],
        "notes": list(told.plan.notes),
    }


def settings_that_count(facts: PartitionFacts) -> list[tuple[str, str, bool]]:
    """Each with its value, as text, and whether somebody has set it."""
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
    name: TopicIdPartition, facts: SegmentFacts, told: SegmentExplanation | None, verdict: str
) -> Json:
    """`told` is None of what retention does not look at."""
    metadata = facts.metadata
    return {
        **name_as_json(name),
        "segment_id": uuid_to_text(facts.id),
        "segment": None if metadata is None else segment_as_json(metadata),
        "since": _event_or_none(facts.since),
        "verdict": verdict,
        "retention": None if told is None else explanation_as_json(told),
        "deletion": _event_or_none(facts.deletion),
        "events": [event_as_json(event) for event in facts.events],
    }


def explanation_as_json(told: SegmentExplanation) -> Json:
    return {
        "segment": segment_as_json(told.segment),
        "standing": told.standing.name,
        "due": _due(told.due),
        "once_clear": _due(told.once_clear),
        "bytes_missing": told.bytes_missing,
        "waits_for": None if told.waits_for is None else segment_as_json(told.waits_for),
        "divergence": None if told.divergence is None else asdict(told.divergence),
    }


def segment_as_json(segment: RemoteLogSegmentMetadata) -> Json:
    return {
        "segment_id": uuid_to_text(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "state": segment.state.value,
        "copy_leased": segment.copy_leased,
        "segment_leader_epochs": [
            [e.leader_epoch, e.start_offset] for e in segment.segment_leader_epochs
        ],
    }


def event_as_json(event: PartitionEvent) -> Json:
    segment_id = "" if event.segment_id is None else uuid_to_text(event.segment_id)
    return {**asdict(event), "segment_id": segment_id}


def _event_or_none(event: PartitionEvent | None) -> Json | None:
    return None if event is None else event_as_json(event)


def _due(due: Due | None) -> Json | None:
    return None if due is None else {"at_ms": due.at_ms, **_rule(due.deletion)}


def _deletion(deletion: Deletion) -> Json:
    return {**segment_as_json(deletion.segment), **_rule(deletion)}


def _rule(deletion: Deletion) -> Json:
    return {"reason": deletion.reason.value, "detail": deletion.detail}


def _report(report: PartitionReport, age_ms: int | None) -> Json:
    return {
        "age_ms": age_ms,
        "broker_id": report.broker_id,
        "leader_epoch": report.leader_epoch,
        "log_end_offset": report.log_end_offset,
        "only_local_bytes": report.only_local_bytes,
        "copied_through_offset": report.copied_through_offset,
    }
