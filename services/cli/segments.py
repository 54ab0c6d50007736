"""`sediment segments` and `sediment events`: list a partition's segments and its audit trail."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import EventQuery, PartitionEvent
from services.api.remote_log_metadata_manager import all_events, all_segments
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.connections import connected_rlmm, find_partition
from services.cli.output import Format, print_json, print_table


def list_segments(
    topic_partition: str, rlmm: str | None, data_dir: Path | None, output: Format
) -> None:
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = find_partition(manager, topic_partition)
        found = all_segments(manager, tp)
        if output is Format.JSON:
            for segment in found:
                print_json(_segment_as_json(segment))
        else:
            columns = ("offsets", "epochs", "bytes", "state", "latest record", "segment id")
            print_table(f"{tp.topic}-{tp.partition}", columns, map(_segment_as_row, found))


def _segment_as_json(segment: RemoteLogSegmentMetadata) -> dict[str, object]:
    return {
        "segment_id": uuid_to_text(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "state": segment.state.value,
        "segment_leader_epochs": [
            [e.leader_epoch, e.start_offset] for e in segment.segment_leader_epochs
        ],
        "broker_id": segment.broker_id,
        "broker_leader_epoch": segment.broker_leader_epoch,
        "txn_idx_empty": segment.txn_idx_empty,
    }


def _segment_as_row(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    epochs = " ".join(f"{e.leader_epoch}:{e.start_offset}" for e in segment.segment_leader_epochs)
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        epochs,
        segment.segment_size_in_bytes,
        segment.state.value,
        _time_text(segment.max_timestamp_ms),
        uuid_to_text(segment.remote_log_segment_id.id),
    )


def _time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


_NAMED_STATES = ("SEGMENT", "PARTITION_DELETE")


def list_events(
    topic_partition: str,
    segment: str,
    plan: str,
    after_revision: int,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    segment_id = uuid_from_text(segment, "--segment") if segment else None
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = find_partition(manager, topic_partition)
        found = all_events(manager, EventQuery(tp, after_revision, segment_id, plan))
        if output is Format.JSON:
            for event in found:
                print_json(_event_as_json(event))
        else:
            columns = ("revision", "at", "what", "segment id", "by", "why", "plan", "repeats")
            print_table(f"{tp.topic}-{tp.partition}", columns, map(_event_as_row, found))


def _event_as_json(event: PartitionEvent) -> dict[str, object]:
    segment_id = "" if event.segment_id is None else uuid_to_text(event.segment_id)
    return {**asdict(event), "segment_id": segment_id}


def _event_as_row(event: PartitionEvent) -> tuple[object, ...]:
    return (
        event.revision,
        datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        change_text(event),
        "-" if event.segment_id is None else uuid_to_text(event.segment_id),
        event.actor if event.broker_id < 0 else f"{event.actor}, broker {event.broker_id}",
        " ".join(text for text in (event.reason, event.rule_detail) if text) or "-",
        event.plan_id or "-",
        event.repeat_count,
    )


def change_text(event: PartitionEvent) -> str:
    """The states that it led from and to; where these are no names, behind the kind."""
    if not event.from_state and not event.to_state:
        return event.kind
    if event.from_state:
        change = f"{event.from_state} to {event.to_state or 'none'}"
    else:
        change = event.to_state
    return change if event.kind in _NAMED_STATES else f"{event.kind} {change}"
